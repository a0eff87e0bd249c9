"""The buffer against a dictionary of lists, whatever happens in whatever order."""

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exgrpo.config import EVICTIONS, ReplayConfig
from exgrpo.experience import ExperienceBuffer, Trajectory
from exgrpo.experience.events import Admitted, Evicted, Measured, Retired, one_by_one
from exgrpo.experience.replayed import apply, fingerprint_of
from tests.reference.buffer import PlainBuffer

QUESTIONS, K = 5, 4
question = st.integers(0, QUESTIONS - 1)
entropy = st.one_of(st.just(math.nan), st.sampled_from([0.25, 0.5, 1.0]), st.floats(0, 4, width=32))


def trajectory(question: int, ids=(1, 2), step: int = 0, entropy: float = math.nan, logp: float = -1.0) -> Trajectory:
    ids = np.asarray(ids)
    return Trajectory(question, ids, np.full(len(ids), logp), np.array([1.0]), step, entropy=entropy)


class BufferMachine(RuleBasedStateMachine):
    """Every rule is done to the buffer, to the plain one, and to a second buffer, which must stay equal to the first."""

    @initialize(
        capacity=st.sampled_from([1000, 5, 2, 1, 0, 8]),
        capacity_per_question=st.sampled_from([1, 2, 3, 8]),
        eviction=st.sampled_from(["oldest", "highest_entropy"]),
    )
    def start(self, capacity, capacity_per_question, eviction):
        self.events = []
        limits = dict(capacity=capacity, capacity_per_question=capacity_per_question, eviction=eviction)
        arguments = (QUESTIONS, K, ReplayConfig(**limits))
        self.buffer = ExperienceBuffer(*arguments, listener=one_by_one(self.events.append))
        self.twin = ExperienceBuffer(*arguments)
        self.plain = PlainBuffer(K, capacity, capacity_per_question, eviction)
        self.step = 0

    @rule(question=question, outcome=st.sampled_from([(0, 0), (0, 4), (2, 4), (2, 3), (1, 2), (3, 3)]))
    def observe(self, question, outcome):
        for buffer in (self.buffer, self.twin, self.plain):
            buffer.observe(question, *outcome)

    @rule(question=question, ids=st.lists(st.integers(0, 2), min_size=1, max_size=3), entropy=entropy)
    def admit(self, question, ids, entropy):
        before = fingerprint_of(self.buffer)
        made = trajectory(question, ids, self.step, entropy)
        serial = self.buffer.admit([made])[0]
        assert self.twin.admit([trajectory(question, ids, self.step, entropy)])[0] == serial
        assert serial == self.plain.admit(question, tuple(ids), self.step, entropy)
        assert (serial is None) == (fingerprint_of(self.buffer) == before)
        if serial is not None:
            slot = self.buffer.find(question, serial)
            assert self.buffer.get(slot) is made

    @rule(
        question=question,
        outcome=st.sampled_from([(0, 4), (2, 4), (2, 3)]),
        entropies=st.lists(entropy, min_size=1, max_size=4),
    )
    def observe_and_admit(self, question, outcome, entropies):
        """As a step does it: several successes of one question at once."""
        self.observe(question, outcome)
        for value in entropies:
            self.admit(question, [question, self.plain.next_serial], value)

    @precondition(lambda self: self.buffer.num_retired < QUESTIONS // 2)
    @rule(question=question)
    def retire(self, question):
        for buffer in (self.buffer, self.twin, self.plain):
            buffer.retire(question)

    @rule(steps=st.integers(1, 3))
    def time_passes(self, steps):
        self.step += steps

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data(), entropy=st.floats(0, 4, width=32))
    def measure(self, data, entropy):
        one = data.draw(st.sampled_from(self.plain.everything()))
        one.entropy, one.entropy_step = entropy, self.step
        for buffer in (self.buffer, self.twin):
            buffer.update_stats([buffer.find(one.question, one.serial)], np.array([entropy]), self.step)

    @precondition(lambda self: len(self.buffer))
    @rule(data=st.data())
    def use(self, data):
        one = data.draw(st.sampled_from(self.plain.everything()))
        one.uses += 1
        before = fingerprint_of(self.buffer)
        for buffer in (self.buffer, self.twin):
            buffer.count_uses(buffer.find(one.question, one.serial))
        assert fingerprint_of(self.buffer) != before

    @invariant()
    def same_trajectories(self):
        column = self.buffer.column
        assert len(self.buffer) == len(self.plain.everything()) <= self.buffer.config.capacity
        for q in range(QUESTIONS):
            slots, stored = self.buffer.slots_of(q), self.plain.of(q)
            assert len(slots) == self.buffer.count[q] <= self.buffer.config.capacity_per_question
            for slot, one in zip(slots, stored, strict=True):
                kept = self.buffer.get(slot)
                assert column("serial")[slot] == one.serial
                assert column("question")[slot] == kept.question == q
                assert tuple(kept.completion_ids) == one.ids
                assert column("step")[slot] == kept.step == one.step
                assert column("entropy_step")[slot] == one.entropy_step
                assert column("uses")[slot] == one.uses
                np.testing.assert_equal(float(column("entropy")[slot]), float(np.float32(one.entropy)))
                assert self.buffer.find(q, one.serial) == slot
            assert self.buffer.find(q, 10**6) is None

    @invariant()
    def same_buckets(self):
        members = [set(self.buffer.questions_in(b).tolist()) for b in range(K + 1)]
        assert members == self.plain.bucket_members()
        assert self.buffer.bucket_sizes().tolist() == [len(m) for m in members]
        assert self.buffer.num_replayable == sum(map(len, members))
        assert set(np.flatnonzero(self.buffer.retired)) == self.plain.retired
        assert self.buffer.num_retired == len(self.plain.retired)

    @invariant()
    def consistent_inside(self):
        buffer, everything = self.buffer, self.plain.everything()
        serials = buffer.column("serial")
        assert serials[buffer.table.in_order()].tolist() == [one.serial for one in everything]
        for n in (1, 3, 10**6):
            assert serials[buffer.table.oldest(n)].tolist() == [one.serial for one in everything[:n]]
        assert not set(buffer.live_slots().tolist()) & set(buffer.table._free)
        assert len(buffer.store._trajectories) == len(buffer)

    @invariant()
    def events_tell_what_is_stored(self):
        stored = {}
        entropies = {}
        for event in self.events:
            match event:
                case Admitted(serial, made):
                    assert serial not in stored
                    stored[serial] = made.question
                case Evicted(serial, q, _):
                    assert stored.pop(serial) == q
                case Measured(serial, _, _, value):
                    entropies[serial] = value
        assert stored == {one.serial: one.question for one in self.plain.everything()}
        assert all(np.float32(entropies.get(o.serial, o.entropy)) == np.float32(o.entropy)
                   for o in self.plain.everything() if not math.isnan(o.entropy))  # fmt: skip

    @invariant()
    def the_same_history_has_the_same_fingerprint(self):
        assert fingerprint_of(self.buffer) == fingerprint_of(self.twin)


