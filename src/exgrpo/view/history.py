"""What a log says of its newest branch, in memory: columns of its events, and how every question stands."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..experience.difficulty import buckets_of
from ..log.reader import LogReader
from ..log.records import Provenance, Span
from .columns import Columns
from .sequences import last_of_each, previous_of_each

UNSEEN = -1
Array = NDArray[Any]


@dataclass
class PerQuestion:
    """How each question stands, (Q,) each, by its number in the log.

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
    """All that happened on the newest branch of a log and its ancestors.

    Args:
        reader: of the log.

    Attributes:
        end: number of the last event that is known.
        origin: of the newest branch.
        generations, observations, trajectories, replays, learned, retirements, evictions, states, measurements: columns.
        questions: how each stands.
        uses, left: of each trajectory, (N,): its replays, and the event with which it left (0: it is stored).
    """

    def __init__(self, reader: LogReader):
        self.end = 0
        self._spans: tuple[Span, ...] = ()
        self._forget()
        self.refresh(reader)

    def _forget(self) -> None:
        where = [("generation", "generation", "i4"), ("step", "step", "i4")]
        one = [*where, ("question", "question", "i4"), ("trajectory", "trajectory", "i8")]
        self.generations = Columns(
            "generation",
            [*where, *((name, name, "i4") for name in ("questions", "replayed", "refilled")), ("idle", "idle", "i4")],
            ["idle"],
        )
        self.observations = Columns(
            "observation",
            [*where, ("question", "question", "i4"), *((n, n, "i2") for n in ("successes", "scorable", "unscorable")),
             ("replayed", "replayed", "?"), ("spread", "spread", "f4")],
        )  # fmt: skip
        self.trajectories = Columns(
            "trajectory",
            [("id", "id", "i8"), *where, ("question", "question", "i4"), ("length", "length", "i4"),
             ("correct", "correct", "?"), ("entropy", "entropy", "f4")],
        )  # fmt: skip
        self.replays = Columns("replay", [*one, ("age", "age", "i4"), ("moment", "moment", "i1")], ["moment"])
        self.learned = Columns("learning", [*one, ("log_ratio", "log_ratio", "f4"), ("ess", "ess", "f4")])
        self.retirements = Columns(
            "retirement", [*where, ("question", "question", "i4"), ("back", "kind = 'returned'", "?")]
        )
        self.evictions = Columns("eviction", [*one, ("reason", "reason", "i1")], ["reason"])
        self.states = Columns(
            "state",
            [*where, ("gate_open", "gate_open", "?"), ("tokens", "generated_tokens", "i8"), ("checkpoint", "checkpoint", "?")],
        )  # fmt: skip
        self.measurements = Columns(
            "measurement",
            [
                ("step", "step", "i4"),
                ("trajectory", "trajectory", "i8"),
                *((n, n, "f4") for n in ("entropy", "nll", "drift")),
            ],
        )
        self.questions = PerQuestion.empty()
        self.uses = self.left = np.empty(0, "i8")
        self.end, self.known_questions = 0, 0

    def refresh(self, reader: LogReader) -> bool:
        """Read what came since; returns whether anything did. The reader sees one moment."""
        reader.branches = reader.read_branches()
        spans = reader.lineage()
        if not spans:
            self.origin = Provenance()
            return False
        if spans[-1].last == self.end and [s.branch for s in spans] == [s.branch for s in self._spans]:
            return False
        before = [(span.branch, span.first) for span in self._spans]
        is_longer = before == [(span.branch, span.first) for span in spans] and spans[-1].last > self.end
        if not is_longer:  # another branch counts now
            self._forget()
        self.origin = reader.origin_of(spans[-1].branch)
        self._read(reader, spans)
        self._spans, self.end = spans, spans[-1].last
        return True

    def _read(self, reader: LogReader, spans: tuple[Span, ...]) -> None:
        self.known_questions = size_of_numbers(reader)
        self.questions.grow(self.known_questions)
        new = {
            name: columns.extend(reader, spans, self.end)
            for name, columns in vars(self).items()
            if isinstance(columns, Columns)
        }
        self._observe(new["observations"])
        self._store(new["trajectories"], new["evictions"], new["replays"])
        rows = self.retirements
        for question, back in zip(rows["question"][new["retirements"]], rows["back"][new["retirements"]], strict=True):
            self.questions.retired[question] = not back

    def _observe(self, new: slice) -> None:
        rows, per = self.observations, self.questions
        question, replayed = rows["question"][new].astype("i8"), rows["replayed"][new]
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

    def _store(self, came: slice, gone: slice, replayed: slice) -> None:
        rows, per = self.trajectories, self.questions
        more = np.zeros(came.stop - came.start, "i8")
        self.uses, self.left = np.concatenate([self.uses, more]), np.concatenate([self.left, more])
        question = rows["question"][came]
        np.add.at(per.stored, question, 1)
        np.add.at(per.ever, question, 1)
        np.subtract.at(per.stored, self.evictions["question"][gone], 1)
        places = self.places(self.evictions["trajectory"][gone])
        self.left[places[places >= 0]] = self.evictions["seq"][gone][places >= 0]
        question, places = self.replays["question"][replayed], self.places(self.replays["trajectory"][replayed])
        np.add.at(per.replays, question, 1)
        np.add.at(self.uses, places[places >= 0], 1)
        np.maximum.at(per.most_uses, question[places >= 0], self.uses[places[places >= 0]].astype("i4"))
        np.maximum.at(per.replayed_at, question, self.replays["step"][replayed])

    def places(self, ids: Array) -> Array:
        """Of trajectories their places among the columns, -1 where they are not there; ids ascend along a lineage."""
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
        """Of each question the bucket of its latest accuracy in 0..K, `UNSEEN` where it has none, (Q,)."""
        per = self.questions
        found = np.full(len(per.scorable), UNSEEN)
        seen = np.flatnonzero(per.seen)
        found[seen] = buckets_of(per.successes[seen], per.scorable[seen], self.num_generations)
        return found


def size_of_numbers(reader: LogReader) -> int:
    """One more than the highest number of a question."""
    (highest,) = next(reader.rows("SELECT coalesce(max(id), -1) FROM question"))
    return int(highest) + 1
