"""Text of `exgrpo explain`: the figures as tables, each with a line that explains it."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from ..experience.output import counted, write
from .draws import MAX_ROWS

WIDTH = 108
SHOWN = 3
Row = Mapping[str, Any]
_WHOLE: Any = {"break_on_hyphens": False, "break_long_words": False}


def as_text(found: Row) -> None:
    """Print everything, in the order of a step."""
    write(f"preset {found['preset']}, {counted(found['batch'], 'question')} a step, {found['k']} completions each")
    _options(found["options"])
    if found["pool"] is not None:
        _gate(found)
        _replay(found)
        _questions(found)
        if found["trajectories"] is not None:
            _trajectories(found)
    elif found["replay"] is None:
        _say("Nothing is stored and nothing is replayed: every group is fresh.", blank=True)
    _gradient(found)
    _group(found)


def table(rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print aligned rows, the first as the head; the first `left` columns are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [t.ljust(w) if i < left else t.rjust(w) for i, (t, w) in enumerate(zip(row, widths, strict=True))]
        write("  " + "  ".join(cells).rstrip())


def _say(text: str, blank: bool = False) -> None:
    """Print prose within the width."""
    write(("\n" if blank else "") + textwrap.fill(text, WIDTH, **_WHOLE))


def _head(text: str) -> None:
    write(f"\n{text}")


# Options, gate, form ----------------------------------------------------------------------------------------------------


def _options(options: Sequence[Row]) -> None:
    _head("Options that are not at their default" if options else "All options are at their defaults.")
    if options:
        rows = [(o["option"], _value(o["value"]), _value(o["default"]), o["from"]) for o in options]
        table([("option", "value", "default", "from"), *rows], left=4)


def _value(value: Any) -> str:
    return ",".join(f"{v:g}" for v in value) if isinstance(value, (list, tuple)) else str(value)


def _gate(found: Row) -> None:
    pool, gate = found["pool"], found["gate"]
    _head("Experience")
    where = pool["log"] or f"made up, as after {counted(pool['groups'], 'group')} of each question"
    stored = counted(pool["trajectories"], "trajectory", "trajectories")
    failures = f" ({pool['failures']:,} of them failures)" if pool["failures"] else ""
    expired = f"; {pool['expired']:,} have left now for their age" if pool["expired"] else ""
    more = [f"{pool[name]:,} {word}" for name, word in _MORE.items() if pool[name]]
    is_open = f"open; Pass@1 {_three(pool['pass_at_1'])}"
    facts = {
        "from": where,
        "questions": ", ".join([f"{pool['seen']:,} seen, {pool['replayable']:,} can be replayed", *more]),
        "stored": stored + failures + expired,
        "time": f"step {found['step']:,}, epoch {found['epoch']:g}, seed {found['seed']}",
        "gate": is_open if gate["open"] else gate["why"].removeprefix("gate "),
    }
    for name, text in facts.items():
        write(textwrap.fill(text, WIDTH, initial_indent=f"  {name:<11}", subsequent_indent=" " * 13, **_WHOLE))
    if not gate["open"]:
        _say("Nothing is replayed until the gate opens. The rest is what would be replayed if it were open.")


_MORE = {"retired": "retired", "resting": "rest", "returned": "came back"}


def _replay(found: Row) -> None:
    replay, batch, k = found["replay"], found["batch"], found["k"]
    wanted = f"{replay['wanted']} of {batch} questions"
    stored = replay["stored_in_a_group"] or 0.0
    members = f"{stored:.3g} of {k} completions stored, the others fresh" if stored < k else "all completions stored"
    texts = {
        "share": f"{wanted} are replayed: of each, {members}.",
        "coin": f"{wanted} are replayed: of each, {members}.",
        "added": f"All {batch} questions are fresh; {replay['wanted']} stored completions are added, with the advantages that "
        "they had.",
        "prefix": f"{wanted} are asked together with the first tokens of a stored success: all {k} completions go on from "
        "there, and no token before it is trained on.",
        "prompt": f"{wanted} are replayed, without a trajectory: all {k} completions are fresh.",
        "rescue": f"All {batch} questions are fresh. In a group without a success one failure gives way to a stored success: "
        f"in {replay['replayed']:.1f} groups a step, if completions are right by chance, as often as their question's "
        "accuracy says.",
    }
    _head("Replay")
    text = texts[replay["mixing"]]
    if (probability := replay["probability"]) is not None:
        text = f"With probability {probability:g}: {text} Else nothing is replayed."
    _say(text if not replay["idle"] else f"None: {replay['idle']}.")
    short = replay["wanted"] - replay["replayed"]
    if short > 0.005 and not replay["idle"] and replay["mixing"] != "rescue":
        _say(f"{replay['replayed']:.1f} on average: there are no more that may be replayed.")
    if replay["refused"]:
        _say(f"{replay['refused']:.1f} questions a step are drawn and refused: none of their trajectories is eligible.")


# Questions --------------------------------------------------------------------------------------------------------------


def _questions(found: Row) -> None:
    rows, replay = found["questions"], found["replay"]
    if not any(row["questions"] for row in rows):
        return
    rescues, exact = replay["mixing"] == "rescue", replay["exact"]
    by_reward_std = found["pool"]["by"] == "spread"
    _head(f"Questions by {'spread of their rewards' if by_reward_std else 'accuracy'}")
    head = ["spread" if by_reward_std else "accuracy", "seen", "stored" if rescues else "can be replayed"]
    head += [] if rescues else ["weight"]
    head += ["rescued a step" if rescues else "replayed a step"]
    head += [] if exact else ["+-"]
    head += ["if in the batch" if rescues else "chance of one"]
    body = []
    for row in rows:
        cells = [row["accuracy"], _count(row["seen"]), _count(row["questions"])]
        cells += [] if rescues else [_percent(row["weight"])]
        cells += [f"{row['expected']:.2f}"]
        cells += [] if exact else [f"{row['standard_error']:.2f}"]
        body.append([*cells, _percent(row["chance"])])
    table([head, *body])
    total = sum(row["expected"] for row in rows)
    if exact:
        _say(f"Exact; {total:.4g} in all.")
    else:
        _say(
            f"Means over {replay['plans']:,} plans from draws of their own, +- their standard error; {total:.4g} in all."
        )
    if any(row["weight"] is None for row in rows) and not rescues:
        _say("No weights: this choice looks at each question, not at its bucket.")
    if found["types"]:
        _head("Problem types, drawn apart")
        kinds = [
            (t["type"], _count(t["questions"]), f"{t['expected']:.2f}", f"{t['standard_error']:.2f}")
            for t in found["types"]
        ]
        table([("type", "may be drawn", "replayed a step", "+-"), *kinds])


def _count(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


# Trajectories -----------------------------------------------------------------------------------------------------------


def _trajectories(found: Row) -> None:
    t, completions = found["trajectories"], found["batch"] * found["k"]
    if not t["examples"]:
        return
    _head(f"Trajectories: {t['choice']}" + (f", values {_REFRESH[t['refresh']]}" if t["measured"] else ""))
    forwards = f"{t['measured']:.1f} are measured again for a step"
    if t["measured"]:
        forwards += f": {t['measured']:.1f} forwards beside the {completions:,} completions of the batch"
        forwards += f" ({100 * t['measured'] / completions:.1f} %)"
    _say(forwards + "." if t["measured"] else "None is measured again: no forward is made for the choice.")
    names = [name for name in ("entropy", "age", "quality") if t[name]["stored"] is not None]
    means = [(name, _three(t[name]["chosen"]), _three(t[name]["stored"])) for name in names]
    table([("mean of", "chosen", "all of the same questions"), *means])
    _say("Of one plan, what its questions hold: entropy in nats (age in steps), * chosen")
    table([_example(example) for example in t["examples"]], left=3)


_REFRESH = {"lazy": "measured where too old", "exact": "measured at every draw"}


def _example(example: Row) -> tuple[str, str, str]:
    stored = sorted(example["stored"], key=lambda t: not t["chosen"])
    texts = [
        f"{'*' if t['chosen'] else ''}{_three(t['entropy'])} ({t['age']}{'' if t['correct'] else ', wrong'})"
        for t in stored[:SHOWN]
    ]
    more = f" and {len(stored) - SHOWN} more" if len(stored) > SHOWN else ""
    return f"question {example['question']}", example["accuracy"], "  ".join(texts) + more


def _three(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if abs(value) >= 1 else f"{value:.3f}"


# Push -------------------------------------------------------------------------------------------------------------------


def _gradient(found: Row) -> None:
    g = found["gradient"]
    _head("Gradient weight of a token: what multiplies A x (gradient of log pi), w = pi / pi_behaviour")
    rows = [["w", *(f"{w:g}" for w in g["w"])]]
    for kind in ("replayed", "fresh"):
        if g[kind] is not None:
            for sign, name in (("positive", "A > 0"), ("negative", "A < 0")):
                rows.append([f"{kind}, {name}", *(f"{weight:.4f}" for weight in g[kind][sign])])
    table(rows)
    if g["of_pi"]:
        _say(
            f"Replayed tokens are weighted by pi, not by w (above: pi = 0.5). For a vocabulary of {g['of_pi']['vocabulary']:,}:"
        )
        weights = [f"{weight:.4f}" for weight in g["of_pi"]["weight"]]
        table([["pi", *(f"{pi:g}" for pi in g["of_pi"]["pi"])], ["replayed", *weights]])
    if g["positive_weight"] != 1:
        _say(f"Advantages above 0 are multiplied by {g['positive_weight']:g} besides, those of fresh completions too.")
    if found["replay"] is not None and found["replay"]["mixing"] == "added":
        _say("An added completion pushes with its weight above times the advantage that it had.")


def _group(found: Row) -> None:
    g = found["group"]
    fresh, stored = g["fresh"], g["stored"]
    if not stored:
        kind = f"a group of {fresh} fresh completions"
    elif not fresh:
        kind = f"a group of {stored} stored completions"
    elif stored == 1:
        kind = f"a group of {fresh} fresh completions and a stored success"
    else:
        kind = f"a group of {fresh} fresh completions and {stored} stored successes"
    _head(f"Net push of {kind}, at w = 1")
    name = "right among the " + ("fresh" if fresh else "stored")
    every = math.ceil(len(g["rows"]) / MAX_ROWS)
    shown = [r for i, r in enumerate(g["rows"]) if i % every == 0 or i == len(g["rows"]) - 1]
    body = [(str(r["successes"]), *(f"{r[c] + 0.0:+.3f}" for c in ("positive", "negative", "net"))) for r in shown]
    table([(name, "up", "down", "net"), *body])
    _say(f"Weight x A over one token of each completion. On the whole the group {g['reading']}.")