TestBuffer = pytest.mark.slow(BufferMachine.TestCase)
TestBuffer.settings = settings(max_examples=80, stateful_step_count=25)


quality = st.sampled_from([math.nan, 0.25, 0.5])
batches = st.lists(
    st.lists(
        st.tuples(
            question,
            st.lists(st.integers(0, 2), min_size=1, max_size=2),
            entropy,
            st.sampled_from([math.nan, 0.25, 0.5]),
        ),
        max_size=12,
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    batches=batches, retired=st.sets(question, max_size=2), capacity=st.sampled_from([1000, 9, 5, 2, 1, 0]),
    capacity_per_question=st.sampled_from([1, 2, 3, 8]), eviction=st.sampled_from(EVICTIONS.builtin),
)  # fmt: skip
def test_a_batch_is_admitted_as_one_by_one(batches, retired, capacity, capacity_per_question, eviction):
    config = ReplayConfig(capacity=capacity, capacity_per_question=capacity_per_question, eviction=eviction)
    events: list = []
    buffer = ExperienceBuffer(QUESTIONS, K, config, listener=events.append)
    plain, follower = PlainBuffer(K, capacity, capacity_per_question, eviction), ExperienceBuffer(QUESTIONS, K, config)
    for step, batch in enumerate(batches):
        if step == 1 and retired:
            buffer.retire(list(retired))
            apply(follower, Retired(0, 0, np.array(list(retired))))
            for one in retired:
                plain.retire(one)
        made = [
            Trajectory(q, np.array(ids), np.full(len(ids), -1.0), np.ones(1), step, entropy=e, quality=quality)
            for q, ids, e, quality in batch
        ]
        told = len(events)
        assert buffer.admit(made) == [plain.admit(q, tuple(ids), step, e, quality) for q, ids, e, quality in batch]
        assert [type(event) for event in events[told:]] in ([], [Admitted], [Admitted, Evicted])
        for q in range(QUESTIONS):
            stored = [buffer.get(slot) for slot in buffer.slots_of(q)]
            assert [tuple(one.completion_ids) for one in stored] == [one.ids for one in plain.of(q)]
        assert len(buffer) == len(plain.everything()) == len(buffer.store._trajectories)
    for event in events:
        apply(follower, event)
    follower.store = buffer.store
    assert fingerprint_of(follower) == fingerprint_of(buffer)


def test_a_bucket_whose_members_leave_from_any_place_keeps_the_others():
    """The last member fills the gap; it must be found there when it leaves in its turn."""
    for order in permutations(range(4)):
        buffer = ExperienceBuffer(4, K)
        for q in range(4):
            buffer.observe(q, 2, 4)
            buffer.admit([trajectory(q)])
        left = {0, 1, 2, 3}
        for q in order:
            buffer.observe(q, 1, 4)
            left.remove(q)
            assert set(buffer.questions_in(2).tolist()) == left
            assert set(buffer.questions_in(1).tolist()) == {0, 1, 2, 3} - left


def test_a_group_that_could_not_be_scored_changes_no_accuracy():
    buffer = ExperienceBuffer(1, K)
    buffer.observe(0, 2, 4)
    buffer.admit([trajectory(0)])
    before = fingerprint_of(buffer)
    buffer.observe(0, 0, 0)
    assert fingerprint_of(buffer) == before
    assert buffer.bucket_sizes().tolist() == [0, 0, 1, 0, 0]


def filled(**options) -> ExperienceBuffer:
    buffer = ExperienceBuffer(4, K, ReplayConfig(**options))
    for q in range(3):
        buffer.observe(q, 1 + q, 4)
        buffer.admit([trajectory(q, (q, 1), entropy=0.5)])
        buffer.admit([trajectory(q, (q, 2))])
    return buffer


CHANGES = {
    "another accuracy": lambda b: b.observe(0, 2, 4),
    "the same accuracy of fewer completions": lambda b: b.observe(1, 1, 2),
    "a question is observed that has nothing stored": lambda b: b.observe(3, 1, 4),
    "retired": lambda b: b.retire(0),
    "retired without a trajectory": lambda b: b.retire(3),
    "one more trajectory": lambda b: b.admit([trajectory(0, (9,))]),
    "a use": lambda b: b.count_uses(b.slots_of(1)[0]),
    "an entropy": lambda b: b.update_stats(b.slots_of(1)[:1], np.array([0.7]), 0),
    "the step of an entropy": lambda b: b.update_stats(b.slots_of(1)[1:], np.array([0.5]), 3),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_fingerprint_differs_after_every_change(change):
    buffer = filled()
    assert fingerprint_of(buffer) == fingerprint_of(filled())
    change(buffer)
    assert fingerprint_of(buffer) != fingerprint_of(filled())


@pytest.mark.parametrize(
    "other",
    [
        trajectory(0, (5, 6), logp=-1.5),
        trajectory(0, (5, 7)),
        trajectory(0, (5, 6), step=2),
        trajectory(0, (5, 6), entropy=0.1),
        Trajectory(0, np.array([5, 6]), np.array([-1.0, -1.0]), np.array([0.9]), 0),
    ],
)
def test_fingerprint_covers_what_a_trajectory_holds(other):
    ours, theirs = filled(), filled()
    ours.admit([trajectory(0, (5, 6))])
    theirs.admit([other])
    assert fingerprint_of(ours) != fingerprint_of(theirs)


@pytest.mark.parametrize("eviction", ["oldest", "highest_entropy"])
def test_equal_fingerprints_choose_alike_whatever_the_slots(eviction):
    """Two histories that end in the same state, with the trajectories in other slots, evict the same ones."""

    def after(order):
        buffer = ExperienceBuffer(10, K, ReplayConfig(capacity=4, eviction=eviction))
        for q in range(4):
            buffer.observe(q, 2, 4)
            buffer.admit([trajectory(q, (q, 9))])
        for q in order:
            buffer.retire(q)
        for q in (4, 5):
            buffer.observe(q, 2, 4)
            buffer.admit([trajectory(q, (q, 9))])
        for q in (0, 3):
            buffer.update_stats(buffer.slots_of(q), np.array([0.1]), 1)
        return buffer

    ours, theirs = after([1, 2]), after([2, 1])
    assert fingerprint_of(ours) == fingerprint_of(theirs)
    assert ours.slots_of(4) != theirs.slots_of(4)
    for q in (6, 7, 8):
        for buffer in (ours, theirs):
            buffer.observe(q, 2, 4)
            buffer.admit([trajectory(q, (q, 9))])
        assert ours.count.tolist() == theirs.count.tolist()
        assert fingerprint_of(ours) == fingerprint_of(theirs)


def test_the_oldest_leaves():
    buffer = ExperienceBuffer(4, K, ReplayConfig(capacity=3))
    for q in (0, 1, 0, 2):
        buffer.observe(q, 2, 4)
        buffer.admit([trajectory(q, (q, len(buffer)))])
    assert [buffer.get(s).completion_ids.tolist() for s in buffer.slots_of(0)] == [[0, 2]]
    assert buffer.count.tolist() == [1, 1, 1, 0]
    buffer.admit([trajectory(3, (3,))])
    assert buffer.count.tolist() == [1, 0, 1, 1]


def test_the_oldest_of_a_question_leaves():
    buffer = ExperienceBuffer(2, K, ReplayConfig(capacity_per_question=3))
    for ids in ((1,), (2,), (3,), (4,), (5,)):
        buffer.admit([trajectory(0, ids)])
        buffer.admit([trajectory(1, ids)])
    for q in (0, 1):
        assert [int(buffer.get(s).completion_ids[0]) for s in buffer.slots_of(q)] == [5, 4, 3]


def test_the_highest_entropy_leaves_and_an_unmeasured_one_first():
    buffer = ExperienceBuffer(1, K, ReplayConfig(capacity=10, capacity_per_question=3, eviction="highest_entropy"))
    for ids, value in (((1,), 0.5), ((2,), 2.0), ((3,), math.nan), ((4,), 0.1), ((5,), 0.2)):
        buffer.admit([trajectory(0, ids, entropy=value)])
    assert [int(buffer.get(s).completion_ids[0]) for s in buffer.slots_of(0)] == [5, 4, 1]


def test_the_same_ids_are_stored_once_for_a_question_and_again_for_another():
    buffer = ExperienceBuffer(2, K)
    assert buffer.admit([trajectory(0, (1, 2))])[0] == 0
    assert buffer.admit([trajectory(0, (1, 2), step=5, logp=-0.5)])[0] is None
    assert buffer.admit([trajectory(0, (1, 2, 3))])[0] == 1
    assert buffer.admit([trajectory(1, (1, 2))])[0] == 2
    assert buffer.column("step")[buffer.slots_of(0)].tolist() == [0, 0]


def test_many_trajectories_survive_the_growth_of_all_arrays():
    buffer = ExperienceBuffer(200, K, ReplayConfig(capacity=500))
    for q in range(200):
        buffer.observe(q, 1 + q % 3, 4)
        for n in range(4):
            buffer.admit([trajectory(q, (q, n), step=n)])
    assert len(buffer) == 500
    assert buffer.count.sum() == 500
    assert buffer.count[:75].sum() == 0
    assert all(
        buffer.get(s).completion_ids.tolist() == [q, 3 - i]
        for q in range(75, 200)
        for i, s in enumerate(buffer.slots_of(q))
    )
    assert buffer.num_replayable == 125
