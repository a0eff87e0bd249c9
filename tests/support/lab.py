"""A planner for tests: what happens to its questions is told in shorthand, every event is kept, no host is needed."""

import math

import numpy as np

from exgrpo.config import ReplayConfig
from exgrpo.experience import RIGHT, WRONG, Group, Trajectory
from exgrpo.experience.events import one_by_one
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.replay import FreshStream, ReplayPlanner

NAN = math.nan


def trajectory(question, name, step=0, logps=(-1.0, -1.0), **fields):
    """A completion whose first token is `name`."""
    ids = np.array([name, *[question] * (len(logps) - 1)])
    return Trajectory(question, ids, np.array(logps), np.array([1.0]), step, **fields)


def name_of(one):
    return int(one.completion_ids[0])


class Table:
    """A scorer: `PolicyStats` from a table by name; keeps what it was asked."""

    def __init__(self, **columns):
        self.columns = columns
        self.calls = []

    def __call__(self, trajectories):
        names = [name_of(t) for t in trajectories]
        self.calls.append(names)
        return [PolicyStats(**{column: values[name] for column, values in self.columns.items()}) for name in names]


class Lab:
    """A planner over `questions` questions with K = `k`; the gate is open unless options say otherwise."""

    def __init__(self, questions=20, k=8, seed=0, types=None, scorer=None, **options):
        self.k, self.events, self.step = k, [], 0
        self.scorer = scorer
        self.config = ReplayConfig(**{"start_pass_at_1": 0.0, **options})
        stream = FreshStream(lambda p: np.random.default_rng((seed, p)).permutation(questions), questions)
        self.planner = ReplayPlanner(self.config, stream, k, seed, listener=one_by_one(self.events.append), types=types)
        self.buffer = self.planner.buffer

    def plan(self, batch_size=4, epoch=0.0, step=None):
        self.step = self.step + 1 if step is None else step
        return self.planner.plan(batch_size, self.step, epoch, self.scorer)

    def know(self, question, successes=4, scorable=None, reward_std=NAN):
        """The question was observed."""
        self.buffer.observe(question, successes, self.k if scorable is None else scorable, reward_std)

    def store(self, question, *names, successes=4, scorable=None, reward_std=NAN, step=0, **fields):
        """The question was observed, and these completions of it are stored."""
        self.know(question, successes, scorable, reward_std)
        for name in names:
            assert self.buffer.admit([trajectory(question, name, step, **fields)])[0] is not None

    def observe(self, plan, right=None, reward_std=NAN):
        """Fresh completions: `right` of question -> how many are right; half of those of the others."""
        groups = []
        for question, stored, replayed in zip(plan.questions.tolist(), plan.replays, plan.replayed, strict=True):
            fresh = self.k - len(stored)
            n = (right or {}).get(question, fresh // 2)
            outcomes = np.array([RIGHT] * n + [WRONG] * (fresh - n))
            groups.append(Group(question, outcomes, bool(replayed), reward_std) if fresh else None)
        self.planner.observe(plan, groups)
        return groups

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def replayed(plan):
    return plan.questions[plan.replayed].tolist()


def fresh(plan):
    return plan.questions[~plan.replayed].tolist()


def added(plan):
    return [choice.trajectory.question for choice in plan.added]
