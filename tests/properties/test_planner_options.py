"""Any options together, over any made-up history: what must hold of every run."""

from collections import Counter
from copy import deepcopy
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exgrpo.config import (
    ADMISSIONS,
    DIFFICULTIES,
    ENTROPY_REFRESHES,
    EVICTIONS,
    MIXINGS,
    QUESTION_SAMPLERS,
    RETIREMENTS,
    SCHEDULES,
    TRAJECTORY_CHOICES,
    ReplayConfig,
)
from exgrpo.experience import RIGHT, UNSCORABLE, WRONG, Group, Trajectory
from exgrpo.experience.events import Admitted, Evicted, Measured, Observed, Replayed, Retired, one_by_one
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.experience.replayed import apply, fingerprint_of, restore, snapshot_of
from exgrpo.experience.store import MemoryStore
from exgrpo.replay import FreshStream, ReplayPlanner, replay_count

BATCH, GENERATIONS = 6, 30

OPTIONS = {
    "question_choice": st.sampled_from(QUESTION_SAMPLERS.builtin),
    "trajectory_choice": st.sampled_from(TRAJECTORY_CHOICES.builtin),
    "admission": st.sampled_from(ADMISSIONS.builtin),
    "difficulty": st.sampled_from(DIFFICULTIES),
    "entropy_refresh": st.sampled_from(ENTROPY_REFRESHES),
    "retirement": st.sampled_from(RETIREMENTS.builtin),
    "eviction": st.sampled_from(EVICTIONS.builtin),
    "schedule": st.sampled_from(SCHEDULES.builtin),
    "replay_share": st.sampled_from([0.34, 0.5, 1.0]),
    "replay_probability": st.sampled_from([0.5, 1.0]),
    "replays_per_group": st.sampled_from([1, 1, 2, 100]),
    "range_low": st.sampled_from([0.0, 0.2]),
    "range_high": st.sampled_from([0.8, 1.0]),
    "range_adapts": st.booleans(),
    "difficulty_window": st.sampled_from([1, 6, 100]),
    "by_problem_type": st.booleans(),
    "entropy_percentile": st.sampled_from([25.0, 75.0]),
    "max_entropy_age": st.sampled_from([0, 3]),
    "entropy_candidates": st.sampled_from([1, 2]),
    "min_quality": st.sampled_from([0.1, 0.3, 0.75]),
    "retirement_threshold": st.sampled_from([0.5, 0.9]),
    "retired_in_stream": st.booleans(),
    "review_every": st.sampled_from([0, 0, 4]),
    "review_share": st.sampled_from([0.1, 1.0]),
    "max_age": st.sampled_from([0, 0, 2, 6]),
    "max_uses": st.sampled_from([0, 0, 1, 3]),
    "cooldown": st.sampled_from([0, 0, 1, 4]),
    "max_drift": st.sampled_from([0.0, 0.0, 0.01, 0.1]),
    "capacity": st.sampled_from([1000, 1000, 1000, 15, 3, 0]),
    "capacity_per_question": st.sampled_from([1, 3, 8]),
    "start_pass_at_1": st.sampled_from([0.0, 0.0, 0.4]),
    "start_completions": st.sampled_from([1, 20]),
    "start_size": st.sampled_from([0, 0, 5]),
    "store_truncated": st.booleans(),
    "logp_dtype": st.sampled_from(["float32", "float16"]),
    "prefix_length": st.sampled_from(["fraction", "annealed", "controlled"]),
    "prefix_steps": st.sampled_from([1, 12]),
    "prefix_max_accuracy": st.sampled_from([0.0, 0.5, 1.0]),
    "admit_prefixed": st.booleans(),
    "age_decay": st.sampled_from([0.0, 5.0]),
    "advantage": st.sampled_from(["birth", "current"]),
}


def score(trajectories, step):
    """How the policy of a step would see trajectories: drift grows with age, the rest by their tokens."""
    scores = []
    for t in trajectories:
        noise = np.random.default_rng((int(t.digest) % 2**32, step)).random(4)
        drift = 0.05 * max(0, step - t.step) * noise[0]
        scores.append(PolicyStats(3 * noise[1], 2 * noise[2], noise[3], noise[3] ** 2 / 4, drift))
    return scores


