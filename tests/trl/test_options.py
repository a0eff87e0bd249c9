"""Every option acts through `trainer.train()`: scripted completions, then a look at plans, events, batches and metrics."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from exgrpo.config import CORRECTIONS, QUESTION_SAMPLERS, TRAJECTORY_CHOICES
from exgrpo.experience.events import (
    Admitted,
    Evicted,
    Measured,
    Observed,
    Planned,
    Replayed,
    Retired,
    Returned,
    Trained,
)
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.objective import register_correction
from exgrpo.presets import OBJECTIVE_FIELDS, REPLAY_FIELDS
from exgrpo.registry import register_question_sampler, register_trajectory_choice
from tests.reference.objective import OF_ROWS, row_terms
from tests.support import harness as h
from trl import GRPOTrainer


class Watching(h.ExGRPOTrainer):
    """Keeps plans, batches, and how often stored trajectories were measured for a choice."""

    def __init__(self, *args, **kwargs):
        self.plans, self.batches, self.measurements = [], [], []
        super().__init__(*args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.plans.append(self._iteration.batch.plan)
        self.batches.append((self._iteration, {name: value.clone() for name, value in output.items()}))
        return output

    def _scores(self, trajectories):
        self.measurements.append(len(trajectories))
        return super()._scores(trajectories)


def number(prompt):
    return int(re.search(r"q(\d+)", prompt).group(1))


def rights(*per_question, then=None):
    """A script: so many of the K completions of question i are right, by i modulo the length; later `then`, if given."""

    def script(generation, prompt, member):
        i = number(prompt)
        counts = per_question if then is None or not generation else then
        return f"{'abcdefgh'[member]}{i}$" if member < counts[i % len(counts)] else f"{'zyxw'[member]}$"

    return script


def run(tmp_path, script, n=8, steps=2, dataset=None, **options):
    """8 questions a generation, 4 completions each; replay starts at once."""
    more = {name: options.pop(name) for name in ("embedder", "reward", "model") if name in options}
    defaults = dict(experience_log="none", start_pass_at_1=0.0, retirement="never", alarms="off")
    args = h.config(tmp_path, max_steps=steps, **{**defaults, **options})
    trainer = h.trainer(args, dataset or h.questions(n), script=script, cls=Watching, **more)
    trainer.train()
    return trainer


def logs(trainer, name):
    """What was logged, without zeros that say nothing: those are left out."""
    return [log[name] for log in trainer.state.log_history if name in log]


def numbers(trainer, questions):
    return [number(trainer.questions.row(int(q))["prompt"]) for q in questions]


def replayed_numbers(trainer, generation):
    plan = trainer.plans[generation]
    return sorted(numbers(trainer, plan.questions[plan.replayed]))


def replays(trainer):
    """Replayed trajectories by generation."""
    return [sum(event.generation == g for event in trainer.events.of(Replayed)) for g in range(len(trainer.plans))]


# Which question -----------------------------------------------------------------------------------------------------

FIVE = (0, 1, 2, 3, 4)  # question i has i % 5 of 4 right
CHOICES = [
    (dict(question_choice="gaussian", sigma=0.01), {2}),
    (dict(question_choice="range"), {2}),
    (dict(question_choice="range", range_adapts=True, range_low=0.0, range_high=0.2), {0}),
    (dict(question_choice="range", range_adapts=True, range_low=0.9, range_high=1.0), {4}),
    (dict(question_choice="variance"), {1, 2, 3}),
    (dict(question_choice="linear", mu=1.0), {1, 2, 3, 4}),
    (dict(question_choice="tiers", tier_shares=[0, 0, 0, 0, 1]), {4}),
    (dict(question_choice="tiers", tier_shares=[1, 0]), {0, 1}),
    (dict(question_choice="uniform"), {0, 1, 2, 3, 4}),
]


@pytest.mark.parametrize(("options", "allowed"), CHOICES, ids=str)
def test_question_choice(tmp_path, options, allowed):
    """24 questions, all seen in three generations; of those replayed in the fourth each has an accuracy that it may have."""
    trainer = run(tmp_path, rights(*FIVE), n=24, steps=4, start_step=3, admission="all", **options)
    chosen = replayed_numbers(trainer, 3)
    assert len(chosen) == 4
    assert {i % 5 for i in chosen} <= allowed
    if options["question_choice"] == "uniform":
        assert len({i % 5 for i in chosen}) > 1


def test_headroom_choice_of_questions(tmp_path):
    trainer = run(
        tmp_path, rights(*FIVE), n=24, steps=4, start_step=3, admission="all", question_choice="headroom",
        trajectory_choice="headroom", entropy_refresh="stored",
    )  # fmt: skip
    best = {}
    for event in trainer.events.of(Admitted):
        t = event.trajectory
        if t.step < 3:
            pi = float(np.float16(np.exp(t.behaviour_logps.astype(np.float64)).mean()))
            headroom = 1 - pi if t.advantage > 0 else pi if t.advantage < 0 else 0.0
            best[t.question] = max(best.get(t.question, -1.0), headroom)
    chosen = {event.question for event in trainer.events.of(Replayed)}
    assert len(chosen) == 4
    assert min(best[q] for q in chosen) >= max(value for q, value in best.items() if q not in chosen)


@pytest.mark.slow
def test_by_problem_type(tmp_path):
    """Questions that nothing is right of are the second type. The middle of all accuracies lies in the first alone."""
    rows = [{**row, "problem_type": "geometry" if i % 5 == 0 else "algebra"} for i, row in enumerate(h.questions(24))]
    found = {}
    for apart in (False, True):
        trainer = run(
            tmp_path, rights(*FIVE), dataset=h.Dataset.from_list(rows), steps=4, start_step=3, admission="all",
            sigma=0.01, replay_share=1.0, by_problem_type=apart,
        )  # fmt: skip
        found[apart] = [i % 5 == 0 for i in replayed_numbers(trainer, 3)]
        assert len(found[apart]) == 8
    assert not any(found[False])
    assert any(found[True])


def test_difficulty_window(tmp_path):
    """All right, then none, then half: over the latest two groups 2 of 8."""

    def script(generation, prompt, member):
        return f"a{number(prompt)}$" if member < (4, 0, 2)[generation] else "z$"

    trainer = run(tmp_path, script, steps=3, difficulty="window", difficulty_window=8, start_step=99)
    buffer = trainer.planner.buffer
    assert set(zip(buffer.questions.successes.tolist(), buffer.questions.scorable.tolist(), strict=True)) == {(2, 8)}


def test_difficulty_spread(tmp_path):
    """Rewards i, i, 0, 0 hundredths: a standard deviation of i / 200; replay goes where it is greatest."""

    def reward(prompts, completions, **kwargs):
        return [(1 + number(p) / 100) * (c[0] in "ab") for p, c in zip(prompts, completions, strict=True)]

    trainer = run(tmp_path, rights(2), reward=reward, difficulty="spread", mu=1.0, sigma=0.01, replay_share=0.25)
    for event in trainer.events.of(Observed):
        if event.generation == 0:
            (i,) = numbers(trainer, [event.question])
            assert event.reward_std == pytest.approx((1 + i / 100) / 2)
    assert 7 in replayed_numbers(trainer, 1)


# Which trajectory ---------------------------------------------------------------------------------------------------


def texts_of_embedding(texts):
    """A toy embedder: how often each of some characters occurs."""
    return [[text.count(c) + 0.1 for c in "abcdz0123"] for text in texts]


def known(trainer):
    """Of each trajectory that was stored in the first generation: what is known of it when the second is planned."""
    found = {}
    for event in trainer.events:
        if isinstance(event, Admitted) and event.trajectory.step == 0:
            t = event.trajectory
            of_t = PolicyStats.of_tokens(t.behaviour_logps)
            found[event.serial] = {
                "question": t.question, "serial": event.serial, "quality": t.quality, "entropy": t.entropy,
                "advantage": t.advantage, "nll": of_t.nll, "confidence": of_t.confidence,
                "variance": of_t.confidence_variance,
            }  # fmt: skip
        if isinstance(event, Planned) and event.generation == 1:
            return found
        if isinstance(event, Measured):
            found[event.serial] |= {
                "entropy": event.entropy, "nll": event.nll, "confidence": event.confidence,
                "variance": event.confidence_variance,
            }  # fmt: skip
    return found


KEYS = {
    "lowest_entropy": lambda one: one["entropy"],
    "newest": lambda one: -one["serial"],
    "lowest_nll": lambda one: one["nll"],
    "lowest_confidence_variance": lambda one: one["variance"],
    "highest_quality": lambda one: -one["quality"],
    "highest_entropy": lambda one: -one["entropy"],
    "headroom": lambda one: -(1 - one["confidence"]),
    "advantage": lambda one: -abs(one["advantage"]),
    "random": None,
    "quality_tiers": lambda one: -one["quality"],  # the best tier alone has a share, and holds one of three
    "entropy_percentile": None,
}


@pytest.mark.parametrize("choice", TRAJECTORY_CHOICES.builtin)
def test_trajectory_choice(tmp_path, choice):
    """Three different successes of each question are stored; of each replayed question the right one is chosen."""
    trainer = run(
        tmp_path, rights(3), trajectory_choice=choice, entropy_refresh="exact", replay_share=1.0, embedder=texts_of_embedding,
        learning_rate=1e-2, quality_tier_shares=[1.0],
    )  # fmt: skip
    stored = known(trainer)
    chosen = trainer.events.of(Replayed)
    assert len(chosen) == (8 if choice != "entropy_percentile" else len(chosen)) > 0
    for event in chosen:
        rivals = [one for one in stored.values() if one["question"] == event.question]
        assert len(rivals) == 3
        if KEYS[choice] is not None:
            best = min(KEYS[choice](one) for one in rivals)
            assert KEYS[choice](stored[event.serial]) == pytest.approx(best, rel=2e-3)
    if choice == "entropy_percentile":
        entropies = sorted(one["entropy"] for one in stored.values())
        assert {stored[e.serial]["entropy"] for e in chosen} <= set(entropies[:6])  # a quarter of 24
        assert 0 < len(chosen) < 8
    if choice == "random":
        assert len({event.serial % 3 for event in chosen}) > 1
    follows_the_policy = {"lowest_entropy", "highest_entropy", "lowest_nll", "lowest_confidence_variance", "headroom"}
    assert trainer.measurements == [24] * (choice in follows_the_policy)


@pytest.mark.parametrize(
    "cut",
    [
        dict(),
        dict(num_iterations=2, steps=4),
        dict(per_device_train_batch_size=8, steps_per_generation=4, gradient_accumulation_steps=1, steps=8),
    ],
    ids=str,
)
def test_what_is_stored_has_an_entropy(tmp_path, cut):
    """Of groups without variance too, however a generation is cut: choices by stored entropies need it."""
    trainer = run(tmp_path, rights(*FIVE), n=16, admission="all", **cut)
    assert len(trainer.events.of(Admitted)) > 40
    assert all(event.trajectory.entropy > 0 for event in trainer.events.of(Admitted))


@pytest.mark.parametrize(
    ("options", "measurements"),
    [
        (dict(entropy_refresh="exact"), [24, 32]),  # all of the 8 questions: 3 each, and in between one more of each
        (dict(entropy_refresh="lazy", max_entropy_age=0), [16, 16]),  # the best two
        (dict(entropy_refresh="lazy", max_entropy_age=0, entropy_candidates=3), [24, 24]),
        (dict(entropy_refresh="lazy"), []),  # known well enough
        (dict(entropy_refresh="stored", max_entropy_age=0), []),
    ],
    ids=str,
)
def test_entropy_refresh(tmp_path, options, measurements):
    def script(generation, prompt, member):
        if generation == 1 and member == 0:
            return f"d{number(prompt)}$"
        return rights(3)(generation, prompt, member) if generation == 0 else "z$"

    trainer = run(tmp_path, script, steps=3, replay_share=1.0, **options)
    assert replays(trainer) == [0, 8, 8]
    assert trainer.measurements == measurements


# How it enters a batch ----------------------------------------------------------------------------------------------


@pytest.fixture
def host_losses(monkeypatch):
    """What the host's own loss was, each time; for runs that compute all rows (`skip_rows=False`)."""
    found = []
    inner = GRPOTrainer._compute_loss

    def recording(self, model, inputs):
        loss = inner(self, model, inputs)
        found.append(loss.item())
        return loss

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", recording)
    return found


