"""A run that is looked at: its log in memory, what its host logged, and answers to what the page asks."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..archive.decoding import Decoder
from ..archive.opened import Experience, find_log
from ..errors import ExGRPOError, ExperienceLogError
from ..log.connection import FILE_NAME, PRIVATE_NAME, connect, explained, log_in, owner_of
from ..log.reader import LogReader
from ..runtime.metric_table import FILE_NAME as METRICS
from . import curves, steps
from .charts import CHARTS
from .history import STORED, History
from .metrics import Metrics
from .next_plan import NextPlan
from .objective_table import table_apart
from .options import described, options_in
from .question import QuestionPage
from .questions import FILTERS, LABELS, SORTS, QuestionList, sorts

AUDIT = "audit.json"
"""File beside the log: the output of `exgrpo rewards audit RUN --json`."""
TIME_LIMIT = 10.0
"""Seconds that a request may read the log."""
FRESH = 0.5
"""Seconds for which a look at the log is good enough."""
_TICK = 20_000


class NotThere(ExGRPOError):
    """The requested object does not exist; the message is for people."""


class Run:
    """Answers about one run. Safe to use from several threads: one at a time.

    Args:
        path: of an output directory, a log, or an exported folder.
        name: short, to tell runs apart.

    Attributes:
        missing: what cannot be shown, and why.
    """

    kind = "run"

    def __init__(self, path: Path | str, name: str | None = None):
        self.path = Path(path).expanduser()
        self.name = name or self.path.resolve().name.removesuffix(".db")
        self._lock = threading.RLock()
        self._made: dict[str, Any] = {}
        self.missing: list[str] = []
        self._experience, self._reader, self.history = self._opened()
        folder = self.path if self.path.is_dir() else self.path.parent
        self.metrics = Metrics(folder if folder.is_dir() else None)
        self.metrics.refresh()
        self._seen = time.monotonic()
        self._objective: dict[str, Any] | None = None
        self._asking = threading.Lock()
        if self.history is None and not self.metrics.rows:
            raise ExperienceLogError(
                f"{self.path} holds neither an experience log ({FILE_NAME}) nor a training log ({METRICS}, or a checkpoint's "
                "trainer_state.json). Give a run's output_dir, its log, or an exported folder."
            )

    def _opened(self) -> tuple[Experience | None, LogReader | None, History | None]:
        try:
            experience = Experience(self.path if self.path.is_file() else find_log(self.path))
        except ExperienceLogError:
            if not self.path.is_dir() or log_in(self.path).is_file():
                raise
            if list(self.path.iterdir()):
                self.missing.append(
                    "no questions and trajectories: it keeps no experience (experience_log='none', or a preset without "
                    "replay), or its log lies elsewhere: then give that file"
                )
            return None, None, None
        connection = connect(experience.log)
        connection.execute("PRAGMA query_only = 1")
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        reader = LogReader(experience.log, connection)
        if experience.exported:
            self.missing.append(
                "an exported folder holds what was stored, not what happened: no timelines and no steps"
            )
        with self._moment(reader, limit=None):
            return experience, reader, History(reader)

    def close(self) -> None:
        with self._lock:
            if self._reader is not None:
                self._reader.close()
            if self._experience is not None:
                self._experience.close()

    @contextlib.contextmanager
    def _moment(self, reader: LogReader, limit: float | None = TIME_LIMIT) -> Iterator[None]:
        """Read a consistent state of the log, for a limited time, so that its writer can checkpoint."""
        end = None if limit is None else time.monotonic() + limit
        reader.connection.set_progress_handler(lambda: int(end is not None and time.monotonic() > end), _TICK)
        with explained(reader.path, "reading"):
            reader.connection.execute("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(Exception):
                reader.connection.execute("ROLLBACK")

    # Keeping up -------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what was written since."""
        with self._lock:
            if time.monotonic() - self._seen < FRESH:
                return
            changed = self.metrics.refresh()
            if self._reader is not None and self.history is not None:
                with self._moment(self._reader):
                    changed |= self.history.refresh(self._reader)
            if changed:
                self._made.clear()
            self._seen = time.monotonic()

    def _once(self, name: str, make: Any) -> Any:
        """Make a value once per state of the log."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    @property
    def version(self) -> str:
        """Changes when anything does."""
        end = 0 if self.history is None else self.history.end
        return f"{end}.{len(self.metrics.rows)}"

    # Answers ----------------------------------------------------------------------------------------------------

    def answer(self, what: str, query: Mapping[str, str]) -> Any:
        """Answer a path of the page's interface.

        Raises:
            NotThere: there is no such thing.
        """
        kind, _, rest = what.partition("/")
        if kind == "objective" and not rest:
            return self.objective()
        with self._lock:
            self.refresh()
            if kind == "overview" and not rest:
                return self._once("overview", self._overview)
            if kind == "version" and not rest:
                return {"version": self.version, "growing": self.growing}
            if self.history is None or self._reader is None:
                raise NotThere(self.missing[0])
            with self._moment(self._reader):
                return self._of_log(self.history, self._reader, kind, rest, query)

    def _of_log(self, history: History, reader: LogReader, kind: str, rest: str, query: Mapping[str, str]) -> Any:
        if kind == "questions" and not rest:
            return self._questions(history, reader, query)
        if kind == "steps" and not rest:
            start = query.get("start")
            return steps.generations(history, None if start is None else number_in(start))
        page = self._once("page", lambda: QuestionPage(history, reader, self._decoder(reader)))
        found = None
        if kind == "question":
            found = page.question(number_in(rest), self.next_plan())
        elif kind == "trajectory":
            found = page.tokens(number_in(rest))
        elif kind == "step":
            found = steps.generation(history, reader, number_in(rest))
        elif kind == "same":
            found = self._same(reader, rest)
        if found is None:
            raise NotThere(f"there is no {kind} {rest!r} in {self.name}")
        return found

    def _decoder(self, reader: LogReader) -> Decoder:
        if not hasattr(self, "_decode"):
            self._decode = Decoder(reader)
        return self._decode

    def _questions(self, history: History, reader: LogReader, query: Mapping[str, str]) -> Any:
        only, sort = query.get("only", "all"), query.get("sort", "number")
        if only not in FILTERS or sort not in SORTS:
            raise NotThere(f"there is no filter {only!r}, or no order {sort!r}")
        listed = self._once("questions", lambda: QuestionList(history, self.disagree()))
        return listed.page(
            reader, query.get("search", "")[:500], only, sort, query.get("down") == "1",
            number_in(query.get("start", "0")), number_in(query.get("count", "50")),
        )  # fmt: skip

    def question_rows(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return list rows of some questions, each with the filters that take it; all filters; all orders."""
        assert self.history is not None and self._reader is not None
        with self._lock, self._moment(self._reader):
            listed = QuestionList(self.history, self.disagree())
            numbers = np.array(sorted(ids), "i8")
            masks = {name: listed.mask(name) for name in FILTERS}
            rows = listed.rows(self._reader, numbers)
        for row in rows:
            row["filters"] = [name for name, mask in masks.items() if mask[row["id"]]]
        filters = [{"name": n, "label": LABELS.get(n, n), "meaning": FILTERS[n][0]} for n in FILTERS]
        return {"rows": rows, "filters": filters, "sorts": sorts()}

    def _same(self, reader: LogReader, key: str) -> Any:
        """Return the question of a key that another run has."""
        row = next(reader.rows("SELECT id FROM question WHERE key = ?", (key,)), None)
        return None if row is None else {"id": row[0]}

    def next_plan(self) -> NextPlan:
        assert self.history is not None
        history = self.history
        plan: NextPlan = self._once("plan", lambda: NextPlan(history))
        return plan

    def disagree(self) -> frozenset[int] | None:
        """Return questions whose verifiers disagree, by an audit that lies beside the log."""
        folder = self.path if self.path.is_dir() else self.path.parent
        try:
            found = json.loads((folder / AUDIT).read_text(encoding="utf-8"))["found"]
            return frozenset(int(one["question"]) for one in found if any("verifier" in r for r in one["reasons"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def objective(self) -> dict[str, Any]:
        """Return advantages and gradient weights of this run's objective.

        Takes seconds once, and blocks nobody.
        """
        if self.history is None:
            return {"why": "the run keeps no log"}
        with self._asking:
            if self._objective is None:
                self._objective = table_apart(options_in(self.history.origin), self.history.num_generations)
            return self._objective

    @property
    def growing(self) -> bool:
        """True if a process writes the log now, as far as can be told from beside it."""
        owner = None if self._experience is None else owner_of(self._experience.log)
        return owner is not None and not owner.is_gone

    # The overview -----------------------------------------------------------------------------------------------

    def _overview(self) -> dict[str, Any]:
        history, found = self.history, self.metrics.charts()
        of_log = {} if history is None else curves.charts_of(history)
        lines = {name: [*of_log.get(name, []), *found.get(name, [])] for name in {*of_log, *found}}
        for name, others in lines.items():  # what the log says more finely is not said twice
            if of_log.get(name) and name == "accuracy":
                lines[name] = [one for one in others if one["name"] != "fresh/pass_at_1"]
        charts = [chart.filled(lines.get(chart.id, []), bool(self.metrics.rows)) for chart in CHARTS]
        options = {} if history is None else options_in(history.origin)
        questions = None if history is None else int((history.questions.groups > 0).sum())
        marks = self.metrics.alarms(options, questions) if self.metrics.rows else []
        return {
            "name": self.name, "path": str(self.path), "version": self.version, "growing": self.growing,
            "charts": charts, "missing": self.missing, "metrics_from": self.metrics.source,
            **(self._of_metrics(marks) if history is None else self._of_history(history, marks)),
        }  # fmt: skip

    def _of_metrics(self, marks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what is known of a run without a log."""
        clock = self.metrics.clock()
        counts = [("optimizer steps", self.metrics.rows[-1]["step"], "optimizer steps done")]
        counts += [
            ("generated tokens", round(tokens), "completion tokens sampled since the start")
            for tokens in clock["tokens"][-1:]
        ]
        return {"marks": marks, "clock": clock, "counts": _counted(counts)}

    def _of_history(self, history: History, marks: list[dict[str, Any]]) -> dict[str, Any]:
        states = history.states
        idle = curves.idle_marks(history)
        saved = states["step"][states["checkpoint"]]
        places = np.linspace(0, len(states) - 1, min(len(states), 300)).astype(int)
        return {
            "facts": self._facts(history), "options": described(history.origin), "heat": curves.heat_map(history),
            "marks": [*marks, *idle], "checkpoints": [int(step) for step in saved[-50:]],
            "clock": {"steps": states["step"][places].tolist(), "tokens": states["tokens"][places].tolist()},
            "counts": self._counts(history), "planned": len(history.generations),
        }  # fmt: skip

    @staticmethod
    def _counts(history: History) -> list[dict[str, Any]]:
        per, states = history.questions, history.states
        seen, found = per.groups > 0, per.solved > 0
        rows = (
            ("optimizer steps", history.step, "optimizer steps done"),
            (
                "generated tokens",
                int(states["tokens"][-1]) if len(states) else 0,
                "completion tokens sampled since the start",
            ),
            ("questions seen", int(seen.sum()), "questions with at least one fresh group"),
            ("ever solved", int(found.sum()), "questions with at least one right fresh completion"),
            ("retired", int(per.retired.sum()), "questions that have left replay and the fresh stream"),
            ("stored", int((history.trajectories["left"] == STORED).sum()), "trajectories that are stored now"),
            ("ever stored", len(history.trajectories), "trajectories that were ever stored"),
            ("replays", len(history.replays), "times that a stored trajectory entered a batch"),
        )
        return _counted(rows)

    def _facts(self, history: History) -> list[list[str]]:
        origin = history.origin.without_paths()
        pairs = {
            "model": origin.model, "rewards": origin.rewards_in_words(), "completions a question": str(history.num_generations),
            "temperature": f"{origin.temperature:g}",
            "versions": ", ".join(f"{name} {version}" for name, version in _json(origin.versions).items()),
            "log": PRIVATE_NAME if self._experience and self._experience.log.name == PRIVATE_NAME else FILE_NAME,
        }  # fmt: skip
        return [[name, text] for name, text in pairs.items() if text]


def _counted(rows: Sequence[tuple[str, int, str]]) -> list[dict[str, Any]]:
    return [{"label": label, "value": value, "meaning": meaning} for label, value, meaning in rows]


def number_in(text: str) -> int:
    """Read a number of the page's interface.

    Raises:
        NotThere: it is none.
    """
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise NotThere(f"{text[:40]!r} is no number")
    return int(text)


def _json(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
