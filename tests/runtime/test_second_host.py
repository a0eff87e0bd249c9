"""A second host on the runtime: verl's eight hooks as stubs, on columns that were recorded under TRL.

Its rows come as columns in any order, its log-probs and entropies at once for all rows, and it finishes before it updates. The
experience that it ends with is TRL's.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.log import LogReader
from exgrpo.objective.loss import RatioStats
from exgrpo.runtime.comm import SingleProcess
from exgrpo.runtime.context import Progress
from exgrpo.runtime.session import ExperienceSession
from exgrpo.runtime.step import ReplayStep, Stage
from tests.support import harness as h
from tests.support.threads import on_ranks, tokens_everywhere

STEPS = 6
PRESETS = {
    "exgrpo": {},
    "rescue": {"preset": "rescue"},
    "headroom-drift": {"preset": "headroom-drift", "max_drift": 0.5},
    "nothing is admitted": {"capacity": 0},
}


@pytest.fixture(autouse=True)
def scripted(monkeypatch):
    monkeypatch.setattr(h.GRPOTrainer, "_generate_single_turn", h.scripted_generation)


def script(generation, prompt, member):
    i = int(prompt[1:].split("=")[0])
    right = (i + generation) % 5
    return f"{'abcdefgh'[(member + generation) % 8]}{i}$" if member < right else f"{'zyxw'[member]}{generation}$"


class Columns:
    """What TRL's forwards and rewards were in each iteration, as columns of all rows."""

    def __init__(self, monkeypatch):
        self.iterations, self.answers = [], []
        inner_score, inner_record = ReplayStep.score, ReplayStep.record

        def score(step, rewards, ids, finish):
            self.iterations.append(
                {"rewards": rewards.clone().numpy(), "ids": [list(i) for i in ids], "finish": list(finish)}
            )
            return inner_score(step, rewards, ids, finish)

        def record(step, rows, logps=None, entropies=None, mask=None, ratios=None, fillers=()):
            kept = [None if value is None else value.detach().numpy().copy() for value in (logps, entropies, mask)]
            self.iterations[-1].setdefault("forwards", []).append((list(rows), *kept, ratios))
            inner_record(step, rows, logps, entropies, mask, ratios, fillers)

        monkeypatch.setattr(ReplayStep, "score", score)
        monkeypatch.setattr(ReplayStep, "record", record)


class ColumnHost:
    """verl's trainer as far as it matters: eight hooks around an iteration whose rows are shuffled columns."""

    def __init__(self, context, comm, recorded, seed=0):
        self.comm, self.recorded, self.number = comm, recorded, 0
        self.rng = np.random.default_rng(seed + comm.rank)
        answers = iter(recorded.answers)
        self.context = replace(
            context, progress=lambda: Progress(self.number, 0), score=lambda trajectories: next(answers)
        )  # fmt: skip
        self.session = ExperienceSession(self.context, comm)
        self.planner, _ = self.session.open(self.session.new_planner(), None, None)
        self.metrics = []

    trainer_mode = "sync"  # h

    def fit(self, questions):
        for number in range(len(self.recorded.iterations)):
            self.number = number
            self._step_once(questions)
        with tokens_everywhere(self.planner.buffer, self.comm):
            self.fingerprint = fingerprint_of(self.planner.buffer)
        self.session.close(self.planner, done=True)
        return self

    def _fetch_one_gen_batch(self, questions):  # a: retired questions are the planner's business
        return self.step.plan(questions, self.number)

    def _next_train_batch(self, questions):  # b: K - 1 rollouts of a replayed question
        self.step = ReplayStep(self.context, self.comm, self.planner, self.session)
        batch = self._fetch_one_gen_batch(questions)
        return [row for row in batch.rows if row not in batch.stored]

    def _submit_batch_to_rollout(self, fresh):  # c: stored rows stand beside the fresh ones; rewards come with them
        now, batch = self.recorded.iterations[self.number], self.step.batch
        rows = np.array(self.rng.permutation([*fresh, *(row for row in batch.rows if row in batch.stored)]))
        return {
            "row": rows,
            "ids": [now["ids"][row] for row in rows],
            "finish": [now["finish"][row] for row in rows],
            "rewards": now["rewards"][rows],
        }

    def _compute_old_log_prob(self, columns):  # d: everything of all rows at once, in the host's order
        order = np.argsort(columns["row"])
        ids, finish = ([columns[name][place] for place in order] for name in ("ids", "finish"))
        rewards = np.concatenate(self.comm.gather(columns["rewards"][order]))
        scored = self.step.score(torch.as_tensor(rewards), ids, finish)
        advantages = self.step.advantages(scored)
        for rows, logps, entropies, mask, ratios in self.recorded.iterations[self.number].get("forwards", []):
            held = {*self.step.batch.rows, *(self.step.batch.added if not self.comm.rank else ())}
            places = [place for place in self.rng.permutation(len(rows)) if rows[place] in held]
            part = ratios and RatioStats(*(getattr(ratios, name)[places] for name in RatioStats.__dataclass_fields__))
            picked = [None if value is None else value[places] for value in (logps, entropies, mask)]
            self.step.record([rows[place] for place in places], *picked, part)
        stored = self.step.columns(max(map(len, scored.completion_ids)))
        replayed = stored["replay_mask"].numpy()[columns["row"] - self.step.batch.offset]
        return {
            **columns,
            "advantages": advantages.numpy()[columns["row"] - self.step.batch.offset],
            "replay_mask": replayed,
        }

    def _compute_advantage(self, columns):  # e: the host's own are written over
        return columns["advantages"]

    def _step_once(self, questions):  # f: finished once all rows were seen, before the update
        columns = self._compute_old_log_prob(self._submit_batch_to_rollout(self._next_train_batch(questions)))
        assert np.isfinite(self._compute_advantage(columns)).all()
        self.metrics.append(self.step.metrics | self.step.finish())

    def _save_checkpoint(self, folder):  # g
        return self.session.checkpoint(self.planner, folder)