class Gradients(TrainerCallback):
    """The gradient before each optimizer step."""

    def __init__(self):
        self.found = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.found.append([p.grad.clone() for p in model.parameters()])


class Sums(Watching):
    """Keeps the loss of each micro-batch; and of what was added to a generation, the loss and its gradient by hand."""

    def __init__(self, *args, **kwargs):
        self.losses, self.by_hand = [], {}
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        self.losses.append(loss.item())
        generation = self._iteration
        if generation.batch.plan.iteration not in self.by_hand:
            parameters = list(self.model.parameters())
            tokens = int(sum(map(len, generation.scored.completion_ids)))
            terms = [self._term(choice.trajectory, tokens) for choice in generation.batch.plan.added]
            total = sum(terms, torch.zeros((), requires_grad=True))
            gradients = torch.autograd.grad(total, parameters, allow_unused=True)
            zeros = [torch.zeros_like(p) for p in parameters]
            self.by_hand[generation.batch.plan.iteration] = (
                total.item(), [z if g is None else g for g, z in zip(gradients, zeros, strict=True)]
            )  # fmt: skip
        return loss

    def _term(self, t, tokens):
        """PPO's clipped sum over the tokens, negative, with the weight that a fresh token of a batch of 32 rows has."""
        prompt, completion = self.questions.prompt_ids(t.question), t.completion_ids.tolist()
        logits = self.model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        logps = torch.log_softmax(logits / self.temperature, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        w = (logps - torch.tensor(t.behaviour_logps.copy())).exp()
        gain = torch.minimum(w * t.advantage, w.clamp(0.8, 1.2) * t.advantage).sum()
        weight = {"dr_grpo": 1 / (32 * 12), "grpo": 1 / (32 * len(t)), "dapo": 1 / tokens}[self.loss_type]
        return -gain * weight


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo", "dapo"])
@pytest.mark.parametrize("cut", [dict(), dict(per_device_train_batch_size=8, gradient_accumulation_steps=4)], ids=str)
def test_added(tmp_path, host_losses, cut, loss_type):
    """The fresh part of the loss is bit for bit that of a run without replay; what is added weighs like fresh tokens, in
    the loss and in the gradient."""
    model, micro = h.tiny_model(4), cut.get("gradient_accumulation_steps", 1)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    both = dict(learning_rate=1e-2, max_grad_norm=1e9, loss_type=loss_type, skip_rows=False, **cut)
    base = h.trainer(
        h.config(tmp_path, max_steps=2, preset="on-policy", **both), h.questions(32), model=model, script=rights(2)
    )
    base.add_callback(of_base := Gradients())
    base.train()
    on_policy = host_losses.copy()
    host_losses.clear()
    model.load_state_dict(start)
    config = h.config(
        tmp_path, max_steps=3, experience_log="none", start_pass_at_1=0.0, retirement="never", alarms="off", mixing="added",
        correction="clip", admission="all", trajectory_choice="newest", start_step=1, **both,
    )  # fmt: skip
    trainer = h.trainer(config, h.questions(32), model=model, script=rights(2), cls=Sums)
    trainer.add_callback(of_both := Gradients())
    trainer.train()
    assert [len(plan.added) for plan in trainer.plans] == [0, 4, 4]
    assert host_losses[: 2 * micro] == on_policy[: 2 * micro]  # the second step included, which has added ones
    assert {e.stage for e in trainer.events.of(Replayed)} == {"added"}
    for generation, plan in enumerate(trainer.plans):
        part = slice(generation * micro, (generation + 1) * micro)
        difference = sum(trainer.losses[part]) - sum(host_losses[part])
        assert difference == pytest.approx(trainer.by_hand[generation][0], abs=2e-6)
        assert len(set(plan.questions.tolist())) == 8
        assert not set(plan.questions.tolist()) & {choice.trajectory.question for choice in plan.added}
    for whole, fresh, added in zip(of_both.found[1], of_base.found[1], trainer.by_hand[1][1], strict=True):
        torch.testing.assert_close(whole - fresh, added, atol=1e-5, rtol=1e-3)
    assert max(g.abs().max() for g in trainer.by_hand[1][1]) > 1e-3
    assert logs(trainer, "replay/share") == [0.0, 0.5, 0.5]
    generated = sum(len(ids) for generation, _ in trainer.batches for ids in generation.scored.completion_ids)
    assert logs(trainer, "fresh/generated_tokens")[-1] == generated


@pytest.mark.parametrize(
    "cut",
    [
        dict(num_iterations=2, max_steps=6),
        dict(per_device_train_batch_size=8, steps_per_generation=4, gradient_accumulation_steps=1, max_steps=12),
        dict(per_device_train_batch_size=4, steps_per_generation=8, gradient_accumulation_steps=2, max_steps=12),
    ],
    ids=str,
)
def test_added_ones_are_each_learned_from_once_a_pass(tmp_path, cut):
    """However a generation is cut: more parts than added ones, several passes over it."""
    steps = cut.pop("max_steps")
    trainer = run(
        tmp_path, rights(2), n=32, steps=steps, mixing="added", admission="all", trajectory_choice="newest",
        replay_share=0.4, **cut,
    )  # fmt: skip
    assert [len(plan.added) for plan in trainer.plans] == [0, 3, 3]
    for event in trainer.events.of(Trained):
        assert 0 < event.ess <= 1
    assert [len([e for e in trainer.events.of(Trained) if e.generation == g]) for g in range(3)] == [0, 3, 3]


def test_coin_with_whole_stored_groups(tmp_path):
    """An update that is a replay generates nothing: its groups are stored completions, right and wrong."""
    trainer = run(
        tmp_path, rights(2), n=16, steps=6, mixing="coin", replay_probability=0.6, replays_per_group=100, admission="all",
        trajectory_choice="random", seed=3, learning_rate=1e-2,
    )  # fmt: skip
    of_replay = [plan.num_replayed > 0 for plan in trainer.plans]
    assert any(of_replay[1:])
    assert not all(of_replay[1:])
    tokens = [0, *logs(trainer, "fresh/generated_tokens")]
    for generation, plan in enumerate(trainer.plans):
        grown = tokens[generation + 1] - tokens[generation]
        seen = [e for e in trainer.events.of(Observed) if e.generation == generation]
        if of_replay[generation]:
            assert plan.num_replayed == 8
            assert [len(group) for group in plan.replays] == [4] * 8
            assert grown == 0
            assert seen == []
            _, output = trainer.batches[generation]
            assert output["replay_mask"].all()
            assert set(output["advantages"].view(8, 4).abs().sum(1).tolist()) <= {0.0, 1.5, 2.0}  # 1 or 2 right of 4
        else:
            assert grown > 0
            assert len(seen) == 8
            assert plan.idle is None or "coin" in plan.idle or "no replayable" in plan.idle


def test_a_generation_without_fresh_completions_leaves_their_metrics_alone(tmp_path):
    """One log over two generations, the second of stored completions alone: the figures are those of the first."""
    trainer = run(
        tmp_path, rights(2), steps=2, mixing="coin", replay_probability=1.0, replays_per_group=4, admission="all",
        logging_steps=2,
    )  # fmt: skip
    assert trainer.plans[1].num_replayed == 8
    (log,) = [log for log in trainer.state.log_history if "fresh/pass_at_1" in log]
    assert log["fresh/pass_at_1"] == 0.5
    assert log["reward"] == 0.5
    assert log["fresh/groups_unsolved"] == 0.0
    assert trainer.planner.gate.pass_at_1 == 0.5


def test_prompt(tmp_path):
    """Replayed questions have K fresh completions; nothing is stored."""
    trainer = run(tmp_path, rights(*FIVE), n=24, steps=5, mixing="prompt", sigma=0.01, start_step=3)
    assert {i % 5 for generation in (3, 4) for i in replayed_numbers(trainer, generation)} == {2}
    again = [e for e in trainer.events.of(Observed) if e.replayed]
    assert len(again) == 8
    assert {e.scorable for e in again} == {4}
    assert not trainer.events.of(Admitted)
    assert not trainer.events.of(Replayed)
    assert not any(output["replay_mask"].any() for _, output in trainer.batches)
    assert logs(trainer, "replay/share") == [0.0, 0.0, 0.0, 0.5, 0.5]


def test_several_stored_members_and_a_split_baseline(tmp_path):
    """Of four members two are stored, one right and one wrong; the fresh ones are all wrong. Centred apart: 0, 0, 1/2, -1/2."""
    trainer = run(
        tmp_path, rights(1, then=(0,)), replays_per_group=2, replay_share=1.0, admission="all", baseline="split",
        trajectory_choice="random", correction="truncated",
    )  # fmt: skip
    plan = trainer.plans[1]
    assert [len(group) for group in plan.replays] == [2] * 8
    generation, output = trainer.batches[1]
    for group in range(8):
        advantages = output["advantages"].view(8, 4)[group]
        stored = [choice.trajectory.correct for choice in plan.replays[group]][::-1]  # they fill from the end
        mean = sum(stored) / 2
        assert advantages.tolist() == pytest.approx([0.0, 0.0, *(float(right) - mean for right in stored)])
        assert output["replay_mask"].view(8, 4)[group].tolist() == [False, False, True, True]
    assert {e.scorable for e in trainer.events.of(Observed) if e.generation == 1} == {2}
    assert len(generation.batch.stored) == 16
    assert logs(trainer, "replay/injected") == [16.0]


@pytest.mark.parametrize("baseline", ["group", "fresh"])
def test_baseline(tmp_path, baseline):
    """One stored success beside three failures: 3/4 and -1/4 by the group, 1 and 0 by the fresh."""
    trainer = run(tmp_path, rights(1, then=(0,)), replay_share=1.0, baseline=baseline)
    _, output = trainer.batches[1]
    expected = [-0.25] * 3 + [0.75] if baseline == "group" else [0.0] * 3 + [1.0]
    assert output["advantages"].tolist() == pytest.approx(expected * 8)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (dict(), [0, 2, 3, 3, 4, 4]),  # 0.3, 0.4, 0.5 of 8, rounded down
        (dict(on_policy_start=1.0, on_policy_step=0.5, on_policy_floor=0.25), [0, 0, 4, 4, 6, 6]),  # 0, 0.5, 0.75
    ],
    ids=str,
)
def test_curriculum(tmp_path, options, expected):
    """Two steps are an epoch; and nothing is stored in the first."""
    trainer = run(
        tmp_path, rights(1), n=16, steps=6, schedule="curriculum", question_choice="uniform", **options
    )  # fmt: skip
    assert replays(trainer) == expected


