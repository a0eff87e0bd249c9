"""`exgrpo rewards audit`: suspicious completions of a run, by a second verifier and by their looks."""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from ...archive.decoding import Decoder
from ...archive.opened import consistent_reader
from ...errors import ExperienceLogError
from ...log import LogReader, Provenance
from ...rewards import TRL_REWARDS, get_reward
from ...rewards.check import call, final_answer
from ...rewards.choice import parse_label
from ...rewards.completion import THINK, THINK_END, boxes, thinking_begun
from ...rewards.marks import marks
from ...rewards.number import parse_number
from ..experience import log_path
from ..experience.output import prompt_text, write, write_fields, write_json, write_table
from ..main import UsageError
from .degeneration import Completion, as_rows, signs

DISAGREES, UNSCORABLE = "second verifier: wrong", "second verifier: cannot tell"
SEVERAL, LISTED, CUT, SHORT, SHARED = (
    "several answers",
    "answer among many",
    "cut",
    "short",
    "stored for several questions",
)
CHUNK = 512
MANY = 4  # options on one line
SHORT_SHARE, USUAL_LENGTH = 0.25, 20  # of the median length, where that is at least so many tokens
ILL_FITTING = (
    "The second verifier says wrong to most of them: either the run was rewarded for wrong answers, or this verifier does not "
    "read the form of its answers, as with the built-in tasks. Name one that does by --with."
)
_STATED = re.compile(r"\banswer\W{0,3}(?:is|[:=])\s*([^\n]{1,80})", re.IGNORECASE)
_BETWEEN = re.compile(r"[,;/\n]|\bor\b|\band\b", re.IGNORECASE)


@dataclass
class Stored:
    """A stored completion, and its findings."""

    id: int
    question: int
    step: int
    length: int
    finish_reason: str
    rewards: list[Any]
    gold: str | None
    prompt: str | None
    columns: dict[str, Any]
    completion: str | None
    decided_by: str
    verifier: str | None = None
    second: float | None = None
    begun: bool = False
    reasons: list[str] = field(default_factory=list)


