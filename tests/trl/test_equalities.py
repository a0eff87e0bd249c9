"""What must be bit for bit the same: the host without replay, the same seed twice, state before and after evaluation."""

import hashlib

import pytest
import torch

from exgrpo.experience.events import Admitted, Observed, Replayed
from exgrpo.experience.replayed import fingerprint_of
from tests.support import harness as h
from trl import GRPOConfig, GRPOTrainer


def parameters_hash(trainer) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
    return digest.hexdigest()


def length_reward(prompts, completions, right, **kwargs):
    """A reward that real sampling earns by luck."""
    return [float("1" in c) for c in completions]


def long_enough(tmp_path, cls, **options):
    return h.config(
        tmp_path, cls, num_train_epochs=3, max_steps=-1, per_device_train_batch_size=8, gradient_accumulation_steps=4,
        learning_rate=3e-3, **options,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    [
        {},
        {"loss_type": "dapo", "scale_rewards": "group"},
        {"num_iterations": 2},
        {"steps_per_generation": 8, "beta": 0.02},
        {"loss_type": "cispo", "epsilon_high": 5.0},
    ],
)
def test_on_policy_is_the_host_bit_for_bit(tmp_path, host):
    """Over three epochs of 36 questions, of which the host drops the short last batch; all rows computed, as it does."""
    model = h.tiny_model(1)
    model.save_pretrained(tmp_path / "start")
    runs = []
    for cls, kind, extra in (
        (GRPOConfig, GRPOTrainer, {}),
        (h.ExGRPOConfig, h.ExGRPOTrainer, {"preset": "on-policy", "skip_rows": False}),
        (
            h.ExGRPOConfig,
            h.ExGRPOTrainer,
            {"preset": "positive-weight", "positive_weight": 1.0, "skip_rows": False},
        ),
    ):
        trainer = h.trainer(
            long_enough(tmp_path, cls, **host, **extra), h.questions(36), model=str(tmp_path / "start"),
            reward=length_reward, cls=kind,
        )  # fmt: skip
        trainer.train()
        history = [log["loss"] for log in trainer.state.log_history if "loss" in log]
        runs.append((parameters_hash(trainer), history, trainer.state.global_step))
    assert runs[0] == runs[1] == runs[2]
    assert any(runs[0][1])


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["exgrpo", "rescue", "positive-weight"])
def test_the_same_seed_twice_is_bit_equal_and_another_is_not(tmp_path, preset):
    def run(seed):
        args = h.config(
            tmp_path, max_steps=12, seed=seed, preset=preset, start_pass_at_1=0.0, per_device_train_batch_size=16,
            gradient_accumulation_steps=2, learning_rate=3e-4,
        )  # fmt: skip
        trainer = h.trainer(args, h.questions(20), reward=length_reward, model=h.tiny_model(1))
        trainer.train()
        buffer = trainer.planner and fingerprint_of(trainer.planner.buffer)
        return parameters_hash(trainer), buffer, [type(e).__name__ for e in trainer.events]

    first = run(7)
    assert first == run(7)
    assert first != run(8)
    if preset != "positive-weight":
        assert {"Admitted", "Observed", "Replayed"} <= set(first[2])


def test_evaluation_touches_no_experience(tmp_path):
    """All of it hashes the same before and after `evaluate()`, also between two steps [FAULTS 5]."""

    def script(generation, prompt, member):
        return f"{'abcd'[member]}{prompt[1:-1]}$" if member < 2 else "z$"

    args = h.config(
        tmp_path, max_steps=4, start_pass_at_1=0.0, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=16,
        max_completion_length=4,
    )  # fmt: skip
    trainer = h.trainer(args, h.questions(24), script=script, eval_dataset=h.questions(8))
    evaluate, evaluations = trainer.evaluate, []

    def watched(*a, **k):
        before = state(trainer)
        metrics = evaluate(*a, **k)
        evaluations.append(before == state(trainer))
        return metrics

    trainer.evaluate = watched
    trainer.train()
    assert evaluations == [True] * 4
    assert trainer.events.of(Replayed)
    metrics = trainer.evaluate()
    assert evaluations[-1]
    assert "eval_reward" in metrics
    assert not any(name.startswith(("eval_replay/", "eval_fresh/")) for name in metrics)


