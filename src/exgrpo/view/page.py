"""The page as one file: the same program, with a chosen part of the run inside as data."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from .assets import LIBRARIES, digest, in_script, program, read, styles
from .evaluation import Evaluation
from .run import NotThere, Run
from .texts import cut

STEPS_INSIDE = 24
"""Generations that are there with their groups, evenly spaced, the first and the last among them."""
LONGEST_TEXT = 20_000
"""Characters of a text in the file."""
SEED = 0
WHAT = {
    "run": "This file holds a part of the run: its curves, and questions that are the hardest, the most replayed, the last "
    "retired, or drawn at random.",
    "evaluation": "This file holds a part of the evaluation: its results, and questions that models differ on, that verifiers "
    "disagree about, that none solved, or drawn at random.",
}
Answers = dict[str, Any]


def write_page(
    runs: Sequence[Run] | Sequence[Evaluation], path: Path, questions: int = 200, most_bytes: int = 10_000_000
) -> str:
    """Write the page of some runs into a file; return a description of its content.

    Args:
        runs: to show, or what models of an evaluation did.
        path: of the file, which is written whole or not at all.
        questions: of each: of a run the hardest, the most replayed, the last retired, and some at random.
        most_bytes: that the file may take; where more was chosen, tokens are left out first, then questions.
    """
    frame = _frame(runs[0].kind)
    room = most_bytes - len(frame.encode()) - 2000
    data = _Part(runs, room).made(questions)
    text = frame.replace(_PLACE, in_script(json.dumps(data, separators=(",", ":"), allow_nan=False)))
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return f"{data['about']['questions']:,} questions, {path.stat().st_size / 1e6:.1f} MB. {data['about']['text']}"


_PLACE = "@@data@@"


def _frame(kind: str) -> str:
    """Return the page without its data.

    Every script and style is allowed by its digest, and nothing else is.
    """
    index = read("index.html").decode()
    style, scripts = styles(), [read(name).decode() for name in LIBRARIES]
    code = f"(() => {{\n{program(kind)}\n}})();\n"
    for one in (*scripts, code):
        assert "</script" not in one
    policy = (
        f"default-src 'none'; script-src {' '.join(digest(one) for one in (*scripts, code))}; style-src {digest(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head, body = index.split("<body>", 1)
    head = "\n".join(line for line in head.splitlines() if not line.startswith(('<link rel="style', "<script")))
    head = head.replace("</head>", "").rstrip()
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    head = head.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    parts = [f"<script>{one}</script>" for one in scripts]
    body, end = body.split("</body>", 1)
    data = f'<script type="application/json" id="data">{_PLACE}</script>'
    return "\n".join(
        [
            head,
            f"<style>{style}</style>",
            "</head>",
            f"<body>{body}",
            data,
            *parts,
            f"<script>{code}</script>",
            f"</body>{end}",
        ]
    )


class _Part:
    """A part of some runs that fits.

    Args:
        runs: to show.
        room: bytes of JSON.
    """

    def __init__(self, runs: Sequence[Run] | Sequence[Evaluation], room: int):
        self._runs: Sequence[Run | Evaluation] = runs
        self._room = room
        self._answers: Answers = {}
        self._lists: Answers = {}
        self._left_out: list[str] = []

    def made(self, questions: int) -> dict[str, Any]:
        for number, run in enumerate(self._runs):
            self._curves(f"{number}", run)
        chosen = [_chosen(run, questions) for run in self._runs]
        taken = [
            self._questions(f"{number}", run, ids)
            for number, (run, ids) in enumerate(zip(self._runs, chosen, strict=True))
        ]
        wanted = sum(map(len, chosen))
        for number, (run, ids) in enumerate(zip(self._runs, taken, strict=True)):
            self._list(f"{number}", run, ids)
            self._steps(f"{number}", run)
        complete = not self._left_out and sum(map(len, taken)) == wanted
        if sum(map(len, taken)) < wanted:
            self._left_out.append(f"{wanted - sum(map(len, taken)):,} of the chosen questions")
        text = WHAT[self._runs[0].kind]
        if not complete:
            text += f" To fit, it lacks {' and '.join(dict.fromkeys(self._left_out))}."
        about = {
            "text": text, "how": "exgrpo view RUN shows all of it.", "questions": sum(map(len, taken)), "version": __version__,
            "runs": [{"name": run.name, "path": run.name} for run in self._runs],
        }  # fmt: skip
        return {"about": about, "answers": self._answers, "questions": self._lists}

    def _add(self, path: str, value: Any) -> bool:
        """Add an answer, if there is room for it."""
        size = len(json.dumps(value, separators=(",", ":"))) * 103 // 100 + len(path) + 8
        if size > self._room:
            return False
        self._room -= size
        self._answers[path] = value
        return True

    def _curves(self, number: str, run: Run | Evaluation) -> None:
        overview = run.answer("overview", {})
        self._add(f"{number}/overview", {**overview, "path": "", "growing": False})
        if isinstance(run, Evaluation) or run.history is None:
            return
        self._add(f"{number}/objective", run.answer("objective", {}))
        pages = run.answer("steps", {"start": "0"})
        rows = list(pages["rows"])
        while len(rows) < pages["total"] and len(rows) < 5000:
            rows += run.answer("steps", {"start": str(len(rows))})["rows"]
        self._add(f"{number}/steps", {"rows": rows})

    def _questions(self, number: str, run: Run | Evaluation, ids: Sequence[int]) -> list[int]:
        """Add questions with their trajectories, and tokens of these up to half of the room."""
        taken = []
        share = self._room // max(1, len(self._runs))
        for place, one in enumerate(ids):
            page = run.answer(f"question/{one}", {})
            page = {**page, "trajectories": [_shorter(t) for t in page["trajectories"]]}
            page |= {
                name: [[key, cut(text, LONGEST_TEXT)] for key, text in page[name]] for name in ("messages", "columns")
            }
            if not self._add(f"{number}/question/{one}", page):
                break
            taken.append(one)
            if isinstance(run, Evaluation):
                self._add(f"{number}/same/{page['key']}", {"id": one})
                continue
            for trajectory in page["trajectories"]:
                path = f"trajectory/{trajectory['id']}"
                if self._room < share * (1 - 0.5 * (place + 1) / max(1, len(ids))) - share * 0.25 or not self._tokens(
                    number, run, path
                ):
                    self._left_out.append("the tokens of some trajectories")
        return taken

    def _tokens(self, number: str, run: Run, path: str) -> bool:
        found = run.answer(path, {})
        return self._add(f"{number}/{path}", {**found, "text": None})

    def _list(self, number: str, run: Run | Evaluation, ids: Sequence[int]) -> None:
        if not ids:
            self._lists[number] = {"rows": [], "filters": [], "sorts": {}}
            return
        self._lists[number] = run.question_rows(ids)
        for row in self._lists[number]["rows"]:
            page = self._answers[f"{number}/question/{row['id']}"]
            row["whole"] = " ".join(text for _, text in page["messages"])[:2000]

    def _steps(self, number: str, run: Run | Evaluation) -> None:
        if isinstance(run, Evaluation) or run.history is None:
            return
        known = run.history.generations["generation"]
        inside = []
        for place in np.unique(np.linspace(0, len(known) - 1, min(STEPS_INSIDE, len(known))).astype(int)).tolist():
            one = int(known[place])
            with contextlib.suppress(NotThere):
                if self._add(f"{number}/step/{one}", run.answer(f"step/{one}", {})):
                    inside.append(one)
        for i, one in enumerate(inside):  # previous and next among those that are here
            step = self._answers[f"{number}/step/{one}"]
            step["previous"], step["next"] = (
                inside[i - 1] if i else None,
                inside[i + 1] if i + 1 < len(inside) else None,
            )


def _shorter(trajectory: dict[str, Any]) -> dict[str, Any]:
    text = trajectory["text"]
    if text is None or len(text) <= LONGEST_TEXT:
        return trajectory
    return {**trajectory, "text": text[:LONGEST_TEXT] + " …", "long": True}


def _chosen(run: Run | Evaluation, count: int) -> list[int]:
    """Choose questions in turns: the hardest, the most replayed, the last retired, and random ones, a quarter each."""
    if isinstance(run, Evaluation):
        return run.chosen(count)
    if run.history is None:
        return []
    per = run.history.questions
    seen = np.flatnonzero(per.groups > 0) if (per.groups > 0).any() else np.flatnonzero(per.ever > 0)
    retired = run.history.retirements["question"][~run.history.retirements["back"]][::-1].tolist()
    hardest = seen[np.lexsort((-per.groups[seen], per.solved[seen] / np.maximum(per.completions[seen], 1)))].tolist()
    replayed = seen[np.argsort(-per.replays[seen], kind="stable")]
    replayed = replayed[per.replays[replayed] > 0].tolist()
    rest = np.random.default_rng(SEED).permutation(seen).tolist()
    found: dict[int, None] = {}
    queues = [iter(queue) for queue in (hardest, replayed, retired, rest)]
    while queues and len(found) < min(count, len(seen)):
        for queue in list(queues):
            one = next((one for one in queue if one not in found), None)
            if one is None:
                queues.remove(queue)
            elif len(found) < count:
                found[int(one)] = None
    return list(found)
