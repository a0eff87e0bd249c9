"""Whatever happens to a buffer, in whatever order: the log, cut anywhere and reopened, gives the same buffer."""

import json
import math
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from exgrpo.config import ReplayConfig
from exgrpo.experience import ExperienceBuffer, Trajectory
from exgrpo.experience.events import (
    Observed,
    Planned,
    PlannerState,  # fmt: skip
    Replayed,
    Retired,
    Returned,
    Trained,
)
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.experience.replayed import fingerprint_of, snapshot_of
from exgrpo.log import LogReader, LogWriter, Provenance, QuestionRecord, StoredTrajectories, rebuild
from exgrpo.log.question_map import QuestionMap

QUESTIONS, K, DIMENSION = 5, 4, 3
question = st.integers(0, QUESTIONS - 1)
nan = st.just(math.nan)
entropy = st.one_of(nan, st.sampled_from([0.0, 0.25, 0.5]), st.floats(0, 4, width=32)).map(abs)
number = st.one_of(nan, st.just(0.0), st.floats(-1e9, 1e9)).map(lambda value: value + 0.0)  # zero has no sign in SQLite
share = st.one_of(nan, st.floats(0, 1)).map(abs)
vector = st.none() | st.lists(st.floats(-9, 9, width=16), min_size=DIMENSION, max_size=DIMENSION)


class Numbered:
    keys = tuple(f"key-{i}" for i in range(QUESTIONS))

    def record(self, number: int) -> QuestionRecord:
        return QuestionRecord(self.keys[number], number, f"prompt {number}", "{}")


