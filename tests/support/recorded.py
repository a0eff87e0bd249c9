"""A run of a planner as data: recorded under a host, driven again by the core alone.

`python -m tests.support.recorded FILE` drives what FILE holds and prints what was planned; it must do without torch.
"""

import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from exgrpo.config import ReplayConfig
from exgrpo.experience import Group, Trajectory
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.replay import FreshStream, ReplayPlanner

HOSTS = ("torch", "transformers", "trl", "accelerate", "datasets")


def trajectory_as_data(t):
    return {f.name: as_data(getattr(t, f.name)) for f in fields(Trajectory)}


def group_as_data(group):
    if group is None:
        return None
    return [group.question, group.outcomes.tolist(), group.replayed, group.reward_std]


def as_data(value):
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def scores_as_data(scores):
    return [asdict(one) for one in scores]


def plan_as_data(plan):
    """All that a plan says, but for token arrays."""
    return [
        plan.iteration, plan.step, plan.questions.tolist(), [[c.serial for c in group] for group in plan.replays],
        plan.replayed.tolist(), [c.serial for c in plan.added], plan.refilled, plan.idle, plan.refused, plan.expired,
        plan.returned,
    ]  # fmt: skip


def rescues_as_data(rescues):
    return [[one.group, one.member, one.choice.serial] for one in rescues]


class Recorder:
    """Stands before a planner's methods and writes down every call, what the host's scorer answered, and what came back."""

    def __init__(self, planner):
        self.planner, self.calls, self.answers, self.inside = planner, [], [], False
        self.passes = []
        for name in ("plan", "rescue", "observe", "admit", "abandon"):
            setattr(planner, name, getattr(self, name)(getattr(planner, name)))
        planner.buffer.update_stats = self.measured(planner.buffer.update_stats)

    def listening(self, score):
        def scorer(trajectories):
            found = score(trajectories)
            self.answers.append(scores_as_data(found))
            return found

        return scorer

    def outer(self, function, *args):
        self.answers, self.inside = [], True
        try:
            return function(*args)
        finally:
            self.inside = False

    def plan(self, inner):
        def call(batch_size, step, epoch, score):
            plan = self.outer(inner, batch_size, step, epoch, self.listening(score))
            self.calls.append(["plan", [batch_size, step, epoch], self.answers, plan_as_data(plan)])
            return plan

        return call

    def rescue(self, inner):
        def call(plan, outcomes, score):
            found = self.outer(inner, plan, outcomes, self.listening(score))
            self.calls.append(["rescue", outcomes.tolist(), self.answers, rescues_as_data(found)])
            return found

        return call

    def observe(self, inner):
        def call(plan, groups):
            self.calls.append(["observe", [group_as_data(group) for group in groups]])
            return inner(plan, groups)

        return call

    def admit(self, inner):
        def call(trajectories, groups=()):
            admitted = inner(trajectories, groups)
            told = [[trajectory_as_data(t) for t in trajectories], [group_as_data(group) for group in groups]]
            self.calls.append(["admit", told, admitted])
            return admitted

        return call

    def abandon(self, inner):
        def call(plan):
            self.calls.append(["abandon"])
            return inner(plan)

        return call

    def measured(self, inner):
        def call(slots, scores, step):
            if not self.inside:
                column = self.planner.buffer.column
                who = [[int(column("question")[slot]), int(column("serial")[slot])] for slot in slots]
                self.calls.append(["measured", who, scores_as_data(scores), step])
            return inner(slots, scores, step)

        return call

    def written_to(self, path, permutations, types):
        planner = self.planner
        data = {
            "config": asdict(planner.config), "num_generations": planner.num_generations, "seed": planner.seed,
            "permutations": [order.tolist() for order in permutations],
            "types": None if types is None else types.tolist(), "calls": self.calls,
        }  # fmt: skip
        Path(path).write_text(json.dumps(data))


def drive(data):
    """A fresh planner through recorded calls; answers with what it planned and what its experience is at the end."""
    orders = data["permutations"]
    stream = FreshStream(lambda number: np.array(orders[number]), len(orders[0]))
    types = None if data["types"] is None else np.array(data["types"])
    config = ReplayConfig(**data["config"])
    planner = ReplayPlanner(config, stream, data["num_generations"], data["seed"], types=types)
    plan, came, buffer = None, [], planner.buffer
    for what, *told in data["calls"]:
        if what == "plan":
            arguments, answers, _ = told
            plan = planner.plan(*arguments, scorer_of(answers))
            came.append(plan_as_data(plan))
        elif what == "rescue":
            came.append(rescues_as_data(planner.rescue(plan, np.array(told[0]), scorer_of(told[1]))))
        elif what == "observe":
            planner.observe(plan, [group_of(group) for group in told[0]])
        elif what == "admit":
            trajectories, groups = told[0]
            came.append(planner.admit([Trajectory(**t) for t in trajectories], [group_of(g) for g in groups]))
        elif what == "abandon":
            planner.abandon(plan)
        else:
            who, scores, step = told
            buffer.update_stats([buffer.find(*one) for one in who], [PolicyStats(**one) for one in scores], step)
    return {"came": came, "fingerprint": fingerprint_of(buffer), "state": asdict(planner.state(0))}


def scorer_of(answers):
    """What the host's scorer answered, in turn."""
    waiting = list(answers)
    return lambda trajectories: [PolicyStats(**one) for one in waiting.pop(0)]


def group_of(data):
    return None if data is None else Group(data[0], np.array(data[1]), *data[2:])


def main():
    found = drive(json.loads(Path(sys.argv[1]).read_text()))
    loaded = [name for name in HOSTS if name in sys.modules]
    sys.stdout.write(json.dumps(found | {"loaded": loaded}))


if __name__ == "__main__":
    main()