@pytest.mark.parametrize(
    ("options", "first", "why"),
    [
        (dict(start_size=10), 2, "8 trajectories stored, must be more than 10"),
        (dict(start_epoch=1.0), 2, "epoch 0.50 < 1"),
        (dict(start_step=3), 3, "step 1 < 3"),
        (dict(start_step=3, start_size=10), 3, "step 1 < 3; 8 trajectories stored, must be more than 10"),
    ],
    ids=str,
)
def test_gate(tmp_path, options, first, why):
    """The first two generations, an epoch, store eight each."""
    trainer = run(tmp_path, rights(1), n=16, steps=4, **options)
    assert [n > 0 for n in replays(trainer)] == [generation >= first for generation in range(4)]
    assert trainer.plans[1].idle == f"gate closed: {why}"


# How it is learned from ---------------------------------------------------------------------------------------------


class ByHand(Watching):
    """Of the stored members of each batch, in groups: the loss and its gradient by hand, in float64."""

    def __init__(self, *args, **kwargs):
        self.losses, self.by_hand = [], []
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs):
        generation = self._iteration
        plain = type(self.model)(self.model.config).double()
        plain.load_state_dict(self.model.state_dict())
        total = torch.zeros((), dtype=torch.float64, requires_grad=True)
        place = {row: i for i, row in enumerate(inputs["generation_row"].tolist())}  # the host shuffles rows
        for row, (choice, _) in generation.batch.stored.items():
            total = total - self._gain(plain, choice.trajectory, inputs["advantages"][place[row]].item()) / (32 * 12)
        gradients = torch.autograd.grad(total, list(plain.parameters()), allow_unused=True)
        self.by_hand.append((total.item(), [None if g is None else g.float() for g in gradients]))
        self.losses.append((loss := super()._compute_loss(model, inputs)).item())
        return loss

    def _gain(self, model, t, advantage):
        prompt, completion, o = self.questions.prompt_ids(t.question), t.completion_ids.tolist(), self.args.objective
        logits = model(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
        logps = torch.log_softmax(logits / self.temperature, -1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        w = (logps - torch.tensor(t.behaviour_logps.astype(np.float64))).exp()
        vocabulary = logits.size(1)
        if o.correction in OF_ROWS:
            more = {name: getattr(o, name) for name in ("moment_limit", "asymmetry", "veto_ratio")}
            return sum(
                row_terms(o.correction, list(logps), t.behaviour_logps.tolist(), advantage, cap=o.truncation, **more)
            )
        return {
            "shaped": lambda: w / (w + o.shaping_beta) * advantage,
            "clip": lambda: torch.minimum(w * advantage, w.clamp(0.8, 1.2) * advantage),
            "truncated": lambda: w.detach().clamp(max=o.truncation) * advantage * logps,
            "none": lambda: advantage * logps,
            "likelihood": lambda: (vocabulary * logps.exp()).detach().clamp(max=o.likelihood_clamp) * advantage * logps,
        }[o.correction]().sum()


@pytest.mark.parametrize(
    "options",
    [
        dict(correction="shaped", shaping_beta=0.5),
        dict(correction="truncated", truncation=0.7),
        dict(correction="likelihood", likelihood_clamp=2.0),
        dict(correction="likelihood"),
        dict(correction="clip", positive_weight=3.0, admission="all"),
        dict(correction="none", replays_per_group=2, admission="all", baseline="fresh"),
    ],
    ids=str,
)
def test_correction(tmp_path, host_losses, options):
    """What replay adds to the host's loss is the sum over replayed tokens by the formula."""
    args = h.config(
        tmp_path, max_steps=4, experience_log="none", start_pass_at_1=0.0, retirement="never", alarms="off",
        trajectory_choice="newest", learning_rate=2e-2, max_grad_norm=1e9, start_step=1, skip_rows=False,
        **options,
    )  # fmt: skip
    trainer = h.trainer(args, h.questions(16), script=rights(1, then=(0, 1)), cls=ByHand, model=h.tiny_model(5))
    trainer.train()
    assert sum(replays(trainer)) >= 12
    for loss, of_host, (by_hand, _) in zip(trainer.losses, host_losses, trainer.by_hand, strict=True):
        assert loss - of_host == pytest.approx(by_hand, abs=5e-6)
    assert max(abs(by_hand) for by_hand, _ in trainer.by_hand) > 1e-3


@pytest.mark.slow
def test_the_whole_gradient_is_that_of_stored_members_where_fresh_ones_have_no_advantage(tmp_path):
    """All fresh completions fail, and the baseline is theirs: only stored ones push."""
    for correction in CORRECTIONS.builtin:
        args = h.config(
            tmp_path, max_steps=3, experience_log="none", start_pass_at_1=0.0, alarms="off", trajectory_choice="newest",
            learning_rate=2e-2, max_grad_norm=1e9, baseline="fresh", correction=correction, replay_share=1.0, moment_limit=1.0,
        )  # fmt: skip
        trainer = h.trainer(args, h.questions(8), script=rights(1, then=(0,)), cls=ByHand, model=h.tiny_model(5))
        trainer.add_callback(gradients := Gradients())
        trainer.train()
        for found, (_, expected) in zip(gradients.found[1:], trainer.by_hand[1:], strict=True):
            scale = max(g.abs().max() for g in expected if g is not None)
            assert scale > 1e-4
            for got, want in zip(found, expected, strict=True):
                assert (got - (0 if want is None else want)).abs().max() <= 1e-4 * scale


# What is remembered -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("admission", "expected"),
    [("correct", [0, 1, 2, 3, 4]), ("all", [4] * 5), ("single_success", [0, 1, 0, 0, 0])],
)
def test_admission(tmp_path, admission, expected):
    trainer = run(tmp_path, rights(*FIVE), n=40, steps=5, start_step=99, admission=admission)
    stored = numbers(trainer, [e.trajectory.question for e in trainer.events.of(Admitted)])
    assert [stored.count(i) for i in range(40)] == [expected[i % 5] for i in range(40)]
    for event in trainer.events.of(Admitted):
        t = event.trajectory
        right = numbers(trainer, [t.question])[0] % 5
        assert t.correct == bool(t.rewards[0])
        assert t.advantage == pytest.approx(t.rewards[0] - right / 4)


@pytest.mark.parametrize(("weight", "above"), [(0.7, 0.72), (0.4, 0.42)])
def test_quality_admission(tmp_path, weight, above):
    """Quality is 0.7 success + 0.3 diversity (or another weight) to what the question has stored, in the order of rows."""
    trainer = run(
        tmp_path, rights(2), steps=2, start_step=99, admission="quality", min_quality=above, success_weight=weight,
        embedder=texts_of_embedding, capacity_per_question=100,
    )  # fmt: skip
    seen, qualities = {}, []
    for event in trainer.events.of(Admitted):
        t = event.trajectory
        vector = np.array(t.embedding, np.float64)
        others = seen.setdefault(t.question, [])
        similar = [vector @ other / np.linalg.norm(vector) / np.linalg.norm(other) for other in others]
        diversity = 1 - np.mean(similar) if similar else 1.0
        assert t.quality == pytest.approx(weight * t.correct + (1 - weight) * diversity, abs=1e-3)
        others.append(vector)
        qualities.append(t.quality)
    assert min(qualities) > above
    assert len(qualities) >= 8
    assert weight < 0.5 or all(e.trajectory.correct for e in trainer.events.of(Admitted))


@pytest.mark.parametrize(
    ("options", "retired"),
    [
        (dict(retirement="solved"), {4}),
        (dict(retirement="threshold", retirement_threshold=0.5), {2, 3, 4}),
        (dict(retirement="never"), set()),
    ],
    ids=str,
)
def test_retirement(tmp_path, options, retired):
    trainer = run(tmp_path, rights(*FIVE), n=40, steps=5, start_step=99, **options)
    assert {i % 5 for i in numbers(trainer, [e.question for e in trainer.events.of(Retired)])} == retired
    assert trainer.planner.buffer.num_retired == 8 * len(retired)


def test_retired_questions_stay_fresh_where_asked(tmp_path):
    """Two passes over 40 questions, five generations each; those of 4 right retire in the first."""
    trainer = run(tmp_path, rights(*FIVE), n=40, steps=10, retirement="solved", retired_in_stream=True, start_epoch=1.0)
    fresh = [q for plan in trainer.plans for q in plan.questions[~plan.replayed].tolist()]
    retired = {e.question for e in trainer.events.of(Retired) if e.generation < 5}
    assert {i % 5 for i in numbers(trainer, retired)} == {4}
    assert len(retired) == 8
    assert sorted(fresh[:40]) == list(range(40))
    again, replayed = set(fresh[40:]), {e.question for e in trainer.events.of(Replayed)}
    assert len(replayed) > 8
    assert len(again & retired) >= 3
    assert not replayed & retired
    assert not {e.trajectory.question for e in trainer.events.of(Admitted)} & retired
    assert not logs(trainer, "fresh/refilled")  # never other than 0


def test_review(tmp_path):
    """All 16 questions retire at once; every second step half of the retired return, and are fresh again."""
    trainer = run(tmp_path, rights(4), n=16, steps=5, retirement="solved", review_every=2, review_share=0.5)
    returned = trainer.events.of(Returned)
    assert [(e.generation, e.step) for e in returned] == [(2, 2)] * 8 + [(4, 4)] * 8
    assert [plan.returned for plan in trainer.plans] == [0, 0, 8, 0, 8]
    assert set(trainer.plans[2].questions.tolist()) == {e.question for e in returned[:8]}
    assert logs(trainer, "replay/returned") == [8.0, 0.0, 8.0]
    assert logs(trainer, "fresh/refilled") == [8.0, 0.0]


@pytest.mark.parametrize("eviction", ["oldest", "highest_entropy", "lowest_quality", "quality_tiers"])
def test_eviction(tmp_path, eviction):
    """Of four successes a question keeps two, one leaving as each of the others comes."""
    trainer = run(tmp_path, rights(4), steps=1, eviction=eviction, capacity_per_question=2, embedder=texts_of_embedding)
    kept, gone = {}, [e.serial for e in trainer.events.of(Evicted)]
    key = {
        "oldest": lambda t, s: s, "highest_entropy": lambda t, s: -t.entropy,
        "lowest_quality": lambda t, s: float(np.float16(t.quality)),
        "quality_tiers": lambda t, s: float(np.float16(t.quality)),
    }[eviction]  # fmt: skip
    expected = []
    for event in trainer.events.of(Admitted):
        own = kept.setdefault(event.trajectory.question, [])
        if len(own) == 2:
            expected.append(min(own, key=lambda one: key(one.trajectory, one.serial)).serial)
            own[:] = [one for one in own if one.serial != expected[-1]]
        own.append(event)
    if eviction == "quality_tiers":  # of two of the same quality the older is in the better tier
        assert len(gone) == len(expected) == 16
    else:
        assert gone == expected
    assert len(trainer.planner.buffer) == 16


# Staleness ----------------------------------------------------------------------------------------------------------


def test_max_age(tmp_path):
    """Right once, at step 0: replayed at steps 1 and 2, gone at 3."""
    trainer = run(tmp_path, rights(1, then=(0,)), steps=5, max_age=2)
    assert replays(trainer) == [0, 4, 4, 0, 0]
    assert [e.age for e in trainer.events.of(Replayed)] == [1] * 4 + [2] * 4
    assert {e.reason for e in trainer.events.of(Evicted)} == {"age"}
    assert trainer.plans[3].idle == "all over age: the last 8 trajectories were older than max_age=2"
    assert logs(trainer, "replay/expired") == [8.0, 0.0]
    assert logs(trainer, "replay/age_max") == [1.0, 2.0]


def test_max_uses(tmp_path):
    trainer = run(tmp_path, rights(1, then=(0,)), steps=6, max_uses=2, replay_share=1.0)
    assert replays(trainer) == [0, 8, 8, 0, 0, 0]
    assert {e.reason for e in trainer.events.of(Evicted)} == {"uses"}
    assert logs(trainer, "replay/uses_max") == [1.0]
    assert logs(trainer, "replay/first_use_share") == [1.0, 0.0]


def test_cooldown(tmp_path):
    trainer = run(tmp_path, rights(1, then=(0,)), steps=8, cooldown=2, replay_share=1.0)
    assert replays(trainer) == [0, 8, 0, 0, 8, 0, 0, 8]
    assert trainer.plans[2].idle == "all replayable questions rest: 8 within cooldown=2"


@pytest.mark.slow
def test_max_drift(tmp_path):
    """After large steps all that is stored has moved too far: refused, counted, and the batch is fresh."""
    options = dict(steps=4, learning_rate=3e-2, replay_share=0.25, question_choice="uniform", max_entropy_age=0)
    trainer = run(tmp_path, rights(1, then=(0,)), max_drift=1e-4, **options)
    assert sum(logs(trainer, "replay/refused")) > 0
    drifts = {}
    for event in trainer.events:
        if isinstance(event, Measured):
            drifts[event.serial] = event.drift
        if isinstance(event, Replayed):
            assert drifts.get(event.serial, 0.0) <= 1e-4
    assert max(drifts.values()) > 1e-4
    free = run(tmp_path, rights(1, then=(0,)), **options)
    assert sum(replays(free)) > sum(replays(trainer))
    assert sum(logs(free, "replay/refused")) == 0


@pytest.mark.slow
def test_inherited_trajectories_are_measured_before_a_drift_limit_lets_them_in(tmp_path):
    """They are another policy's: nothing is known of how far this one is from it."""
    log = dict(experience_log="experience.db")
    run(tmp_path / "earlier", rights(1), steps=4, learning_rate=3e-2, **log)
    trainer = run(
        tmp_path / "later", rights(0), steps=1, max_drift=1e-3, trajectory_choice="newest", model=h.tiny_model(7),
        experience_from=str(tmp_path / "earlier"), learning_rate=0.0, **log,
    )  # fmt: skip
    assert len(trainer.planner.buffer) >= 8
    for choice in trainer.plans[0].choices:
        t = choice.trajectory
        now, _ = h.score_alone(trainer.model, trainer.questions.prompt_ids(t.question), t.completion_ids.tolist())
        assert np.square(np.array(now) - t.behaviour_logps).mean() <= 1e-3
    assert trainer.measurements


# A user's own -------------------------------------------------------------------------------------------------------

MODULE = """
import numpy as np

calls = []

def middle_first(candidates):
    calls.append("sampler")
    return np.zeros(len(candidates.accuracy))

middle_first.eligible = lambda candidates: candidates.accuracy == candidates.config.rule_option("middle")

def second(candidates):
    calls.append("choice")
    serial = np.where(candidates.valid, candidates.serial, 10**9)
    return np.abs(serial - serial.min(1, keepdims=True) - 1).astype(float)

def log_ratio(terms):
    calls.append("correction")
    return terms.log_w * terms.advantages
"""


@pytest.fixture(params=["name", "path"])
def own(request, tmp_path, monkeypatch):
    """Names of a sampler, a choice and a correction, registered or as dotted paths."""
    (tmp_path / "my_own_options.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import my_own_options as module

    names = {option: f"my_own_options.{function}" for option, function in (
        ("question_choice", "middle_first"), ("trajectory_choice", "second"), ("correction", "log_ratio")
    )}  # fmt: skip
    if request.param == "name":
        names = dict(question_choice="my_middle", trajectory_choice="my_second", correction="my_log_ratio")
        register_question_sampler("my_middle", module.middle_first, eligible=module.middle_first.eligible)
        register_trajectory_choice("my_second", module.second)
        register_correction("my_log_ratio", module.log_ratio)
    yield names, module
    for registry, name in (
        (QUESTION_SAMPLERS, "my_middle"),
        (TRAJECTORY_CHOICES, "my_second"),
        (CORRECTIONS, "my_log_ratio"),
    ):
        registry._rules.pop(name, None)
    sys.modules.pop("my_own_options", None)


@pytest.mark.slow
def test_a_user_s_own_options_act(tmp_path, own):
    """Replayed are questions with 3 of 4 right, by their second success; the gradient of log w A is that of `none`."""

    def script(generation, prompt, member):
        return rights(*FIVE)(generation, prompt, member) if generation < 3 else "z$"

    names, module = own
    finals = []
    for correction in (names["correction"], "none", "shaped"):
        options = {**names, "correction": correction, "rule_options": {"middle": 0.75}}
        trainer = run(tmp_path, script, n=24, steps=5, start_step=3, learning_rate=1e-2, model=h.tiny_model(2),
                      **options)  # fmt: skip
        assert len(replayed_numbers(trainer, 3)) == 4
        assert {i % 5 for i in replayed_numbers(trainer, 3)} == {3}
        first = {}
        for event in trainer.events.of(Admitted):
            first.setdefault(event.trajectory.question, event.serial)
        replayed = [e for e in trainer.events.of(Replayed) if e.generation == 3]
        assert {e.serial - first[e.question] for e in replayed} == {1}
        finals.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
    assert {"sampler", "choice", "correction"} <= set(module.calls)
    torch.testing.assert_close(finals[0], finals[1], atol=1e-5, rtol=1e-4)
    assert (finals[0] - finals[2]).abs().max() > 1e-3


SMALL = [
    {"preset": "fresh-per", "age_decay": 2.0},
    {"preset": "skip", "skip_floor_solved": 0.2, "skip_floor_hopeless": 0.4},
    {"correction": "asymre", "admission": "all", "asymmetry": 0.3},
    {"correction": "veto", "admission": "all", "veto_ratio": 0.5},
    {"preset": "prefix", "prefix_before_answer": False},
]


@pytest.mark.slow
@pytest.mark.parametrize("options", SMALL, ids=lambda options: next(iter(options.values())))
def test_small_options_reach_the_plan_and_the_loss(tmp_path, options):
    trainer = run(tmp_path, rights(*FIVE), n=16, steps=6, **options)
    assert trainer.state.global_step == 6
    known = {**vars(trainer.planner.config), **vars(trainer.args.objective)}
    for name in options.keys() - {"preset"}:
        assert known[name] == options[name], name


# None is left out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", [*REPLAY_FIELDS, *OBJECTIVE_FIELDS])
def test_every_option_is_set_in_a_run_of_this_folder(option):
    """Each option is given by name to a trainer that trains, here or beside it."""
    files = [path for path in Path(__file__).parent.glob("test_*.py") if "refusals" not in path.name]
    assert any(re.search(rf"\b{option}=|\"{option}\":", path.read_text()) for path in files)


@pytest.mark.parametrize(
    ("given", "updates"), [({"preset": "two-updates"}, 2), ({"preset": "two-updates", "num_iterations": 1}, 1), ({}, 1)]
)
def test_a_preset_may_set_an_option_of_the_host(tmp_path, given, updates):
    """Not given means the preset's; a copy with another preset takes that one's."""
    args = h.config(tmp_path, **given)
    assert args.num_iterations == updates
    assert replace(args, preset="rescue").num_iterations == 1
    assert replace(h.config(tmp_path, num_iterations=3), preset="two-updates").num_iterations == 3
    assert replace(args, preset="two-updates").num_iterations == (2 if updates == 2 or not given else 1)