def recorded(tmp_path, monkeypatch, options):
    """A run under TRL, its columns, and what its planner came to."""
    columns = Columns(monkeypatch)
    args = h.config(
        tmp_path / "trl", max_steps=STEPS, start_pass_at_1=0.0, skip_rows=False, learning_rate=1e-2, **options
    )
    trainer = h.trainer(args, h.questions(20), script=script)
    inner = trainer._scores
    monkeypatch.setattr(trainer, "_scores", lambda asked: columns.answers.append(inner(asked)) or columns.answers[-1])
    trainer.train()
    monkeypatch.undo()
    assert all(isinstance(one, PolicyStats) for scores in columns.answers for one in scores)
    return trainer, columns


def contents(path):
    with LogReader(path) as reader:
        return list(reader.rows("SELECT key, step, length, rewards, entropy FROM experience ORDER BY id"))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_hooks_of_another_host_leave_the_same_experience(tmp_path, monkeypatch, name, world_size):
    trainer, columns = recorded(tmp_path, monkeypatch, PRESETS[name])
    context = replace(trainer.experience.context, log_path=tmp_path / "second.db")
    questions = trainer.args.generation_batch_size // trainer.num_generations

    def work(comm):
        return ColumnHost(context, comm, columns).fit(questions)

    hosts = [work(SingleProcess())] if world_size == 1 else on_ranks(world_size, work)
    for host in hosts:
        assert host.fingerprint == fingerprint_of(trainer.planner.buffer)
        assert host.planner.state(0) == trainer.planner.state(0)
    assert contents(tmp_path / "second.db") == contents(trainer.args.experience_path)
    logged = [row for row in trainer.state.log_history if "loss" in row]
    for ours, theirs in zip(hosts[0].metrics, logged, strict=True):
        for metric in ours.keys() & theirs.keys():
            assert ours[metric] == pytest.approx(theirs[metric], rel=1e-5, abs=1e-6), metric
    if world_size > 1:
        assert hosts[0].comm.calls == hosts[1].comm.calls
        assert hosts[0].comm.calls.count("gather") == STEPS  # the host's own for the rewards
        assert hosts[0].comm.calls.count("to_main") == STEPS  # one to finish


def test_each_call_comes_once_and_in_order(tmp_path):
    trainer = h.trainer(h.config(tmp_path, experience_log="none"), h.questions(20))
    step = ReplayStep(trainer.experience.context, SingleProcess(), trainer.planner)
    with pytest.raises(ValueError, match=r"new cannot become finished: each call comes once, in the order plan, score"):
        step.finish()
    step.plan(8, 0)
    with pytest.raises(ValueError, match="planned cannot become planned"):
        step.plan(8, 0)
    fresh = step.batch.plan.questions.tolist()
    step.abandon()
    assert step.stage is Stage.ABANDONED
    assert trainer.planner.stream.deferred == fresh
