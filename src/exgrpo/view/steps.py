"""A generation as the loss saw it: its groups, their members, fresh or stored, and what each weighed."""

from typing import Any

import numpy as np

from ..log.reader import LogReader
from .curves import plain
from .history import History
from .questions import facts_of
from .texts import CUT, cut, said

PAGE = 100


def generations(history: History, start: int | None = None, count: int = PAGE) -> dict[str, Any]:
    """Return a page of generations, the latest by default, and the overall share of replayed groups."""
    rows, words = history.generations, history.generations.words["idle"]
    total = len(rows)
    start = max(0, total - count) if start is None else max(0, min(start, total))
    part = slice(start, start + count)
    names = ("generation", "step", "questions", "replayed", "refilled")
    found = [dict(zip(names, v, strict=True)) for v in zip(*(rows[n][part].tolist() for n in names), strict=True)]
    for row, idle in zip(found, rows["idle"][part].tolist(), strict=True):
        row["idle"] = words[idle] or None
    return {"total": total, "start": start, "rows": found}


def generation(history: History, reader: LogReader, number: int) -> dict[str, Any] | None:
    """Return the groups of a generation; None where there is none of that number."""
    rows = history.generations
    places = np.flatnonzero(rows["generation"] == number)
    if not len(places):
        return None
    place = int(places[-1])
    groups = _groups(history, number)
    facts = facts_of(reader, [group["question"] for group in groups]) if groups else {}
    for group in groups:
        prompt = facts.get(group["question"], (None,))[0]
        group["text"] = cut(said(prompt), CUT)
    words = history.generations.words["idle"]
    return {
        "generation": number, "step": int(rows["step"][place]), "questions": int(rows["questions"][place]),
        "replayed": int(rows["replayed"][place]), "refilled": int(rows["refilled"][place]),
        "idle": words[int(rows["idle"][place])] or None, "k": history.num_generations, "groups": groups,
        "previous": int(rows["generation"][place - 1]) if place else None,
        "next": int(rows["generation"][place + 1]) if place + 1 < len(rows) else None,
    }  # fmt: skip


def _groups(history: History, number: int) -> list[dict[str, Any]]:
    seen, replays = history.observations, history.replays
    theirs: dict[int, list[dict[str, Any]]] = {}
    places = np.flatnonzero(replays["generation"] == number)
    values = zip(plain(replays["log_ratio"][places]), plain(replays["ess"][places]), strict=True)
    for p, at, (ratio, ess) in zip(
        places.tolist(), history.places_of(replays["trajectory"][places]).tolist(), values, strict=True
    ):
        theirs.setdefault(int(replays["question"][p]), []).append(
            {
                "id": str(replays["trajectory"][p]), "age": int(replays["age"][p]),
                "moment": replays.words["moment"][int(replays["moment"][p])], "log_ratio": ratio, "ess": ess,
                "correct": bool(history.trajectories["correct"][at]) if at >= 0 else True,
            }
        )  # fmt: skip
    names = ("question", "successes", "scorable", "unscorable", "replayed")
    places = np.flatnonzero(seen["generation"] == number)
    found = [dict(zip(names, v, strict=True)) for v in zip(*(seen[n][places].tolist() for n in names), strict=True)]
    for group, spread in zip(found, plain(seen["spread"][places]), strict=True):
        group["spread"], group["stored"] = spread, theirs.pop(group["question"], [])
    nothing = {"successes": 0, "scorable": 0, "unscorable": 0, "replayed": True, "spread": None}
    return found + [{"question": q, **nothing, "stored": stored} for q, stored in theirs.items()]