class Run:
    """A planner, and a world that answers it: from (seed, generation, question, member) alone."""

    def __init__(self, config, seed, k, questions, store=None):
        self.config, self.seed, self.k, self.questions, self.events = config, seed, k, questions, []
        types = np.arange(questions) % 3 if config.by_problem_type else None
        stream = FreshStream(lambda p: np.random.default_rng((seed, p)).permutation(questions), questions)
        self.planner = ReplayPlanner(config, stream, k, seed, store, one_by_one(self.events.append), types)
        self.buffer = self.planner.buffer
        self.ability = np.random.default_rng((seed, 99)).random(questions) * 1.3

    def generation(self):
        """One more; answers with all that came of it."""
        counter = self.planner.iteration
        step = counter * 2 // 3  # some steps hold two generations
        plan = self.planner.plan(BATCH, step, counter * BATCH / self.questions, lambda ts: score(ts, step))
        if np.random.default_rng((self.seed, counter)).random() < 0.1:  # a reward function raised
            self.planner.abandon(plan)
            return plan, [], None, (plan.questions.tolist(), [c.serial for c in plan.choices], plan.idle)
        outcomes = np.stack([self._outcomes(counter, int(question)) for question in plan.questions])
        rescued = self.planner.rescue(plan, outcomes, lambda ts: score(ts, step))
        groups = [
            self._group(counter, int(question), row[: self.k - len(stored)], bool(replayed), plan.prefixes.get(place))
            for place, (question, row, stored, replayed) in enumerate(
                zip(plan.questions, outcomes, plan.replays, plan.replayed, strict=True)
            )
        ]
        self.planner.observe(plan, groups)
        self._measure(plan, rescued, step)
        wanted = [t for group in groups if group is not None for t in self._completions(counter, step, group)]
        admitted = self.planner.admit(wanted, groups)
        serials = [[choice.serial for choice in stored] for stored in plan.replays]
        return plan, rescued, groups, (
            plan.questions.tolist(), serials, plan.replayed.tolist(), [c.serial for c in plan.added], plan.idle,
            plan.refilled, plan.refused, plan.expired, plan.returned,
            [(r.group, r.member, r.choice.serial) for r in rescued], admitted,
        )  # fmt: skip

    def _outcomes(self, counter, question):
        draw = np.random.default_rng((self.seed, counter, question))
        outcomes = np.where(draw.random(self.k) < self.ability[question], RIGHT, WRONG)
        return np.where(draw.random(self.k) < 0.08, UNSCORABLE, outcomes)

    def _group(self, counter, question, outcomes, replayed, prefix=None):
        if not outcomes.size:
            return None
        known = outcomes[outcomes != UNSCORABLE]
        reward_std = float(np.float32(known.std())) if known.size and (counter + question) % 5 else np.nan
        return Group(question, outcomes, replayed, reward_std, 0 if prefix is None else prefix.length)

    def _completions(self, counter, step, group):
        for member, outcome in enumerate(group.outcomes.tolist()):
            draw = np.random.default_rng((self.seed, counter, group.question, member))
            finish = "length" if draw.random() < 0.2 else "stop"
            if outcome == UNSCORABLE or not self.planner.should_admit(group, outcome == RIGHT, finish):
                continue
            length = int(draw.integers(1, 4))
            yield Trajectory(
                group.question, draw.integers(0, 40, length), -3 * draw.random(length), np.array([float(outcome)]), step,
                finish, entropy=3 * draw.random() if draw.random() < 0.7 else np.nan, correct=outcome == RIGHT,
                advantage=outcome - group.successes / group.scorable if draw.random() < 0.9 else np.nan,
                embedding=draw.normal(size=3) if self.config.uses_quality else None,
            )  # fmt: skip

    def _measure(self, plan, rescued, step):
        """What the loss sees of the trajectories in the batch."""
        for choice in (*plan.choices, *(one.choice for one in rescued)):
            slot = self.buffer.find(choice.trajectory.question, choice.serial)
            if slot is not None:
                self.buffer.update_stats([slot], score([choice.trajectory], step), step)

    def copy(self):
        """Another process that has read what this one's experience is: by snapshot."""
        other = Run(self.config, self.seed, self.k, self.questions, copied(self.buffer.store))
        restore(other.buffer, snapshot_of(self.buffer))
        return other.going_on_from(self)

    def going_on_from(self, other):
        self.planner.restore(other.planner.state(0))
        self.planner.diversity = deepcopy(other.planner.diversity)
        return self


