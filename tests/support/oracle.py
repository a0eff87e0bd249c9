"""One oracle for two hosts: completions that depend on (seed, iteration, question, member) alone, cases, and events as text."""

import hashlib
from collections import defaultdict

from exgrpo.experience.events import Admitted, Observed, Planned, Replayed, Retired

SEED, STEPS = 7, 20
CASES = {
    "share": {"preset": "exgrpo", "start_pass_at_1": 0.3, "start_completions": 32},
    "added": {"preset": "rehearsal", "capacity_per_question": 3},
    "prompt": {"preset": "prompt-replay", "cooldown": 2},
    "rescue": {"preset": "rescue", "cooldown": 1},
}


def answer(iteration: int, prompt: str, member: int) -> str:
    """A completion of `q<i>=`: right in as many members as the question is easy, and it becomes easier."""
    i = int(prompt[1:].split("=")[0])
    draw = hashlib.blake2b(f"{SEED} {iteration} {i} {member}".encode(), digest_size=4).digest()
    easy = (i % 5) * 0.2 + iteration * 0.01
    if int.from_bytes(draw, "big") / 2**32 < easy:
        return f"{'abcdefgh'[draw[0] % 8]}{i}$"
    return f"{'zyxw'[draw[1] % 4]}{draw[2] % 10}$"


def lines_of(events) -> list[str]:
    """What happened in each iteration: the questions that were replayed and which of their trajectories, what was observed and
    how often it was right, what was stored and what retired."""
    by_iteration, now = defaultdict(lambda: defaultdict(list)), 0
    for event in events:
        now = int(getattr(event, "generation", now))
        line = by_iteration[now]
        if isinstance(event, Planned):
            line["planned"].append(f"{int(event.questions)}/{int(event.replayed)}")
        elif isinstance(event, Replayed):
            line["replayed"].append(f"{int(event.question)}:{int(event.serial)}:{event.stage}")
        elif isinstance(event, Observed):
            line["observed"].append(f"{int(event.question)}={int(event.successes)}/{int(event.scorable)}")
        elif isinstance(event, Admitted):
            line["admitted"].append(f"{int(event.trajectory.question)}:{int(event.serial)}")
        elif isinstance(event, Retired):
            line["retired"].append(str(int(event.question)))
    return [
        f"{number} " + "; ".join(f"{kind} {' '.join(found)}" for kind, found in line.items())
        for number, line in sorted(by_iteration.items())
    ]
