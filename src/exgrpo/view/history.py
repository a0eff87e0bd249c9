"""The newest branch of a log in memory: columns of its events, and the state of every question."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.difficulty import buckets_of
from ..log.reader import LogReader
from ..log.records import Provenance, Span
from .columns import Columns
from .places import Places
from .sequences import last_of_each, previous_of_each, quantile_of_each
from .sums import StepSums

UNSEEN = -1
STORED = np.iinfo(np.int32).min
"""The step at which a trajectory left that is stored still."""
AT_ONCE = 200_000
"""Events that are read at once: more would take memory without being faster."""
LEARNED = ("log_ratio", "ess")
Array = NDArray[Any]


@dataclass
class PerQuestion:
    """State of each question, (Q,) each, by its number in the log.

    Args:
        seen: fresh groups with a scorable completion.
        groups, completions, solved: fresh groups; scorable completions, and right ones, over all of them.
        successes, scorable, spread, observed_at: of the latest scorable group; `observed_at` is a step.
        stored, ever: trajectories that are stored now, and that ever were.
        replays: of its trajectories; chosen: as a question, with or without one.
        most_uses: replays of the one of its trajectories that was replayed most.
        replayed_at: step of the latest replay.
        retired: whether it is now.
        lost, rises: groups without any success after one with some, and the other way round.
        began_without: whether its first group had no success.
    """

    seen: Array
    groups: Array
    completions: Array
    solved: Array
    successes: Array
    scorable: Array
    spread: Array
    observed_at: Array
    stored: Array
    ever: Array
    replays: Array
    chosen: Array
    most_uses: Array
    replayed_at: Array
    retired: Array
    lost: Array
    rises: Array
    began_without: Array

    @classmethod
    def empty(cls) -> "PerQuestion":
        kinds = {"spread": "f4", "retired": "?", "began_without": "?"}
        return cls(**{name: np.empty(0, kinds.get(name, "i4")) for name in cls.__dataclass_fields__})

    @property
    def regained(self) -> Array:
        """Times that success came back after it had been lost, (Q,)."""
        return np.asarray(self.rises - (self.began_without & (self.rises > 0)))

    def grow(self, size: int) -> None:
        """Make room for questions up to a number."""
        fill = {"spread": np.nan, "observed_at": UNSEEN, "replayed_at": UNSEEN}
        for name, old in vars(self).items():
            if len(old) < size:
                new = np.full(size, fill.get(name, 0), old.dtype)
                new[: len(old)] = old
                setattr(self, name, new)


class History:
    """The newest branch of a log and its ancestors, with everything that happened on them.

    Args:
        reader: of the log.

    Attributes:
        end: number of the last event that is known.
        origin: of the newest branch.
        generations, observations, trajectories, replays, retirements, states, measurements: columns. A trajectory has also
            its `uses`, and the step `left` (STORED: none) and `reason` of its eviction; a replay what the loss said of it.
        questions: how each stands.
        places: questions by accuracy over steps.
        sums: of what happened at each step.
    """

    def __init__(self, reader: LogReader):
        self._forget()
        self.refresh(reader)

    def _forget(self) -> None:
        seq, generation, step, question = (
            ("seq", "seq", "u4"),
            *((n, n, "i4") for n in ("generation", "step", "question")),
        )
        self.generations = Columns(
            "generation",
            [generation, step, *((name, name, "i4") for name in ("questions", "replayed", "refilled", "idle"))],
            ["idle"],
        )
        self.observations = Columns(
            "observation",
            [
                seq,
                generation,
                step,
                question,
                *((name, name, "i2") for name in ("successes", "scorable", "unscorable")),
                ("replayed", "replayed", "?"),
                ("spread", "spread", "f4"),
            ],
        )
        self.trajectories = Columns(
            "trajectory",
            [
                ("id", "id", "i8"),
                step,
                question,
                ("length", "length", "i4"),
                ("correct", "correct", "?"),
                ("entropy", "entropy", "f4"),
            ],
        )
        self.replays = Columns(
            "replay",
            [
                generation,
                step,
                question,
                ("trajectory", "trajectory", "i8"),
                ("age", "age", "i4"),
                ("moment", "moment", "i1"),
            ],
            ["moment"],
        )
        self.retirements = Columns("retirement", [seq, step, question, ("back", "kind = 'returned'", "?")])
        self.states = Columns(
            "state",
            [
                step,
                ("gate_open", "gate_open", "?"),
                ("tokens", "generated_tokens", "i8"),
                ("checkpoint", "checkpoint", "?"),
            ],
        )
        self.measurements = Columns(
            "measurement",
            [step, ("trajectory", "trajectory", "i8"), *((name, name, "f4") for name in ("entropy", "nll", "drift"))],
        )  # fmt: skip
        for name, kind, fill in (("uses", "i4", 0), ("left", "i4", STORED), ("reason", "i1", 0)):
            self.trajectories.add(name, kind, fill)
        for name in LEARNED:
            self.replays.add(name, "f4", np.nan)
        self.reasons: list[str] = []
        self.questions = PerQuestion.empty()
        self._spans: tuple[Span, ...] = ()
        self.end, self.origin = 0, Provenance()
        self.places: Places | None = None
        self.sums = StepSums()

    def refresh(self, reader: LogReader) -> bool:
        """Read new rows; return whether there were any. The reader sees a consistent state."""
        reader.branches = reader.read_branches()
        spans = reader.lineage()
        if not spans or spans == self._spans:
            return False
        before = [(span.branch, span.first) for span in self._spans]
        is_longer = before == [(span.branch, span.first) for span in spans] and spans[-1].last > self.end
        if not is_longer:  # another branch counts now
            self._forget()
        self.origin = reader.origin_of(spans[-1].branch)
        self.questions.grow(size_of_numbers(reader))
        while self.end < spans[-1].last:
            until = min(self.end + AT_ONCE, spans[-1].last)
            self._read(reader, spans, until)
            self.end = until
        self._spans = spans
        return True

    def _read(self, reader: LogReader, spans: tuple[Span, ...], until: int) -> None:
        tables = [columns for columns in vars(self).values() if isinstance(columns, Columns)]
        new = {columns.table: columns.extend(reader, spans, self.end, until) for columns in tables}
        trained = Columns(
            "learning",
            [
                ("step", "step", "i4"),
                ("generation", "generation", "i4"),
                ("trajectory", "trajectory", "i8"),
                *((n, n, "f4") for n in LEARNED),
            ],
        )
        trained.extend(reader, spans, self.end, until)
        self._train(trained)
        gone = Columns(
            "eviction", [("trajectory", "trajectory", "i8"), ("question", "question", "i4"), ("step", "step", "i4"),
                         ("reason", "reason", "i1")], ["reason"],
        )  # fmt: skip
        gone.extend(reader, spans, self.end, until)
        self._observe(new["observation"])
        self._store(new["trajectory"], new["replay"], gone)
        rows = self.retirements
        for question, back in zip(rows["question"][new["retirement"]], rows["back"][new["retirement"]], strict=True):
            self.questions.retired[question] = not back
        self._follow(new["observation"], new["retirement"])
        self._sum(new, trained, gone)

    def _sum(self, new: Mapping[str, slice], trained: Columns, gone: Columns) -> None:
        """Add new rows to the sums of their steps."""
        add = self.sums.add
        rows = {
            name: new_of(columns, new[columns.table])
            for name, columns in vars(self).items()
            if isinstance(columns, Columns)
        }
        seen, planned, stored, replays = (rows[n] for n in ("observations", "generations", "trajectories", "replays"))
        right, scorable = seen("successes"), seen("scorable")
        for name in ("successes", "scorable", "unscorable"):
            add(name, seen("step"), seen(name))
        add("groups", seen("step"), scorable > 0)
        add("unsolved", seen("step"), (scorable > 0) & (right == 0))
        add("solved", seen("step"), (scorable > 0) & (right == scorable))
        for name in ("questions", "replayed"):
            add(name, planned("step"), planned(name))
        add("stored", stored("step"))
        add("length", stored("step"), stored("length"))
        add("entropy", stored("step"), stored("entropy"))
        add("entropies", stored("step"), ~np.isnan(stored("entropy")))
        add("replays", replays("step"))
        add("age", replays("step"), replays("age"))
        self.sums.set("age_p90", *quantile_of_each(replays("step"), replays("age"), 0.9))
        for name in LEARNED:
            add(name, trained["step"], trained[name])
            add(f"{name}s", trained["step"], ~np.isnan(trained[name]))
        add("left", gone["step"])
        back = rows["retirements"]("back")
        add("retired", rows["retirements"]("step"), 1.0 - 2.0 * back)

    def _train(self, trained: Columns) -> None:
        """Write the statistics of the loss beside the replays that they belong to."""
        if not len(trained):
            return
        first = int(np.searchsorted(self.replays["generation"], trained["generation"].min()))
        replays = [self.replays[name][first:] for name in ("generation", "trajectory")]
        order = np.lexsort(replays[::-1])
        known = _keys(*(values[order] for values in replays))
        wanted = _keys(trained["generation"], trained["trajectory"])
        found = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
        same = np.flatnonzero(known[found] == wanted) if len(known) else np.empty(0, int)
        for name in LEARNED:
            self.replays[name][first + order[found[same]]] = trained[name][same]

    def _observe(self, new: slice) -> None:
        rows, per = self.observations, self.questions
        question, replayed = rows["question"][new], rows["replayed"][new]
        successes, scorable = rows["successes"][new].astype("i4"), rows["scorable"][new].astype("i4")
        np.add.at(per.groups, question, 1)
        np.add.at(per.completions, question, scorable)
        np.add.at(per.solved, question, successes)
        np.add.at(per.chosen, question, replayed)
        known = np.flatnonzero(scorable > 0)
        question, successes, scorable = question[known], successes[known], scorable[known]
        before = previous_of_each(question, successes, np.where(per.seen > 0, per.successes, UNSEEN))
        np.add.at(per.lost, question, (before > 0) & (successes == 0))
        np.add.at(per.rises, question, (before == 0) & (successes > 0))
        per.began_without[question[(before == UNSEEN) & (successes == 0)]] = True
        np.add.at(per.seen, question, 1)
        latest, place = last_of_each(question)
        per.successes[latest], per.scorable[latest] = successes[place], scorable[place]
        per.observed_at[latest], per.spread[latest] = rows["step"][new][known][place], rows["spread"][new][known][place]

    def _store(self, came: slice, replayed: slice, gone: Columns) -> None:
        rows, per = self.trajectories, self.questions
        question = rows["question"][came]
        np.add.at(per.stored, question, 1)
        np.add.at(per.ever, question, 1)
        np.subtract.at(per.stored, gone["question"], 1)
        places = self.places_of(gone["trajectory"])
        here = places >= 0
        rows["left"][places[here]] = gone["step"][here]
        for word in gone.words["reason"]:
            if word not in self.reasons:
                self.reasons.append(word)
        numbers = np.array([self.reasons.index(word) for word in gone.words["reason"]] or [0], "i1")
        rows["reason"][places[here]] = numbers[gone["reason"][here]]
        question, places = self.replays["question"][replayed], self.places_of(self.replays["trajectory"][replayed])
        np.add.at(per.replays, question, 1)
        here = places >= 0
        np.add.at(rows["uses"], places[here], 1)
        np.maximum.at(per.most_uses, question[here], rows["uses"][places[here]])
        np.maximum.at(per.replayed_at, question, self.replays["step"][replayed])

    def _follow(self, observed: slice, retired: slice) -> None:
        """Update the places of questions; from the start where K changed."""
        if self.places is None or self.places.k != self.num_generations:
            self.places = Places(self.num_generations)
            observed, retired = slice(0, len(self.observations)), slice(0, len(self.retirements))
        self.places.follow(self.observations, observed, self.retirements, retired, len(self.questions.groups))

    def places_of(self, ids: Array) -> Array:
        """Return the places of trajectories among the columns, -1 where absent; ids ascend along a lineage."""
        known = self.trajectories["id"]
        if not len(known):
            return np.full(len(ids), -1)
        found = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return np.where(known[found] == ids, found, -1)

    # What follows -----------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return int(self.states["step"][-1]) if len(self.states) else 0

    @property
    def num_generations(self) -> int:
        """K; what the widest group had, where the log does not say."""
        rows = self.observations
        widest = int((rows["scorable"] + rows["unscorable"]).max(initial=1))
        return max(1, self.origin.num_generations, widest)

    def buckets(self) -> Array:
        """Return the bucket of each question's latest accuracy in 0..K, `UNSEEN` where it has none, (Q,)."""
        per = self.questions
        found = np.full(len(per.scorable), UNSEEN)
        seen = np.flatnonzero(per.seen)
        found[seen] = buckets_of(per.successes[seen], per.scorable[seen], self.num_generations)
        return found


def new_of(columns: Columns, new: slice) -> Callable[[str], Array]:
    """Return a function that gives the new rows of a column by name."""
    return lambda name: columns[name][new]


def _keys(generation: Array, trajectory: Array) -> Array:
    """Combine both into one value each, in their order."""
    found = np.empty(len(generation), [("generation", ">i8"), ("trajectory", ">i8")])
    found["generation"], found["trajectory"] = generation, trajectory
    return found.view("S16").ravel() if len(found) else found.view("S16")


def size_of_numbers(reader: LogReader) -> int:
    """Return one more than the highest number of a question."""
    (highest,) = next(reader.rows("SELECT coalesce(max(id), -1) FROM question"))
    return int(highest) + 1