def state(trainer):
    planner = trainer.planner
    stream = planner.stream
    return (
        fingerprint_of(planner.buffer), planner.iteration, planner.gate.pass_at_1, planner.gate.open, stream.cursor,
        stream.pass_number, list(stream.deferred), trainer.generated_tokens, len(trainer.events),
    )  # fmt: skip


@pytest.mark.slow
def test_global_random_state_is_not_the_buffers(tmp_path):
    """Draws depend on (seed, generation) alone: disturbing every global generator changes nothing [FAULTS 37]."""
    import random

    import numpy as np

    def script(generation, prompt, member):
        return f"{'abcd'[member]}{prompt[1:-1]}$" if member < 2 else "z$"

    replays = []
    for disturb in (False, True):
        args = h.config(tmp_path, max_steps=6, start_pass_at_1=0.0, learning_rate=0.0)
        trainer = h.trainer(args, h.questions(24), script=script)
        plan = trainer.planner.plan

        def disturbed(*a, plan=plan, disturb=disturb, **k):
            if disturb:
                torch.rand(3), random.random(), np.random.rand(3)  # noqa: NPY002
            return plan(*a, **k)

        trainer.planner.plan = disturbed
        trainer.train()
        replays.append([(e.generation, e.question, e.serial) for e in trainer.events.of(Replayed)])
    assert replays[0] == replays[1] != []


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"steps_per_generation": 4, "gradient_accumulation_steps": 1},
        {"steps_per_generation": 4, "gradient_accumulation_steps": 2},
        {"steps_per_generation": 2, "gradient_accumulation_steps": 4},
        {"num_iterations": 2, "steps_per_generation": 4, "gradient_accumulation_steps": 4},
        {"num_iterations": 3, "steps_per_generation": 2, "gradient_accumulation_steps": 1},
    ],
)
def test_generation_and_optimisation_out_of_step(tmp_path, options):
    """Several updates a generation, several generations an update: each success is stored once, with the log-probs of the
    policy that generated it."""
    policies = {}

    class Watching(h.ExGRPOTrainer):
        def _plan(self, step, inputs):
            rows = super()._plan(step, inputs)
            policies[step.batch.plan.iteration] = {k: v.clone() for k, v in self.model.state_dict().items()}
            return rows

    def script(generation, prompt, member):
        return f"{'abcd'[member]}{prompt[1:-1]}$" if member < 2 else f"z{generation}$"

    args = h.config(
        tmp_path, max_steps=8, start_pass_at_1=0.0, per_device_train_batch_size=8, learning_rate=5e-3, **options
    )
    trainer = h.trainer(args, h.questions(40), script=script, cls=Watching)
    trainer.train()
    observed = trainer.events.of(Observed)
    generations = max(e.generation for e in observed) + 1
    admitted = trainer.events.of(Admitted)
    by_generation = {}
    for event in trainer.events:  # admissions of a generation follow its observations
        if isinstance(event, Observed):
            current = event.generation
        elif isinstance(event, Admitted):
            by_generation[event.serial] = current
    complete = max(by_generation.values()) + 1
    assert complete >= generations - 1
    fresh = {e.question for e in observed if e.generation < complete}
    assert {e.trajectory.question for e in admitted} == fresh
    assert len(admitted) == 2 * len(fresh)
    plain = h.tiny_model()
    for event in admitted:
        plain.load_state_dict(policies[by_generation[event.serial]])
        t = event.trajectory
        logps, _ = h.score_alone(plain, trainer.questions.prompt_ids(t.question), t.completion_ids.tolist())
        assert torch.allclose(torch.tensor(t.behaviour_logps.copy()), torch.tensor(logps).float(), atol=3e-5)
    assert trainer.events.of(Replayed)
