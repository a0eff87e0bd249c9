"""Loss and gradient through the trainer equal a slow reference in float64: one sequence at a time, plain log_softmax.

The reference takes from the trainer only what happened (which completion, which reward, what was stored), never a column
of the batch that our code computed.
"""

import copy
import math
import re

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from exgrpo.experience.events import Admitted, one_by_one
from exgrpo.experience.trajectory import Trajectory
from tests.support import harness as h


def at_level(log_w: torch.Tensor, level: str) -> torch.Tensor:
    """Log-ratios of a completion's tokens, or the mean of them on each."""
    return log_w.mean().expand_as(log_w) if level == "sequence" else log_w


def fresh_gain(logp, log_old, advantage: float, args, engine=None) -> torch.Tensor:
    """What the tokens of a fresh completion contribute: PPO's clip, or CISPO's; `engine`: its log-probs where vLLM sampled."""
    w = at_level(logp - log_old, args.importance_sampling_level).exp()
    if args.loss_type == "cispo":
        gain = w.detach().clamp(max=args.epsilon_high or args.epsilon) * advantage * logp
    else:
        gain = torch.minimum(w * advantage, w.clamp(1 - args.epsilon, 1 + args.epsilon) * advantage)
    if engine is None:
        return gain
    ratio = log_old - engine
    return gain * (ratio.sum() if "sequence" in args.vllm_importance_sampling_mode else ratio).exp().clamp(max=3.0)


def token_gain(log_w: torch.Tensor, logp: torch.Tensor, advantage: float, objective) -> torch.Tensor:
    """What a replayed token contributes, straight from the formulas."""
    w = log_w.exp()
    if objective.correction == "shaped":
        return w / (w + objective.shaping_beta) * advantage
    if objective.correction == "clip":
        return torch.minimum(w * advantage, w.clamp(0.8, 1.2) * advantage)
    if objective.correction == "truncated":
        return w.detach().clamp(max=objective.truncation) * advantage * logp
    return advantage * logp


