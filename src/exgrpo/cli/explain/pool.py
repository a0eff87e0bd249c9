"""Experience for `exgrpo explain`: that of a run, or a made-up one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...archive.opened import consistent_reader
from ...config import ADMISSIONS, SCHEDULES, ReplayConfig
from ...experience.buffer import ExperienceBuffer
from ...experience.policy_stats import PolicyStats
from ...experience.trajectory import RIGHT, WRONG, FloatArray, Group, IntArray, Trajectory
from ...log import rebuild
from ...log.rebuild import size_of
from ...replay import FreshStream, ReplayPlanner, StepPlan, expected_count
from ...replay.gate import Gate
from ...replay.preview import preview

ALL_AGES = 20
"""The latest groups of a made-up pool are 1 to this many optimizer steps old."""
DRIFT_A_STEP = 7e-5
"""Mean squared log-ratio of a made-up trajectory, for each step of its age."""
MADE_UP = 7919
"""Added to the seed, so that the content of a pool is independent of the draws from it."""
TOKENS, DIMENSION, TYPES = 8, 16, 3


class PlaceholderStore:
    """A store without tokens: a missing trajectory is replaced by one of a single token.

    So the file of a run is read for its index alone.
    """

    def __init__(self) -> None:
        self.serial_of: dict[Trajectory, int] = {}
        self._trajectories: dict[int, Trajectory] = {}
        self._slots: dict[int, int] = {}
        self._buffer: ExperienceBuffer | None = None

    def stand_for(self, buffer: ExperienceBuffer) -> None:
        """Provide placeholders for all that a buffer holds now."""
        slots = buffer.live_slots()
        self._buffer = buffer
        self._slots = dict(zip(buffer.column("serial")[slots].tolist(), slots.tolist(), strict=True))

    def put_many(self, serials: Sequence[int], trajectories: Sequence[Trajectory]) -> None:
        self._trajectories.update(zip(serials, trajectories, strict=True))
        self.serial_of.update(zip(trajectories, serials, strict=True))

    def drop_many(self, serials: Sequence[int]) -> None:
        """Keep everything: a rehearsal may ask for it again."""

    def get_many(self, serials: Sequence[int]) -> list[Trajectory]:
        return [self._get(serial) for serial in serials]

    def _get(self, serial: int) -> Trajectory:
        if serial not in self._trajectories:
            assert self._buffer is not None
            record = self._buffer.table.records[self._slots[serial]]
            one = np.zeros(1)
            made = Trajectory(int(record["question"]), one.astype(int), one, one, int(record["step"]))
            self.put_many([serial], [made])
        return self._trajectories[serial]


@dataclass
class Pool:
    """Experience, and how to plan from it.

    Args:
        planner: that holds it, with its gate and counters.
        path: of the log it was read from; None where it was made up.
        step: optimizer steps done.
        type_names: of each problem type.
        store: of the planner.
        groups: of each question of a made-up pool.
    """

    planner: ReplayPlanner
    path: Path | None
    step: int
    type_names: tuple[str, ...]
    store: PlaceholderStore
    groups: int | None = None

    @property
    def buffer(self) -> ExperienceBuffer:
        return self.planner.buffer

    def preview(self, order: IntArray | None = None) -> AbstractContextManager[None]:
        """Try plans without side effects, with fresh questions in a given order, by default that of their numbers."""
        return preview(self.planner, stream_of(self.buffer.num_questions, order))

    def score(self, trajectories: Sequence[Trajectory]) -> list[PolicyStats]:
        """Return measurements as last recorded; the drift of made-up ones grows with age."""
        records = self.buffer.table.records
        found = []
        for trajectory in trajectories:
            slot = self.buffer.find(trajectory.question, self.store.serial_of[trajectory])
            assert slot is not None
            entropy, age = float(records["entropy"][slot]), self.step - trajectory.step
            found.append(PolicyStats(entropy, drift=DRIFT_A_STEP * age if self.path is None else float("nan")))
        return found


def stream_of(num_questions: int, order: IntArray | None = None) -> FreshStream:
    """Return a stream with the same order in every pass: that of the numbers by default."""
    same = np.arange(num_questions) if order is None else order
    return FreshStream(lambda pass_number: same, num_questions)


# The experience of a run ------------------------------------------------------------------------------------------------


def from_log(path: Path, config: ReplayConfig, k: int | None, step: int | None, seed: int) -> Pool:
    """Rebuild what a log holds, under options that its run need not have had.

    Args:
        path: of the log.
        config: of the index and of plans.
        k: completions a question; that of the log where None.
        step: optimizer steps done; that of the log where None.
        seed: of every draw.
    """
    with consistent_reader(path) as reader:
        position = reader.position()
        k = k or (reader.origin_of(position.branch).num_generations if position is not None else 0) or 8
        n, store = size_of(reader), PlaceholderStore()
        named = dict(reader.rows("SELECT id, problem_type FROM question"))
        of_gaps = next(iter(named.values()), None)
        names = [str(named.get(number, of_gaps)) for number in range(n)]
        type_names, types = np.unique(names, return_inverse=True)
        planner = ReplayPlanner(
            config, stream_of(n), k, seed, store, types=types, longest_prefix=lambda ts: [1] * len(ts)
        )
        state = rebuild(reader, planner.buffer)
    planner.restore(state)
    store.stand_for(planner.buffer)
    planner.buffer.shrink()
    return Pool(planner, path, state.step if step is None else step, tuple(map(str, type_names)), store)


# A made-up pool ---------------------------------------------------------------------------------------------------------


def sizes_of(questions: int, shape: str, k: int) -> list[int]:
    """Return question counts with 0, 1, ..., K of K right: equal, falling (`hard`) or rising (`easy`)."""
    weights = {"uniform": [1] * (k + 1), "hard": range(k + 1, 0, -1), "easy": range(1, k + 2)}[shape]
    reached = np.cumsum([0, *weights])
    return np.diff(questions * reached // reached[-1]).tolist()


def made_up(config: ReplayConfig, k: int, sizes: Sequence[int], earlier: int, step: int, seed: int) -> Pool:
    """Make up what a run with these options would hold after one group of K completions per question.

    Admission, retirement and capacities are those of the options. Ages, entropies, embeddings and problem types are drawn
    from the seed; Pass@1 is that of the questions in the fresh stream.

    Args:
        config: the options.
        k: completions a question.
        sizes: questions with 0, 1, ..., K right, (K+1,).
        earlier: groups of each question before its latest one, each with one success.
        step: optimizer steps done.
        seed: of the pool, and of every draw.
    """
    rng = np.random.default_rng((MADE_UP, seed))
    n = sum(sizes)
    store, types = PlaceholderStore(), rng.permutation(n) % TYPES
    planner = ReplayPlanner(config, stream_of(n), k, seed, store, types=types)
    successes = rng.permutation(np.repeat(np.arange(k + 1), sizes))
    ages = rng.integers(1, ALL_AGES + 1, n)
    for turn in range(earlier, -1, -1):
        for age in range(ALL_AGES, 0, -1):
            questions = np.flatnonzero(ages == age)
            right = successes[questions] if turn == 0 else np.ones_like(questions)
            _observe(planner, rng, questions, right, step - age - ALL_AGES * turn)
    fresh = ~planner.buffer.retired | config.retired_in_stream
    if fresh.any():
        measured(planner.gate, float(successes[fresh].sum() / (k * fresh.sum())))
    planner.buffer.shrink()
    return Pool(planner, None, step, tuple(f"type {i}" for i in range(TYPES)), store, earlier + 1)


def _observe(planner: ReplayPlanner, rng: np.random.Generator, questions: IntArray, right: IntArray, step: int) -> None:
    """Observe one group of each question, and store from it."""
    if not questions.size:
        return
    k = planner.num_generations
    plan = StepPlan(0, step, questions, ((),) * len(questions), np.zeros(len(questions), bool))
    groups = [
        Group(question, np.where(np.arange(k) < s, RIGHT, WRONG), reward_std=float((s / k * (1 - s / k)) ** 0.5))
        for question, s in zip(questions.tolist(), right.tolist(), strict=True)
    ]
    planner.observe(plan, groups)
    is_frozen = ADMISSIONS[planner.config.admission].traits["frozen"]  # what it would take over of another run
    for group in groups:
        wanted = [
            member
            for member in range(k)
            if (is_frozen and member < group.successes) or planner.should_admit(group, member < group.successes, "stop")
        ]
        planner.admit([_completion(rng, group, member, step, planner) for member in wanted], [group])


def _completion(rng: np.random.Generator, group: Group, member: int, step: int, planner: ReplayPlanner) -> Trajectory:
    """Make up a completion: right if the member is one of the first, less sure on harder questions."""
    accuracy, correct = group.successes / planner.num_generations, member < group.successes
    entropy = float(rng.gamma(4.0, 0.1 + 0.1 * (1 - accuracy)))
    return Trajectory(
        group.question, rng.integers(0, 1 << 30, TOKENS), -rng.exponential(entropy, TOKENS),
        np.array([float(correct)]), step, entropy=entropy, correct=correct, advantage=float(correct) - accuracy,
        embedding=None if planner.diversity is None else _embedding(rng),
    )  # fmt: skip


def _embedding(rng: np.random.Generator) -> FloatArray:
    """Make up an embedding: completions of one question are similar."""
    return np.asarray(rng.normal(1.0, 0.5, DIMENSION))


def measured(gate: Gate, pass_at_1: float) -> None:
    """Let the gate observe as many completions as it asks for, of this Pass@1."""
    gate.restore([(pass_at_1 * gate.start_completions, gate.start_completions)])


def probability_of(config: ReplayConfig, batch: int, epoch: float) -> float | None:
    """Return the probability that a step replays at all, where a coin decides that; else None."""
    schedule = SCHEDULES[config.schedule]
    if config.mixing == "coin":
        return float(schedule(config.replay_probability, epoch, config))
    if not config.replays_questions:
        return None
    expected = expected_count(batch, schedule(config.replay_share, epoch, config))
    return expected if 0 < expected < 1 else None


def with_everything_open(planner: ReplayPlanner, batch: int, epoch: float) -> None:
    """Make every plan of `batch` questions a replay: the gate is open, and a coin falls on replay."""
    planner.gate.open = True
    if planner.config.mixing == "coin":
        planner.config = replace(planner.config, replay_probability=1.0, schedule="constant")
    elif probability_of(planner.config, batch, epoch) is not None:
        planner.config = replace(planner.config, replay_share=min(1.0, 1.5 / batch), schedule="constant")