class LogMachine(RuleBasedStateMachine):
    """A buffer whose events go into a log; now and then it is committed, closed, and continued from any earlier commit.

    Every commit is remembered with the fingerprint of the buffer then.
    """

    @initialize(
        options=st.fixed_dictionaries(
            {
                "capacity": st.sampled_from([1000, 5, 2, 1]),
                "capacity_per_question": st.sampled_from([1, 2, 3, 8]),
                "eviction": st.sampled_from(["oldest", "highest_entropy", "lowest_quality", "quality_tiers"]),
                "logp_dtype": st.sampled_from(["float32", "float16"]),
                "difficulty": st.sampled_from(["latest", "latest", "window", "spread"]),
                "difficulty_window": st.sampled_from([1, 5, 100]),
                "cooldown": st.sampled_from([0, 0, 1, 3]),
                "mixing": st.sampled_from(["share", "share", "prompt"]),
                "max_uses": st.sampled_from([0, 2]),
            }
        )
    )
    def start(self, options):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "experience.db"
        self.config = ReplayConfig(**options)
        self.origin = Provenance(model="m", num_generations=K, options=json.dumps(options))
        self.dtype = self.config.logp_dtype
        self.commits, self.embedded = [], []
        self.generation = self.step = 0
        self.open(None)

    def open(self, position):
        self.log = LogWriter(self.path, Numbered(), self.dtype)
        self.log.begin(self.origin, position, self.step)
        self.buffer = ExperienceBuffer(QUESTIONS, K, self.config, self.log, self.log)
        return rebuild(self.log.reader, self.buffer, position, self.log.question_map)

    # Events -----------------------------------------------------------------------------------------------------

    @rule(
        question=question,
        outcome=st.sampled_from([(0, 0), (0, 4), (2, 4), (2, 3), (1, 2), (3, 3)]),
        reward_std=st.one_of(nan, st.floats(0, 9)),
        replayed=st.booleans(),
    )
    def observe(self, question, outcome, reward_std=math.nan, replayed=False):
        self.log(Observed(self.generation, self.step, question, *outcome, 0, replayed, reward_std))
        counts = np.array([question]), np.array([outcome[0]]), np.array([outcome[1]]), np.array([reward_std])
        self.buffer.questions.variance.observe(*counts, self.generation)
        self.buffer.observe(question, *outcome, reward_std)
        if replayed:
            self.buffer.questions.chosen(question, self.step)

    @rule(
        question=question, ids=st.lists(st.integers(0, 2), min_size=1, max_size=3), entropy=entropy, correct=st.booleans(),
        advantage=number, quality=share, embedding=vector, surest=st.booleans(),
    )  # fmt: skip
    def admit(
        self, question, ids, entropy, correct=True, advantage=1.0, quality=math.nan, embedding=None, surest=False
    ):
        logps = -np.linspace(0.1, 0.1 if surest else 2, len(ids)).astype(self.dtype)
        serial = self.buffer.admit(
            [Trajectory(
                question, np.array(ids), logps, np.array([1.0, math.nan]), self.step, "length", entropy, None, correct,
                advantage, quality, None if embedding is None else np.array(embedding),
            )]
        )[0]  # fmt: skip
        if serial is not None and embedding is not None:
            self.embedded.append((serial, question, np.array(embedding, np.float16).tobytes()))

    @rule(question=question, entropies=st.lists(entropy, min_size=1, max_size=4))
    def observe_and_admit(self, question, entropies):
        """As a step does it: several successes of one question at once."""
        self.observe(question, (len(entropies), 5))
        for value in entropies:
            self.admit(question, [question, self.buffer.next_serial], value)

    @precondition(lambda self: self.buffer.num_retired < QUESTIONS // 2)
    @rule(question=question)
    def retire(self, question):
        if not self.buffer.retired[question]:
            self.buffer.retire(question)
            self.log(Retired(self.generation, self.step, question))

    @precondition(lambda self: self.buffer.num_retired)
    @rule(data=st.data())
    def a_question_comes_back(self, data):
        question = data.draw(st.sampled_from(np.flatnonzero(self.buffer.retired).tolist()))
        self.buffer.questions.bring_back(question)
        self.log(Returned(self.generation, self.step, question))

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data(), entropy=entropy, scores=st.lists(number, min_size=4, max_size=4))
    def measure(self, data, entropy, scores):
        slot = data.draw(st.sampled_from(self.buffer.live_slots().tolist()))
        measured = [PolicyStats(entropy, *scores)] if math.isfinite(scores[0]) else np.array([entropy])
        self.buffer.update_stats([slot], measured, self.step)

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data(), stage=st.sampled_from(["plan", "rescue", "added"]), log_ratio=number)
    def use(self, data, stage, log_ratio):
        slot = data.draw(st.sampled_from(self.buffer.live_slots().tolist()))
        question, serial, uses = (int(self.buffer.column(name)[slot]) for name in ("question", "serial", "uses"))
        self.buffer.count_uses(slot)
        self.buffer.questions.replayed(question, self.step)
        self.log(Replayed(self.generation, self.step, question, serial, stage, 1, math.nan))
        if self.config.max_uses and uses + 1 >= self.config.max_uses:
            self.buffer.wear_out(slot)
        self.log(Trained(self.generation, self.step, question, serial, log_ratio, 1.0))

    @rule(age=st.integers(0, 3))
    def the_old_leave(self, age):
        self.buffer.expire(self.step - age)

    @rule(steps=st.integers(0, 2))
    def a_generation_begins(self, steps):
        self.generation, self.step = self.generation + 1, self.step + steps
        self.buffer.advance(self.step)
        self.log(Planned(self.generation, self.step, 4, 0, 0, "no replayable question stored"))

    # The file ---------------------------------------------------------------------------------------------------

    @rule(
        snapshot=st.booleans(), deferred=st.lists(question, max_size=3), gate=st.booleans(), reviewed=st.integers(0, 9)
    )
    def commit(self, snapshot, deferred, gate, reviewed):
        state = PlannerState(self.generation, self.step, gate, 0.25, 2, 3, tuple(deferred), 1000, reviewed)
        position = self.log.commit(state, snapshot=snapshot_of(self.buffer) if snapshot else None)
        self.commits.append((position, state, fingerprint_of(self.buffer), self.born(), list(self.embedded)))

    def born(self):
        """What trajectories carry that the index keeps rounded, or not at all."""
        slots = sorted(self.buffer.live_slots().tolist(), key=lambda slot: self.buffer.column("serial")[slot])
        return [about(trajectory) for trajectory in self.buffer.get_many(slots)]

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def continue_from_any_commit(self, data):
        """As after a crash: what was not committed is gone, what came later is no longer seen."""
        position, state, fingerprint, born, embedded = data.draw(st.sampled_from(self.commits))
        self.log.close()
        self.generation, self.step = state.generation, state.step
        assert replace(self.open(position), recent=()) == state  # test_log_of_a_planner looks at that
        assert fingerprint_of(self.buffer) == fingerprint
        assert self.born() == born
        self.embedded = list(embedded)

    def teardown(self):
        if not hasattr(self, "log"):
            return
        self.log.close()
        with LogReader(self.path) as reader:
            questions = QuestionMap(Numbered().keys, ((number, record.key) for number, record in reader.questions()))
            for position, state, fingerprint, _, embedded in self.commits:
                lineage = reader.lineage(position)
                for use_snapshot in (True, False):
                    store = StoredTrajectories(reader, lineage, questions.question_of)
                    small = replace(self.config, capacity=1, capacity_per_question=1)
                    buffer = ExperienceBuffer(QUESTIONS, K, small, store)
                    found = rebuild(reader, buffer, position, questions, use_snapshot)
                    assert replace(found, recent=()) == state
                    assert fingerprint_of(buffer) == fingerprint
                found = reader.embeddings(lineage, question_of=questions.question_of)
                assert [(serial, question, vector.tobytes()) for serial, question, vector in found] == embedded
        self.folder.cleanup()


def about(trajectory):
    """All of a trajectory, so that NaN equals NaN."""
    values = asdict(trajectory) | {"entropy_step": trajectory.measured_at}
    return {name: v.tobytes() if isinstance(v, np.ndarray) else repr(v) for name, v in values.items()}


TestLog = pytest.mark.slow(LogMachine.TestCase)
TestLog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