def logps_of(model, prompt, completion, temperature):
    ids = torch.tensor([[*prompt, *completion]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0]


def advantages_of(rewards: list[float], weight: float, scale: str) -> list[float]:
    known = [r for r in rewards if not math.isnan(r)]
    if not known or max(known) == min(known):
        return [0.0] * len(rewards)
    mean = sum(known) / len(known)
    std = (sum((r - mean) ** 2 for r in known) / (len(known) - 1)) ** 0.5 + 1e-4 if scale == "group" else 1.0
    found = [0.0 if math.isnan(r) else (r - mean) / std for r in rewards]
    return [a * weight if a > 0 else a for a in found]


class Reference(TrainerCallback):
    """Before each optimizer step, computes the gradient that should stand there, and keeps both."""

    def __init__(self):
        self.compared = []
        self.ratios = []
        self.fresh_ratios = []
        self.sampled_by = None, None

    def attach(self, trainer):
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        trainer, objective = self.trainer, self.trainer.args.objective
        generation = trainer._iteration
        trained = trainer.accelerator.unwrap_model(trainer.model)
        model = type(trained)(copy.deepcopy(trained.config)).double()  # a fresh one: TRL patched the other's forward
        model.load_state_dict(trained.state_dict())
        frozen = copy.deepcopy(model)
        if self.sampled_by[0] is not generation:  # the first update of a generation: this policy sampled it
            self.sampled_by = generation, copy.deepcopy(model)
        sampler = self.sampled_by[1]
        if args.beta:
            frozen.load_state_dict(trainer.accelerator.unwrap_model(trainer.ref_model).state_dict())
        k, questions = trainer.num_generations, trainer.questions
        rewards = (generation.scored.rewards.double() @ trainer.reward_weights.double()).tolist()
        sequences = {
            row: (questions.prompt_ids(generation.batch.question_of(row)), generation.scored.completion_ids[row])
            for row in range(generation.batch.size)
        }
        begun = generation.batch.plan.prefixes
        skip = {row: begun[row // k].length if row // k in begun else 0 for row in sequences}  # not learned from
        total_tokens = sum(len(ids) - skip[row] for row, (_, ids) in sequences.items())
        loss = torch.zeros((), dtype=torch.float64)
        for group in range(generation.batch.size // k):
            rows = range(group * k, group * k + k)
            credits = advantages_of([rewards[r] for r in rows], objective.positive_weight, args.scale_rewards)
            for row, advantage in zip(rows, credits, strict=True):
                prompt, ids = sequences[row]
                logp = logps_of(model, prompt, ids, trainer.temperature)[skip[row] :]
                if row in generation.batch.stored:
                    stored = trainer.behaviour[generation.batch.stored[row][0].serial]
                    log_w = logp - torch.tensor(stored.behaviour_logps.astype(np.float64))
                    self.ratios += log_w.detach().tolist()
                    log_w = at_level(log_w, args.importance_sampling_level)
                    gain = token_gain(log_w, logp, advantage, objective).sum()
                else:
                    log_old = logps_of(sampler, prompt, ids, trainer.temperature).detach()[skip[row] :]
                    self.fresh_ratios += (logp - log_old).detach().tolist()
                    engine = trainer.engine(row, ids) if hasattr(trainer, "engine") else None
                    gain = fresh_gain(logp, log_old, advantage, args, engine).sum()
                    if args.beta:  # of fresh rows alone
                        log_reference = logps_of(frozen, prompt, ids, trainer.temperature).detach()[skip[row] :] - logp
                        ratio = (logp - logp.detach()).exp() if args.use_bias_correction_kl else 1.0
                        gain = gain - args.beta * (ratio * (log_reference.exp() - log_reference - 1)).sum()
                norm = {
                    "dr_grpo": generation.batch.size * trainer.max_completion_length,
                    "grpo": generation.batch.size * (len(ids) - skip[row]),
                    "dapo": total_tokens,
                    "cispo": total_tokens,
                }[args.loss_type]
                loss = loss - gain / norm
        loss.backward()
        expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        actual = {name: p.grad.double() for name, p in trainer.model.named_parameters() if p.grad is not None}
        self.compared.append((loss.item(), expected, actual))

    def check(self, atol: float):
        assert self.compared
        for _, expected, actual in self.compared:
            scale = max(g.abs().max().item() for g in expected.values())
            for name, gradient in expected.items():
                found = actual[name]
                assert torch.isfinite(found).all()
                assert (gradient - found).abs().max().item() <= atol * max(scale, 1e-6), name


def script(generation: int, prompt: str, member: int) -> str:
    """Two right ones of different length in each group; later ones are shorter or longer than what is stored."""
    i = int(re.search(r"q(\d+)", prompt).group(1))
    tail = "abcdefgh"[member]
    if member < 2 and (i + generation) % 3:
        return f"{tail}{i}$" if generation % 2 else f"{tail}{i}"
    return "z" * (1 + (member * 3 + generation * 5 + i) % 11) + "$"


def run(tmp_path, *, tamper=None, model=None, tokenizer=None, dataset=None, engine=None, **options):
    args = h.config(tmp_path, **{"max_steps": 5, "start_pass_at_1": 0.0, "max_grad_norm": 0.0, **options})
    trainer = h.trainer(args, dataset or h.questions(24, width=5), script=script, model=model, tokenizer=tokenizer)
    trainer.behaviour = {}
    if engine is not None:
        trainer.use_vllm, trainer.engine = True, engine

    def listener(event):
        trainer.events(event)
        if isinstance(event, Admitted):
            kept = tamper(event.serial, event.trajectory) if tamper else event.trajectory
            trainer.behaviour[event.serial] = kept
            trainer.planner.buffer.store.put_many([event.serial], [kept])

    trainer.experience.listeners[:] = [one_by_one(listener)]
    reference = Reference().attach(trainer)
    trainer.train()
    return trainer, reference


CORRECTIONS = ["shaped", "clip", "truncated", "none"]
CUTS = {"whole": (32, 1), "halves": (16, 2), "eighths": (4, 8)}


@pytest.mark.slow
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_gradient_equals_the_reference(tmp_path, correction, cut):
    size, accumulation = CUTS[cut]
    trainer, reference = run(
        tmp_path, correction=correction, per_device_train_batch_size=size, gradient_accumulation_steps=accumulation,
        positive_weight=2.0, temperature=0.8,
    )  # fmt: skip
    reference.check(atol=2e-5)
    assert np.std(reference.ratios) > 0.01  # not all on-policy: there was something to correct
    lengths = {len(t) for t in trainer.behaviour.values()}
    assert len(lengths) > 1


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo", "dapo"])
@pytest.mark.parametrize("options", [{}, {"scale_rewards": "group"}, {"preset": "rescue"}])
def test_gradient_of_each_loss_type(tmp_path, loss_type, options):
    _, reference = run(
        tmp_path, loss_type=loss_type, per_device_train_batch_size=8, gradient_accumulation_steps=4, **options
    )
    reference.check(atol=2e-5)


LEVELS = {
    "sequence": {"importance_sampling_level": "sequence"},
    "sequence, dapo, group": {
        "importance_sampling_level": "sequence", "loss_type": "dapo", "scale_rewards": "group",
    },
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.05},
    "cispo, sequence, rescue": {"loss_type": "cispo", "epsilon_high": 1.05, "importance_sampling_level": "sequence",
                                "preset": "rescue", "max_steps": 12},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("name", LEVELS)
def test_importance_of_sequences_and_cispo(tmp_path, name, correction):
    """Three updates of each generation, so that fresh completions have ratios too, some beyond the clip."""
    _, reference = run(tmp_path, correction=correction, num_iterations=3, learning_rate=1e-2, **LEVELS[name])
    reference.check(atol=2e-5)
    assert np.std(reference.ratios) > 0.01
    assert max(map(abs, reference.fresh_ratios)) > 0.2


def of_the_engine(row: int, ids: list[int]) -> torch.Tensor:
    """Log-probs that no policy has: the ratio to the trainer's is cut for some tokens, and not for others."""
    return torch.tensor([-6.0 + 0.5 * ((row + place) % 9) for place in range(len(ids))], dtype=torch.float64)


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_truncate"])
@pytest.mark.parametrize("options", [{}, {"preset": "rescue"}, {"loss_type": "cispo", "epsilon_high": 2.0}])
def test_vllms_correction_is_of_fresh_rows(tmp_path, monkeypatch, mode, options):
    """TRL weighs fresh tokens by trainer over engine; a stored completion has no part in it, whatever the mode."""

    def generate(self, prompt_ids, *args, **kwargs):
        ids, _ = h.scripted_generation(self, prompt_ids, *args, **kwargs)
        batch = self._iteration.batch
        rows = [row for row in range(batch.size) if row not in batch.local()] if batch.stored else range(batch.size)
        return ids, [of_the_engine(row, one).tolist() for row, one in zip(rows, ids, strict=True)]

    monkeypatch.setattr(h.GRPOTrainer, "_generate_single_turn", generate)
    trainer, reference = run(
        tmp_path,
        engine=of_the_engine,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=3.0,
        **options,
    )
    reference.check(atol=2e-5)
    assert reference.ratios
    logged = [log["sampling/importance_sampling_ratio/max"] for log in trainer.state.log_history if "loss" in log]
    assert max(logged) == pytest.approx(3.0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"use_bias_correction_kl": False}, {"preset": "rescue"}])
def test_the_kl_term_is_of_fresh_rows(tmp_path, options):
    """A stored completion was not sampled by the policy: it has no part in the host's KL, with its correction or without."""
    model = h.tiny_model()
    h.tiny_model(seed=3).save_pretrained(tmp_path / "reference")
    model.config._name_or_path = str(tmp_path / "reference")  # where the host finds the reference model
    trainer, reference = run(
        tmp_path, beta=0.5, model=model, per_device_train_batch_size=8,
        gradient_accumulation_steps=4, **options,
    )  # fmt: skip
    reference.check(atol=2e-5)
    assert reference.ratios
    assert all(log["kl"] > 0.1 for log in trainer.state.log_history if "kl" in log)


def extreme(value):
    def tamper(serial: int, trajectory: Trajectory) -> Trajectory:
        logps = trajectory.behaviour_logps.copy()
        logps[0] = value
        return Trajectory(
            trajectory.question, trajectory.completion_ids, logps, trajectory.rewards, trajectory.step,
            trajectory.finish_reason, trajectory.entropy,
        )  # fmt: skip

    return tamper


@pytest.mark.slow
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("value", [-91.0, -1e-6])
def test_extreme_ratios(tmp_path, correction, value):
    """A behaviour log-prob of -91 against -4 now, and the other way round: exact, nothing NaN [FAULTS 12]."""
    trainer, reference = run(tmp_path, correction=correction, tamper=extreme(value))
    reference.check(atol=2e-5)
    assert max(map(abs, reference.ratios)) > 2
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_bfloat16(tmp_path, correction):
    """A model in bfloat16 gives the reference's gradient to bfloat16's precision, and nothing NaN."""
    trainer, reference = run(
        tmp_path, correction=correction, model=h.tiny_model(dtype=torch.bfloat16), tamper=extreme(-91.0)
    )
    reference.check(atol=0.1)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())


@pytest.mark.slow
def test_autocast_and_checkpointing(tmp_path):
    _, reference = run(tmp_path, bf16=True, gradient_checkpointing=True)
    reference.check(atol=0.1)


@pytest.mark.slow
def test_learned_positions(tmp_path):
    """Left padding does not shift the positions of a model that learned them [FAULTS 35]."""
    _, reference = run(
        tmp_path,
        model=h.tiny_model(learned_positions=True),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
    )
    reference.check(atol=2e-5)


@pytest.mark.slow
def test_conversational(tmp_path):
    from datasets import Dataset

    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "right": row["right"]} for row in h.questions(24, 5)
    ]
    _, reference = run(tmp_path, tokenizer=h.tiny_tokenizer(chat=True), dataset=Dataset.from_list(rows))
    reference.check(atol=2e-5)


@pytest.mark.slow
def test_the_logged_loss_is_the_reference_loss(tmp_path):
    trainer, reference = run(tmp_path, per_device_train_batch_size=8, gradient_accumulation_steps=4)
    logged = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    # the policy-gradient surrogate of fresh tokens has value sum(A), as in the host
    np.testing.assert_allclose(logged, [loss for loss, _, _ in reference.compared], atol=1e-5)


@pytest.mark.slow
def test_without_the_clip_fresh_tokens_are_not_clipped(tmp_path):
    trainer, _ = run(tmp_path, clip_fresh=False)
    assert trainer.epsilon_low == trainer.epsilon_high == math.inf