def run(args: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    with consistent_reader(log_path(args.run)) as reader:
        stored = list(_stored(reader, args.all, args.answer_name))
    readable = [one for one in stored if one.completion is not None]
    mark_begun(readable)
    if stored and not readable:
        raise UsageError(
            "no completion can be shown as text: the log keeps no tokenizer, or `tokenizers` is not installed."
        )
    scored = _score_again(readable, args.second)
    look(readable)
    found = sorted((one for one in readable if one.reasons), key=lambda one: (-_weight(one), one.id))
    reasons = Counter(reason for one in found for reason in one.reasons)
    over_time = signs([Completion(one.step, one.question, one.length, one.completion or "") for one in readable])
    if args.json:
        write_json(
            {
                "stored": len(stored), "read": len(readable), "scored_again": scored, "suspicious": len(found),
                "reasons": dict(reasons.most_common()), "degeneration": [asdict(row) for row in over_time],
                "found": [_as_json(one) for one in found],
            }
        )  # fmt: skip
        return 0
    write_fields(
        {
            "stored": len(stored), "readable as text": len(readable), "scored again": scored, "suspicious": len(found),
            **{f"  {reason}": number for reason, number in reasons.most_common()},
        }
    )  # fmt: skip
    if reasons[DISAGREES] > scored / 2:
        write(f"\n{ILL_FITTING}")
    if over_time:
        write("\nSigns of degeneration, as shares of what was stored of each step:")
        write_table(as_rows(over_time), list(as_rows(over_time[:1])[0]))
    shown = found[: max(0, args.limit)]
    if shown:
        write()
        write_table(
            [_row(one) for one in shown], ["trajectory", "question", "why", "gold", "completion"], long="completion"
        )
        more = len(found) - len(shown)
        write(f"{f'and {more:,} more; ' if more else ''}exgrpo experience show {args.run} TRAJECTORY shows all of one")
    return 0


# Reading ----------------------------------------------------------------------------------------------------------------


class PlainDecoder(Decoder):
    """A decoder without special tokens, for the texts that reward functions get."""

    def __call__(self, origin: Provenance, completions: Sequence[Sequence[int]]) -> list[str | None]:
        tokenizer = self._tokenizer(origin.tokenizer)
        if tokenizer is None:
            return [None] * len(completions)
        return list(tokenizer.decode_batch([list(ids) for ids in completions], skip_special_tokens=True))


def _stored(reader: LogReader, also_evicted: bool, answer_name: str | None) -> Iterator[Stored]:
    decode, origins = PlainDecoder(reader), reader.origins()
    known = {
        number: (prompt, _columns(columns))
        for number, prompt, columns in reader.rows("SELECT id, prompt, columns FROM question")
    }
    view = "trajectories" if also_evicted else "experience"
    sql = f"SELECT id, question, step, length, finish_reason, rewards, origin FROM {view} ORDER BY id"
    for number, question, step, length, finish_reason, rewards, origin in list(reader.rows(sql)):
        prompt, columns = known[question]
        completion = _text(reader, number, decode, origins[origin])
        yield Stored(
            number, question, step, length, finish_reason, json.loads(rewards), _gold(columns, answer_name), prompt, columns,
            completion, _decided_by(origins[origin]),
        )  # fmt: skip


def _text(reader: LogReader, number: int, decode: Decoder, origin: Provenance) -> str | None:
    try:
        (text,) = decode(origin, [reader.trajectory(number).completion_ids.tolist()])
    except ExperienceLogError:  # pruned, or damaged, which `exgrpo experience verify` lists
        return None
    return text


def _columns(text: str | None) -> dict[str, Any]:
    try:
        columns = json.loads(text or "{}")
    except ValueError:
        return {}
    return columns if isinstance(columns, dict) else {}


def _gold(columns: Mapping[str, Any], name: str | None) -> str | None:
    value = next((columns[key] for key in ((name,) if name else ("answer", "solution")) if key in columns), None)
    return None if value is None else str(value)


def _decided_by(origin: Provenance) -> str:
    """Return the reward function that decided correctness, as far as it is known."""
    try:
        return str(json.loads(origin.rewards)[1]["decides"])
    except (ValueError, LookupError, TypeError):
        return ""


def mark_begun(stored: Sequence[Stored]) -> None:
    """Infer whether the chat template began the thinking: completions end thoughts, and begin none.

    The log keeps no chat template.
    """
    texts = [one.completion or "" for one in stored]
    begun = any(THINK_END in text for text in texts) and not any(THINK in text for text in texts)
    for one in stored:
        one.begun = begun


# A second verifier ------------------------------------------------------------------------------------------------------


def second_for(gold: str, decided_by: str) -> str:
    """Return a verifier that fits a gold answer and is not the one that decided, where there is another."""
    label, number = parse_label(gold), parse_number(final_answer(gold))
    fitting = ["choice_reward"] if label and label.isalpha() else ["numeric_reward"] if number is not None else []
    fitting.append("math_reward")
    return next((name for name in fitting if name != decided_by), fitting[0])


def _score_again(stored: Sequence[Stored], second: str | None) -> int:
    """Score completions that have a gold answer with a second verifier; return how many."""
    by_verifier: dict[str, list[Stored]] = defaultdict(list)
    for one in stored:
        if one.gold is not None:
            one.verifier = second or second_for(one.gold, one.decided_by)
            by_verifier[one.verifier].append(one)
    for name, ones in by_verifier.items():
        reward = get_reward(name)
        for start in range(0, len(ones), CHUNK):
            _score(reward, name in TRL_REWARDS, ones[start : start + CHUNK])
    return sum(map(len, by_verifier.values()))


def _score(reward: Callable[..., Any], wants_messages: bool, ones: Sequence[Stored]) -> None:
    prompts = [_prompt(one.prompt) for one in ones]
    completions = [
        [{"role": "assistant", "content": one.completion}]
        if wants_messages or not isinstance(prompt, str)
        else one.completion
        for one, prompt in zip(ones, prompts, strict=True)
    ]
    names = {name for one in ones for name in one.columns} - {"prompts", "completions"}
    columns = {name: [one.columns.get(name) for one in ones] for name in sorted(names)}
    columns |= {name: [one.gold for one in ones] for name in ("answer", "solution") if name not in columns}
    with thinking_begun(prompts, [one.begun for one in ones]):
        values = call(reward, prompts=prompts, completions=completions, **columns)
    for one, value in zip(ones, values, strict=True):
        one.second = value
        if value is None or value != value:
            one.reasons.append(UNSCORABLE)
        elif value != 1.0:
            one.reasons.append(DISAGREES)


def _prompt(text: str | None) -> Any:
    try:
        messages = json.loads(text or "")
    except ValueError:
        return text or ""
    return messages if isinstance(messages, list) else text


# How they look ----------------------------------------------------------------------------------------------------------


def look(stored: Sequence[Stored]) -> None:
    """Add findings about the form of each completion."""
    usual = median(one.length for one in stored) if stored else 0
    questions: dict[str, set[int]] = defaultdict(set)
    for one in stored:
        questions[(one.completion or "").strip()].add(one.question)
    for one in stored:
        text = one.completion or ""
        checks = (
            (SEVERAL, states_several(text)),
            (LISTED, one.gold is not None and is_listed(text, one.gold)),
            (CUT, one.finish_reason == "length"),
            (SHORT, usual >= USUAL_LENGTH and one.length < SHORT_SHARE * usual),
            (SHARED, len(questions[text.strip()]) > 1),
        )
        one.reasons += [reason for reason, holds in checks if holds]


def states_several(text: str) -> bool:
    """Return whether boxes or "answer is" sentences differ, or a box was left open or is denied."""
    said = text.rpartition(THINK_END)[2]
    marked = marks(said)
    if marked != []:
        return marked is None or len({"".join(mark.content.split()) for mark in marked}) > 1
    return len({match[1].strip(" .*$").casefold() for match in _STATED.finditer(said)}) > 1


def is_listed(text: str, gold: str) -> bool:
    """Return whether the gold answer is one of many things listed at the end."""
    for part in text.rpartition(THINK_END)[2].rstrip()[-400:].splitlines()[-3:]:
        items = {item.strip(" .()$*").casefold() for item in _BETWEEN.split(_after_statement(part))} - {""}
        if len(items) >= MANY and final_answer(gold).casefold() in items:
            return True
    return False


def _after_statement(line: str) -> str:
    match = _STATED.search(line)
    boxed = boxes(line)
    return boxed[-1] if boxed else match[1] if match else line


# Writing ----------------------------------------------------------------------------------------------------------------


def _weight(one: Stored) -> int:
    return len(one.reasons) + 10 * (DISAGREES in one.reasons)


def _as_json(one: Stored) -> dict[str, Any]:
    return {
        "trajectory": one.id, "question": one.question, "reasons": one.reasons, "gold": one.gold, "rewards": one.rewards,
        "verifier": one.verifier, "second": one.second, "step": one.step, "length": one.length,
        "finish_reason": one.finish_reason, "prompt": prompt_text(one.prompt), "completion": one.completion,
    }  # fmt: skip


def _row(one: Stored) -> dict[str, Any]:
    end = " ".join((one.completion or "").split())[-200:]
    return {
        "trajectory": str(one.id), "question": f"q:{one.question}", "why": ", ".join(one.reasons),
        "gold": (one.gold or "")[:30], "completion": end,
    }  # fmt: skip
