"""Whatever happens to a buffer, in whatever order: the log, cut anywhere and reopened, gives the same buffer."""

import math
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from exgrpo.experience import ExperienceBuffer, Trajectory
from exgrpo.experience.events import Learned, Observed, Planned, Replayed, Retired
from exgrpo.experience.log import (
    LogReader,
    LogWriter,
    Origin,
    PlannerState,
    QuestionFacts,
    StoredTrajectories,
    rebuild,
)  # fmt: skip

QUESTIONS, K = 5, 4
question = st.integers(0, QUESTIONS - 1)
entropy = st.one_of(st.just(math.nan), st.sampled_from([0.25, 0.5]), st.floats(0, 4, width=32))


class Numbered:
    keys = tuple(f"key-{i}" for i in range(QUESTIONS))

    def facts(self, number: int) -> QuestionFacts:
        return QuestionFacts(self.keys[number], number, f"prompt {number}", "{}")


class LogMachine(RuleBasedStateMachine):
    """A buffer whose events go into a log; now and then it is committed, closed, and continued from any earlier commit.

    Every commit is remembered with the fingerprint of the buffer then.
    """

    @initialize(
        capacity=st.sampled_from([1000, 5, 2, 1]),
        per_question=st.sampled_from([1, 2, 3, 8]),
        eviction=st.sampled_from(["oldest", "highest_entropy"]),
        dtype=st.sampled_from(["float32", "float16"]),
    )
    def start(self, capacity, per_question, eviction, dtype):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "experience.db"
        self.limits, self.dtype = (QUESTIONS, K, capacity, per_question, eviction), dtype
        self.commits = []
        self.generation = self.step = 0
        self.open(None)

    def open(self, position):
        self.log = LogWriter(self.path, Numbered(), self.dtype)
        self.log.begin(Origin(model="m"), position, self.step)
        self.buffer = ExperienceBuffer(*self.limits, store=self.log, listener=self.log)
        return rebuild(self.log.reader, self.buffer, position, self.log.indices())

    # Events -----------------------------------------------------------------------------------------------------

    @rule(question=question, outcome=st.sampled_from([(0, 0), (0, 4), (2, 4), (2, 3), (1, 2), (3, 3)]))
    def observe(self, question, outcome):
        self.log(Observed(self.generation, self.step, question, *outcome, 0, False))
        self.buffer.observe(question, *outcome)

    @rule(question=question, ids=st.lists(st.integers(0, 2), min_size=1, max_size=3), entropy=entropy)
    def admit(self, question, ids, entropy):
        logps = -np.linspace(0.1, 2, len(ids)).astype(self.dtype)
        self.buffer.admit(
            Trajectory(question, np.array(ids), logps, np.array([1.0, math.nan]), self.step, "length", entropy)
        )

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

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data(), entropy=st.floats(0, 4, width=32))
    def measure(self, data, entropy):
        slot = data.draw(st.sampled_from(self.buffer.live_slots().tolist()))
        self.buffer.measured([slot], np.array([entropy]), self.step)

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data())
    def use(self, data):
        slot = data.draw(st.sampled_from(self.buffer.live_slots().tolist()))
        question, serial = (int(self.buffer.column(name)[slot]) for name in ("question", "serial"))
        self.buffer.used(slot)
        self.log(Replayed(self.generation, self.step, question, serial, "plan", 1, math.nan))
        self.log(Learned(self.generation, self.step, question, serial, 0.5, 1.0))

    @rule(steps=st.integers(0, 2))
    def a_generation_begins(self, steps):
        self.generation, self.step = self.generation + 1, self.step + steps
        self.log(Planned(self.generation, self.step, 4, 0, 0, "no replayable question stored"))

    # The file ---------------------------------------------------------------------------------------------------

    @rule(snapshot=st.booleans(), deferred=st.lists(question, max_size=3), gate=st.booleans())
    def commit(self, snapshot, deferred, gate):
        state = PlannerState(self.generation, self.step, gate, 0.25, 2, 3, tuple(deferred), 1000)
        position = self.log.commit(state, snapshot=self.buffer.snapshot() if snapshot else None)
        self.commits.append((position, state, self.buffer.fingerprint()))

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def continue_from_any_commit(self, data):
        """As after a crash: what was not committed is gone, what came later is no longer seen."""
        position, state, fingerprint = data.draw(st.sampled_from(self.commits))
        self.log.close()
        self.generation, self.step = state.generation, state.step
        assert self.open(position) == state
        assert self.buffer.fingerprint() == fingerprint

    def teardown(self):
        if not hasattr(self, "log"):
            return
        self.log.close()
        with LogReader(self.path) as reader:
            indices = np.full(QUESTIONS + 1, -1, np.int32)
            for number, facts in reader.questions():
                indices[number] = facts.dataset_row
            for position, state, fingerprint in self.commits:
                for use_snapshot in (True, False):
                    store = StoredTrajectories(reader, reader.lineage(position), lambda number: int(indices[number]))
                    buffer = ExperienceBuffer(QUESTIONS, K, 1, 1, store=store)
                    assert rebuild(reader, buffer, position, indices, use_snapshot) == state
                    assert buffer.fingerprint() == fingerprint
        self.folder.cleanup()


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