def copied(store):
    other = MemoryStore()
    other._trajectories = dict(store._trajectories)
    return other


class Watch:
    """Looks at every generation of a run and holds it to what its options promise."""

    def __init__(self, run):
        self.run, self.seen, self.fresh = run, 0, Counter()
        self.last_replay, self.replays, self.uses, self.drift, self.gone = {}, Counter(), Counter(), {}, set()

    def look(self, plan, rescued, groups):
        config, buffer = self.run.config, self.run.buffer
        new, self.seen = self.run.events[self.seen :], len(self.run.events)
        questions = plan.questions.tolist()
        assert len(set(questions)) == BATCH
        stored = [(q, choice) for q, group in zip(questions, plan.replays, strict=True) for choice in group]
        assert all(choice.trajectory.question == question for question, choice in stored)
        assert len({choice.serial for choice in plan.choices}) == len(plan.choices)
        self._number(plan)
        chosen = [*plan.choices, *(one.choice for one in rescued)]
        for choice in chosen:
            assert not config.max_age or plan.step - choice.trajectory.step <= config.max_age
            assert not config.max_uses or choice.uses < config.max_uses
            assert choice.trajectory.question not in self.gone
        for one in rescued:
            assert one.choice.trajectory.correct
            assert not groups[one.group].successes
        self._events(plan, new)
        if groups is not None:
            self.fresh.update(
                question for question, replayed in zip(questions, plan.replayed, strict=True) if not replayed
            )
        assert len(buffer) <= config.capacity
        assert (buffer.count <= config.capacity_per_question).all()
        assert set(buffer.replayable().tolist()) == {q for q in range(self.run.questions) if self._replayable(q)}

    def _number(self, plan):
        config, n = self.run.config, plan.num_replayed
        if config.mixing in ("rescue", "none"):
            assert n == 0
            return
        assert (plan.idle is None) == (n > 0), "idle says why, and only then"
        assert plan.idle is None or len(plan.idle) > 10
        assert plan.refused == 0 or config.max_drift
        assert bool(plan.added) <= (config.mixing == "added")
        if config.mixing == "added":
            assert not plan.replayed.any()
        if config.mixing != "coin" and config.schedule == "constant":
            assert n <= replay_count(BATCH, config.replay_share)
        assert all(len(group) <= min(config.replays_per_group, self.run.k) for group in plan.replays)
        assert all(bool(group) == (bool(replayed) and config.mixing not in ("prompt", "prefix"))
                   for group, replayed in zip(plan.replays, plan.replayed, strict=True))  # fmt: skip

    def _events(self, plan, new):
        """In the order in which they happened."""
        config, replayed_now = self.run.config, set()
        for event in new:
            if isinstance(event, Measured):
                self.drift[event.serial] = event.drift
            elif isinstance(event, Replayed):
                self._replayed(event.question, plan.step, replayed_now)
                self.uses[event.serial] += 1
                assert not config.max_uses or self.uses[event.serial] <= config.max_uses
                assert not config.max_drift or self.drift.get(event.serial, 0.0) <= config.max_drift * 1.001
            elif isinstance(event, Observed) and event.replayed and config.mixing in ("prompt", "prefix"):
                self._replayed(event.question, plan.step, replayed_now)
                assert (
                    not config.max_uses or config.mixing == "prefix" or self.replays[event.question] <= config.max_uses
                )
            elif isinstance(event, Retired):
                self.gone.add(event.question)
            elif isinstance(event, Admitted):
                self._admitted(event.trajectory)
            elif type(event).__name__ == "Returned":
                self.gone.discard(event.question)
            elif isinstance(event, Evicted):
                assert event.reason in ("retired", "age", "uses", "capacity", "capacity_per_question")

    def _replayed(self, question, step, replayed_now):
        if question in replayed_now:  # another member of the same group
            return
        replayed_now.add(question)
        assert question not in self.gone
        if self.run.config.cooldown and question in self.last_replay:
            assert step - self.last_replay[question] > self.run.config.cooldown
        self.last_replay[question] = step
        self.replays[question] += 1

    def _admitted(self, t):
        config = self.run.config
        assert t.question not in self.gone
        assert t.finish_reason == "stop" or config.store_truncated
        assert t.correct or config.admission in ("all", "quality")
        assert config.admission != "quality" or t.quality > config.min_quality
        assert config.uses_quality == (t.quality == t.quality)

    def _replayable(self, question):
        config, buffer, step = self.run.config, self.run.buffer, self.run.buffer.now
        if not buffer.questions.scorable[question] or buffer.retired[question]:
            return False
        if config.cooldown and question in self.last_replay and step - self.last_replay[question] <= config.cooldown:
            return False
        if config.mixing == "prompt":
            return not config.max_uses or self.replays[question] < config.max_uses
        return bool(buffer.count[question])

    def no_question_was_dropped(self):
        """Over the passes so far, each question that stayed in the stream was fresh once a pass, but for those that wait."""
        stream = self.run.planner.stream
        ever_retired = {event.question for event in self.run.events if isinstance(event, Retired)}
        waiting, passed = Counter(stream.deferred), Counter(stream._order[: stream.cursor].tolist())
        left = set() if self.run.config.retired_in_stream else ever_retired
        for question in set(range(self.run.questions)) - left:
            assert self.fresh[question] + waiting[question] == stream.pass_number + passed[question]


