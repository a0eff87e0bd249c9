"""A question's life: what it is, what happened to it in order, and its trajectories."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..archive.decoding import Decoder
from ..errors import ExperienceLogError
from ..log.reader import LogReader
from ..log.records import Provenance
from .curves import plain
from .history import STORED, History
from .next_plan import NextPlan
from .questions import facts_of, state_of
from .texts import LONGEST, columns_of, cut, gold_of, messages_of

MOST_GROUPS = 400
"""Fresh groups in a timeline, the latest."""
MOST_TRAJECTORIES = 40
"""Trajectories shown with their text on the page of a question: stored ones and the latest; the rest have their own
pages."""
MOST_MEASURED = 60
_COUNTS = ("groups", "completions", "solved", "stored", "ever", "replays", "lost", "regained")
_SCORES = ("entropy", "nll", "drift")

_COLUMNS = (
    "id", "seq", "generation", "step", "length", "rewards", "correct", "advantage", "quality", "entropy", "entropy_step",
    "nll", "confidence", "finish_reason", "origin",
)  # fmt: skip


class QuestionPage:
    """Pages of single questions and trajectories.

    Args:
        history: of the run.
        reader: of its log.
        decode: its tokenizers.
    """

    def __init__(self, history: History, reader: LogReader, decode: Decoder):
        self._history, self._reader, self._decode = history, reader, decode
        self._origins = reader.origins()

    def question(self, number: int, plan: NextPlan) -> dict[str, Any] | None:
        """Return everything about a question; None where there is none of that number."""
        facts = facts_of(self._reader, [number]).get(number)
        if facts is None or number >= len(self._history.questions.groups):
            return None
        prompt, columns, key, problem_type = facts
        per, values = self._history.questions, columns_of(columns)
        bucket = int(self._history.buckets()[number])
        trajectories = self._trajectories(number)
        return {
            "id": number, "key": key, "type": problem_type, "gold": gold_of(values),
            "messages": [[role, _readable(text, number)] for role, text in messages_of(prompt)],
            "columns": [[name, _readable(text, number)] for name, text in values.items()],
            "state": state_of(per, number, bucket, self._history.num_generations),
            "k": self._history.num_generations,
            "counts": {name: int(getattr(per, name)[number]) for name in _COUNTS},
            "groups": self._groups(number), "retirements": self._retirements(number), "trajectories": trajectories,
            "more": int(per.ever[number]) - len(trajectories), "next": plan.of(number),
            "span": [int(v) for v in self._span()],
        }  # fmt: skip

    def _span(self) -> tuple[int, int]:
        steps = self._history.states["step"]
        return (int(steps.min(initial=0)), int(steps.max(initial=0)))

    def _groups(self, number: int) -> list[dict[str, Any]]:
        rows = self._history.observations
        places = np.flatnonzero(rows["question"] == number)[-MOST_GROUPS:]
        names = ("step", "generation", "successes", "scorable", "unscorable", "replayed")
        found = [dict(zip(names, v, strict=True)) for v in zip(*(rows[n][places].tolist() for n in names), strict=True)]
        for row, spread in zip(found, plain(rows["spread"][places]), strict=True):
            row["spread"] = spread
        return found

    def _retirements(self, number: int) -> list[dict[str, Any]]:
        rows = self._history.retirements
        places = np.flatnonzero(rows["question"] == number)
        return [{"step": int(rows["step"][p]), "back": bool(rows["back"][p])} for p in places]

    def _trajectories(self, number: int) -> list[dict[str, Any]]:
        """Return stored and latest trajectories with their replays, in the order of storing."""
        history, rows = self._history, self._history.trajectories
        places = np.flatnonzero(rows["question"] == number)
        is_stored, uses = rows["left"][places] == STORED, rows["uses"][places]
        order = np.lexsort((places, uses, is_stored))[::-1][:MOST_TRAJECTORIES]
        places = np.sort(places[order])
        replays, found = self._replays(number), []
        for place, one in zip(places.tolist(), rows["id"][places].tolist(), strict=True):
            facts, step = self.facts(one), int(rows["left"][place])
            left = None if step == STORED else {"step": step, "reason": history.reasons[int(rows["reason"][place])]}
            if facts is not None:
                found.append({**facts, "replays": replays.get(one, []), "left": left})
        return found

    def _replays(self, number: int) -> dict[int, list[dict[str, Any]]]:
        rows = self._history.replays
        places = np.flatnonzero(rows["question"] == number)
        values = zip(plain(rows["log_ratio"][places]), plain(rows["ess"][places]), strict=True)
        found: dict[int, list[dict[str, Any]]] = {}
        for p, (ratio, ess) in zip(places.tolist(), values, strict=True):
            found.setdefault(int(rows["trajectory"][p]), []).append(
                {
                    "step": int(rows["step"][p]), "generation": int(rows["generation"][p]), "age": int(rows["age"][p]),
                    "moment": rows.words["moment"][int(rows["moment"][p])], "log_ratio": ratio, "ess": ess,
                }
            )  # fmt: skip
        return found

    # A trajectory -----------------------------------------------------------------------------------------------

    def facts(self, number: int, whole: bool = False) -> dict[str, Any] | None:
        """Return what is known of a trajectory, with its text, cut unless `whole`; None where it does not exist."""
        sql = f"SELECT {', '.join(_COLUMNS)}, question FROM trajectory WHERE id = ?"
        row = next(self._reader.rows(sql, (number,)), None)
        if row is None:
            return None
        about = dict(zip((*_COLUMNS, "question"), row, strict=True))
        origin = self._origins.get(about.pop("origin"), Provenance())
        text, missing = self._text(number, origin)
        return {
            **about, "id": str(number), "correct": bool(about["correct"]), "rewards": _named(about["rewards"], origin),
            "model": origin.without_paths().model, "source": origin.source_in_words(),
            "text": None if text is None else text if whole else cut(text, LONGEST),
            "long": text is not None and len(text) > LONGEST, "missing": missing,
        }  # fmt: skip

    def _text(self, number: int, origin: Provenance) -> tuple[str | None, str | None]:
        try:
            ids = self._reader.trajectory(number).completion_ids.tolist()
        except ExperienceLogError as error:
            return None, "its tokens were pruned" if "pruned" in str(error) else str(error)
        (text,) = self._decode(origin, [ids])
        if text is None:
            return " ".join(map(str, ids)), "token ids: the log keeps no tokenizer, or `tokenizers` is not installed"
        return text, None

    def tokens(self, number: int) -> dict[str, Any] | None:
        """Return every token of a trajectory with its behaviour log-prob, and later measurements."""
        facts = self.facts(number, whole=True)
        if facts is None:
            return None
        (origin_number,) = next(self._reader.rows("SELECT origin FROM trajectory WHERE id = ?", (number,)))
        origin = self._origins.get(origin_number, Provenance())
        try:
            trajectory = self._reader.trajectory(number)
        except ExperienceLogError:
            return {**facts, "pieces": None, "logps": None, "measurements": self._measured(number)}
        ids = trajectory.completion_ids.tolist()
        pieces = self._decode.pieces(origin, ids)
        return {
            **facts, "pieces": pieces if pieces is not None else [f"{one} " for one in ids],
            "logps": plain(trajectory.behaviour_logps, 3), "measurements": self._measured(number),
        }  # fmt: skip

    def _measured(self, number: int) -> list[dict[str, Any]]:
        rows = self._history.measurements
        places = np.flatnonzero(rows["trajectory"] == number)[-MOST_MEASURED:]
        steps, scores = rows["step"][places].tolist(), [plain(rows[name][places]) for name in _SCORES]
        return [dict(zip(("step", *_SCORES), values, strict=True)) for values in zip(steps, *scores, strict=True)]


def _readable(text: str, question: int) -> str:
    """Cut a text to what a browser lays out at once; say where the rest is."""
    more = len(text) - LONGEST
    return (
        text if more <= 0 else f"{text[:LONGEST]} … ({more:,} more characters: exgrpo experience show RUN q:{question})"
    )


def _named(rewards: str, origin: Provenance) -> list[dict[str, Any]]:
    """Return rewards by the function that gave them, as far as the origin names them."""
    try:
        values = json.loads(rewards)
    except ValueError:
        return []
    try:
        functions: list[Mapping[str, Any]] = json.loads(origin.rewards)[0]
        names = [(str(f["name"]), float(f.get("weight", 1.0))) for f in functions]
    except (ValueError, TypeError, KeyError, IndexError):
        names = []
    return [
        {"name": names[i][0] if i < len(names) else f"reward {i + 1}", "weight": names[i][1] if i < len(names) else 1.0,
         "value": value if isinstance(value, (int, float)) else None}
        for i, value in enumerate(values if isinstance(values, list) else [])
    ]  # fmt: skip