def allowed(options):
    """Options that go together."""
    if options["mixing"] in ("rescue", "none"):
        options = {**options, "schedule": "constant"}
    if options["mixing"] == "prompt":
        choice = options["question_choice"]
        options = {**options, "start_size": 0, "question_choice": "uniform" if choice == "headroom" else choice}
    return options


@pytest.mark.slow
@pytest.mark.parametrize("mixing", [mixing for mixing in MIXINGS if mixing != "none"])
@settings(max_examples=15)
@given(
    st.fixed_dictionaries(OPTIONS), st.integers(0, 5), st.sampled_from([4, 2, 8]), st.integers(1, GENERATIONS - 1),
    st.sampled_from([24, 9, 6]),
)  # fmt: skip
def test_any_options_together(mixing, options, seed, k, middle, questions):
    config = ReplayConfig(**allowed({**options, "mixing": mixing}))
    run = Run(config, seed, k, questions)
    watch, rank = Watch(run), Run(config, seed, k, questions)
    replica = Run(config, seed, k, questions, run.buffer.store)
    applied, snapshot, late = 0, None, []
    for generation in range(GENERATIONS):
        if generation == middle:
            snapshot = run.copy()
        plan, rescued, groups, history = run.generation()
        watch.look(plan, rescued, groups)
        np.random.seed(generation)  # noqa: NPY002  whatever a global generator did meanwhile
        assert rank.generation()[3] == history, "two ranks plan alike"
        if snapshot is not None:
            assert snapshot.generation()[3] == history, "a restored planner goes on alike"
        for event in run.events[applied:]:
            apply(replica.buffer, event)
        applied = len(run.events)
        fingerprint = fingerprint_of(run.buffer)
        assert fingerprint_of(replica.buffer) == fingerprint, "the buffer follows from its events"
        late.append(history)
    watch.no_question_was_dropped()
    assert fingerprint_of(rank.buffer) == fingerprint_of(snapshot.buffer) == fingerprint_of(run.buffer)
    assert asdict(rank.planner.state(0)) == asdict(snapshot.planner.state(0)) == asdict(run.planner.state(0))
    replica.buffer.store = copied(run.buffer.store)
    replica.going_on_from(run)
    for _ in range(3):
        assert replica.generation()[3] == run.generation()[3], "and plans as it would have"
    assert fingerprint_of(replica.buffer) == fingerprint_of(run.buffer)
