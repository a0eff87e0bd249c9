"""Recipe A: difficulty, which updates replay, entropies, importance weights and the loss."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from exgrpo import ObjectiveConfig
from exgrpo.errors import ConfigurationError
from exgrpo.experience.policy_stats import PolicyStats
from exgrpo.objective import mixed_loss
from exgrpo.recipes import (
    DifficultyBucketer,
    Rollouts,
    SelectiveReplay,
    TrajectoryBuffer,
    compute_entropy,
    compute_grpo_loss,
    compute_importance_weights,
    entropy,
)
from exgrpo.recipes.rollouts import advantages_by_group
from exgrpo.replay.rng import COIN, generator_for

ROOT = Path(__file__).parents[2]

# Difficulty -------------------------------------------------------------------------------------------------------------


def told(bucketer: DifficultyBucketer, rates: dict, problem_type=None, of: int = 10) -> DifficultyBucketer:
    """Ten trajectories of each question, so many of them right."""
    for prompt, right in rates.items():
        for i in range(of):
            bucketer.update(prompt, i < right, problem_type)
    return bucketer


def test_the_rate_is_over_the_latest_of_a_window():
    bucketer = DifficultyBucketer(window_size=4)
    assert math.isnan(bucketer.rate("q"))
    for right, rate in ((1, 1), (0, 1 / 2), (0, 1 / 3), (1, 2 / 4), (1, 2 / 4), (1, 3 / 4), (1, 4 / 4)):
        bucketer.update("q", right)
        assert bucketer.rate("q") == rate
    bucketer.update("other", False)
    assert (bucketer.rate("q"), bucketer.rate("other"), len(bucketer)) == (1, 0, 2)
    bucketer.clear()
    assert (len(bucketer), bucketer.bucket("q")) == (0, "unknown")


def test_the_rate_of_a_problem_type():
    bucketer = DifficultyBucketer(window_size=4)
    for prompt, right, kind in (
        ("a", 1, "x"),
        ("b", 0, "x"),
        ("c", 1, "y"),
        ("b", 1, "x"),
        ("a", 1, "x"),
        ("a", 0, "x"),
    ):
        bucketer.update(prompt, right, kind)
    assert bucketer.rate_of_type("x") == 2 / 4, "1 0 1 1 0, of which the first has left"
    assert bucketer.rate_of_type("y") == 1
    assert math.isnan(bucketer.rate_of_type("z"))


def test_what_a_rate_makes_a_question():
    rates = {"0": 0, "10": 1, "30": 3, "40": 4, "60": 6, "70": 7, "90": 9, "100": 10}
    bucketer = told(DifficultyBucketer(), rates)
    assert [bucketer.bucket(prompt) for prompt in rates] == [
        "too_hard", "hard", "hard", "medium", "medium", "easy", "easy", "too_easy"
    ]  # fmt: skip
    assert bucketer.bucket("30", (0.2, 0.4)) == "medium"
    assert bucketer.bucket("never seen") == "unknown"


def test_bounds_that_adapt():
    """Of 0.1 to 0.5 the quantiles 0.3 and 0.7 are the 2nd and the 4th of five."""
    rates = {"1": 1, "2": 2, "3": 3, "4": 4, "5": 5}
    bucketer = told(DifficultyBucketer(adaptive=True), rates)
    assert bucketer.bounds(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == (0.2, 0.4)
    assert [bucketer.bucket(prompt) for prompt in rates] == ["hard", "medium", "medium", "medium", "easy"]


def test_what_is_too_hard_is_never_medium():
    bucketer = told(DifficultyBucketer(adaptive=True), {"1": 0, "2": 0, "3": 0, "4": 10})
    assert [bucketer.bucket(str(n)) for n in (1, 2, 3, 4)] == ["too_hard"] * 3 + ["too_easy"]
    assert not bucketer.inside(np.array([0.0, 0.0, 1.0, 1.0])).any()


@pytest.mark.parametrize(("apart", "expected"), [(False, ["hard", "hard", "medium", "medium"]), (True, ["medium"] * 4)])
def test_bounds_that_adapt_to_each_problem_type(apart, expected):
    bucketer = DifficultyBucketer(adaptive=True, by_problem_type=apart)
    told(bucketer, {"a": 1, "b": 2}, "hard ones")
    told(bucketer, {"c": 7, "d": 8}, "easy ones")
    assert [bucketer.bucket(prompt, (0.6, 1.0) if not apart else (0.3, 0.7)) for prompt in "abcd"] == expected


def test_a_question_is_known_by_the_content_of_its_prompt():
    bucketer = DifficultyBucketer()
    same = [[1, 2], (1, 2), np.array([1, 2]), torch.tensor([1, 2])]
    assert [bucketer.update(prompt, True) for prompt in same] == [0, 0, 0, 0]
    messages = [{"role": "user", "content": "Hi"}], [{"content": "Hi", "role": "user"}]
    assert [bucketer.update(prompt, True) for prompt in messages] == [1, 1]
    others = ["1 2", ("text", 3), 7, [1, 2, 3], "[1, 2]"]
    assert [bucketer.update(prompt, True) for prompt in others] == [2, 3, 4, 5, 6]
    with pytest.raises(ConfigurationError, match="hashable"):
        bucketer.update({1, 2}, True)
    assert len(bucketer) == 7


@pytest.mark.parametrize(
    "options", [{"metric": "length"}, {"window_size": 0}, {"window_size": 2.0}, {"window_size": True}]
)
def test_a_bucketer_that_cannot_work(options):
    with pytest.raises(ConfigurationError, match="DifficultyBucketer needs"):
        DifficultyBucketer(**options)


# Which updates replay ---------------------------------------------------------------------------------------------------


def filled(n: int = 40) -> TrajectoryBuffer:
    """Four questions of rate 0.5, n trajectories."""
    buffer = TrajectoryBuffer()
    for i in range(n):
        buffer.add({"prompt": f"q{i % 4}", "rollout": f"{i}", "reward": float(i // 4 % 2), "entropy": i / n})
    return buffer


def test_the_gate():
    replay = SelectiveReplay(replay_probability=1.0, min_stored=40)
    assert (replay.batch(filled(), 8, 4.9), replay.idle) == (
        None, "gate closed: epoch 4.90 < 5; 40 trajectories stored, must be more than 40"
    )  # fmt: skip
    assert replay.batch(filled(), 8, 5.0) is None
    buffer = filled(41)
    assert len(replay.batch(buffer, 8, 5.0)) == 8
    assert replay.idle is None
    assert (replay.updates, replay.replay_updates) == (3, 1)
    buffer.clear()
    put_again = {"prompt": "q", "rollout": "r", "reward": 1.0, "entropy": 0.1}
    buffer.add(put_again)
    assert replay.batch(buffer, 8, 5.0) is None
    assert replay.idle == "gate closed: 1 trajectories stored, must be more than 40"


def test_the_coin_is_the_one_of_the_trainer():
    """Drawn from seed and number of the update: a run that goes on draws what it would have drawn."""
    replay = SelectiveReplay(replay_start_epoch=0, min_stored=0, seed=3)
    buffer = filled()
    came = [replay.batch(buffer, 8, 0) for _ in range(200)]
    assert [c is not None for c in came] == [generator_for(3, n, COIN).random() < 0.3 for n in range(200)]
    assert replay.replay_updates == sum(c is not None for c in came)
    assert 40 < replay.replay_updates < 80
    later = SelectiveReplay(replay_start_epoch=0, min_stored=0, seed=3)
    later.updates = 150
    for sample in came[150:]:
        again = later.batch(buffer, 8, 0)
        assert (again is None) == (sample is None)
        assert again is None or again.rollouts == sample.rollouts


def test_what_it_replays_is_what_the_buffer_samples():
    buffer, replay = filled(), SelectiveReplay(replay_probability=1.0, replay_start_epoch=0, min_stored=0)
    sample = replay.batch(buffer, 6, 0, group_size=3)
    assert len(sample) == 6
    assert sample.entropies.max() <= 0.225, "the tenth of 40"
    replay.idle = "something"
    assert replay.batch(buffer, 6, 0).rollouts != sample.rollouts, "another update, another draw"
    narrow = SelectiveReplay("entropy_guided", 1.0, (0.1, 0.4), replay_start_epoch=0, min_stored=0)
    assert narrow.batch(buffer, 6, 0) is None
    assert narrow.idle == "none of 40 stored trajectories qualifies for 'entropy_guided'"
    assert narrow.replay_updates == 0


def test_never_and_always():
    never = SelectiveReplay(replay_probability=0.0, replay_start_epoch=0, min_stored=0)
    assert all(never.batch(filled(), 4, 9) is None for _ in range(20))
    assert never.idle == "on-policy by the coin: replay_probability is 0"
    assert SelectiveReplay("random", 1.0, replay_start_epoch=0, min_stored=0).batch(TrajectoryBuffer(), 4, 9) is None


@pytest.mark.parametrize(
    "options",
    [{"strategy": "best"}, {"replay_probability": 1.1}, {"medium_difficulty_range": (0.7, 0.3)}, {"min_stored": -1},
     {"medium_difficulty_range": (-0.1, 0.3)}, {"entropy_percentile": 0}, {"replay_start_epoch": -1}, {"seed": -1}],
)  # fmt: skip
def test_replay_that_cannot_work(options):
    with pytest.raises(ConfigurationError, match="SelectiveReplay needs"):
        SelectiveReplay(**options)


# Entropy ----------------------------------------------------------------------------------------------------------------


def slow_entropies(logits, mask) -> list[float]:
    """One token after the other."""
    found = []
    for row, own in zip(logits.double().tolist(), mask.tolist(), strict=True):
        values = []
        for token, counts in zip(row, own, strict=True):
            if counts:
                total = sum(math.exp(x) for x in token)
                values.append(-sum(math.exp(x) / total * (x - math.log(total)) for x in token if x > -math.inf))
        found.append(sum(values) / len(values) if values else math.nan)
    return found


def test_entropy_by_hand():
    logits = torch.tensor([[0.0, 0, 0, 0], [0, 0, -math.inf, -math.inf], [-math.inf, 5, -math.inf, -math.inf]])
    assert compute_entropy(logits).item() == pytest.approx((math.log(4) + math.log(2) + 0) / 3)
    assert compute_entropy(logits, torch.tensor([1, 0, 1])).item() == pytest.approx(math.log(4) / 2)
    assert compute_entropy(logits, torch.zeros(3)).isnan()


@pytest.mark.parametrize("at_once", [1, 7, 25, 1 << 24])
def test_entropy_is_that_of_the_slow_reference_in_pieces_of_any_size(monkeypatch, at_once):
    monkeypatch.setattr(entropy, "ELEMENTS_AT_ONCE", at_once)
    logits = 3 * torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
    logits[0, 0, :3] = -math.inf
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [0] * 6, [1, 0, 1, 0, 1, 0]])
    logits[1, 3] = math.nan  # padding: whatever stands there
    expected = slow_entropies(logits, mask)
    assert compute_entropy(logits, mask).tolist() == pytest.approx(expected, rel=1e-5, nan_ok=True)
    wide = torch.stack([logits, logits], 2)[:, :, 0]  # not contiguous
    assert not wide.is_contiguous()
    assert compute_entropy(wide, mask).tolist() == pytest.approx(expected, rel=1e-5, nan_ok=True)


def test_entropy_of_half_precision_is_worked_out_in_single():
    logits = torch.randn(2, 3, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = compute_entropy(logits.requires_grad_())
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert found.tolist() == pytest.approx(slow_entropies(logits, torch.ones(2, 3)), rel=1e-5)


def test_the_variance_of_confidence():
    """Of 0.5 and 0.9 the mean is 0.7, the variance 0.04. Of the tokens themselves, 0.5 and 0.1, likewise, as in the core."""
    logits = torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.3, 0.7]]).log()[None]
    mask = torch.tensor([[1, 1, 0]])
    assert compute_entropy(logits, mask, "confidence_variance").tolist() == pytest.approx([0.04])
    ids = torch.tensor([[1, 0, 0]])
    assert compute_entropy(logits, mask, "confidence_variance", token_ids=ids).tolist() == pytest.approx([0.04])
    core = PolicyStats.of_tokens(np.log([0.5, 0.1]), np.zeros(2)).confidence_variance
    assert core == pytest.approx(0.04)


def test_entropy_of_what_generation_gives():
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))

    class Output:
        pass

    output = Output()
    output.logits = tuple(logits.unbind(1))
    expected = compute_entropy(logits).tolist()
    assert compute_entropy(output).tolist() == compute_entropy(output.logits).tolist() == expected
    output.logits = logits
    assert compute_entropy(output).tolist() == expected
    assert compute_entropy({"logits": logits.numpy()}).tolist() == expected


def test_entropy_of_what_a_buffer_gave_out_is_what_was_stored():
    buffer = TrajectoryBuffer()
    for rollout, known in (("text", 0.25), ([4, 5], 0.5), ([6], math.nan)):
        buffer.add({"prompt": "q", "rollout": rollout, "reward": 1.0, "entropy": known})
    sample = buffer.sample("random", 3)
    found = compute_entropy(sample.rollouts)
    assert found.tolist() == pytest.approx(sample.entropies.tolist(), nan_ok=True)
    assert sorted(found.tolist())[:1] == [0.25]
    for kept in (list(sample.rollouts), tuple(sample["rollouts"])):
        assert compute_entropy(kept).tolist() == pytest.approx(found.tolist(), nan_ok=True)
    alone = [compute_entropy(rollout) for rollout in sample.rollouts]
    assert alone[0].shape == ()
    assert [one.item() for one in alone] == pytest.approx(found.tolist(), nan_ok=True)
    assert compute_entropy(buffer.sample("random", 0).rollouts).shape == (0,)
    with pytest.raises(ConfigurationError, match="its entropy, not its confidence_variance"):
        compute_entropy(sample.rollouts, kind="confidence_variance")


def test_entropy_of_token_ids_under_a_policy():
    model, prompts, completions = gpt2(), [[1], [2, 3, 4]], [[7, 8, 9], [10]]
    found = compute_entropy(Rollouts.collate(prompts, completions), policy=model, temperature=0.5)
    for value, prompt, completion in zip(found.tolist(), prompts, completions, strict=True):
        logits = 2 * model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        assert value == pytest.approx(compute_entropy(logits).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("given", "what"),
    [("some text", "str"), (["some text", "more"], "str"), (torch.tensor([[1, 2]]), "token ids"), ([1, 2], "token ids"),
     ([torch.tensor([1, 2])], "token ids"), (SimpleNamespace(logits=None), "NoneType"),
     ({"sequences": 1}, "dict"), ([], "list"), (Rollouts.collate([[1]], [[2]]), "Rollouts")],
)  # fmt: skip
def test_entropy_of_what_has_no_logits_says_what_to_add(given, what):
    with pytest.raises(ConfigurationError, match=rf"sampled from, not {what}\. .*output_logits=True.*policy=policy"):
        compute_entropy(given)


@pytest.mark.parametrize("options", [{"kind": "perplexity"}, {"mask": torch.ones(2, 2)}, {"token_ids": torch.zeros(3)}])
def test_entropy_of_what_does_not_fit(options):
    with pytest.raises(ConfigurationError, match="compute_entropy needs"):
        compute_entropy(torch.zeros(2, 3, 5), **options)
    with pytest.raises(ConfigurationError, match="compute_entropy needs logits"):
        compute_entropy(torch.zeros(5))


# Rollouts ---------------------------------------------------------------------------------------------------------------


def test_a_loss_of_rollouts_that_are_all_alone_says_so():
    rollouts = Rollouts.collate([[1], [2]], [[3], [4]]).under(lambda r: torch.zeros(2, 1, requires_grad=True))
    with pytest.warns(UserWarning, match=r"each of 2 rollouts is the only one.*group_size=8.*baselines=batch.rates"):
        assert compute_grpo_loss(rollouts, [1.0, 0.0]).item() == 0
    assert compute_grpo_loss(rollouts, [1.0, 0.0], baselines=[0.5, 0.5]).requires_grad


def test_how_rollouts_lie_side_by_side():
    r = Rollouts.collate(
        [[1, 2], np.array([3])], [torch.tensor([4]), [5, 6, 7]], [[-1.0], [-2.0, -3.0, -4.0]], pad_id=9
    )
    assert r.prompt_ids.tolist() == [[1, 2], [9, 3]]
    assert r.prompt_mask.tolist() == [[1, 1], [0, 1]]
    assert r.completion_ids.tolist() == [[4, 9, 9], [5, 6, 7]]
    assert r.mask.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert r.behaviour_logps.tolist() == [[-1, 0, 0], [-2, -3, -4]]
    assert len(r) == 2
    assert Rollouts.collate([[1], [2]], [[3], [4]], [[-1.0], None]).behaviour_logps is None


def test_groups_are_those_of_equal_prompts():
    prompts = [[5], [0, 5], [5], [5, 5], [0, 5]]
    groups = Rollouts.collate(prompts, [[1]] * 5, pad_id=0).groups.tolist()
    assert [groups.index(g) for g in groups] == [0, 1, 0, 3, 1], "padding with 0 is not the token 0"


@pytest.mark.parametrize(
    "arguments", [([[1]], [[2], [3]]), ([[1]], [[2]], [[-1.0, -1.0]]), ([[1], [1]], [[2], [2, 2]], [[-1.0], [-1.0]])]
)
def test_rollouts_that_do_not_fit(arguments):
    with pytest.raises(ConfigurationError):
        Rollouts.collate(*arguments)
    with pytest.raises(ConfigurationError, match=r"mask of shape \(1, 2\)"):
        Rollouts(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 2), torch.ones(1, 3))


def gpt2():
    """With learned positions, which padding before a prompt would shift."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2)).eval()


def test_log_probs_are_those_of_each_rollout_alone():
    model, prompts, completions = gpt2(), [[1], [2, 3, 4], [5, 6]], [[7, 8, 9], [10], [1, 2]]
    logps = Rollouts.collate(prompts, completions).under(model).logps
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        logits = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        alone = [logits[len(prompt) - 1 + t, token].item() for t, token in enumerate(completion)]
        assert logps[row].tolist() == pytest.approx(alone + [0.0] * (3 - len(completion)), abs=1e-5)
    cold = Rollouts.collate([[2, 3, 4]], [[10]]).under(model, temperature=0.5).logps.item()
    logits = model(torch.tensor([[2, 3, 4]])).logits[0, -1]
    assert cold == pytest.approx((2 * logits).log_softmax(-1)[10].item(), abs=1e-5)


def test_a_rollout_after_the_other():
    rollouts = Rollouts.collate([[1], [2]], [[3], [4, 5]])
    assert [ids.tolist() for ids in rollouts] == [[3], [4, 5]]


# Importance weights -----------------------------------------------------------------------------------------------------


def test_weights_by_hand():
    mask = torch.tensor([[1, 1, 0]])
    rollouts = Rollouts(torch.ones(1, 1), torch.ones(1, 1), torch.ones(1, 3), mask)
    old = torch.tensor([[0.5, 0.2, 0.1]]).log()
    new = torch.tensor([[0.25, 0.6, 0.4]]).log()
    weights = compute_importance_weights(lambda r: old, lambda r: new, rollouts)
    assert weights[0].tolist() == pytest.approx([0.5, 3.0, 1.0])
    assert weights[0, 2] == 1


def test_no_gradient_flows_through_the_old_policy():
    old, new = nn.Parameter(torch.zeros(1, 2)), nn.Parameter(torch.ones(1, 2))
    compute_importance_weights(lambda r: 2 * old, lambda r: new, {"anything": "at all"}).sum().backward()
    assert old.grad is None
    assert new.grad[0].tolist() == pytest.approx([math.e, math.e])
    model, snapshot = gpt2(), TrajectoryBuffer()
    snapshot.snapshot_policy(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    rollouts = Rollouts.collate([[1]], [[7, 8]])
    compute_importance_weights(snapshot.policy_snapshot, model, rollouts).sum().backward()
    assert all(p.grad is None for p in snapshot.policy_snapshot.parameters())
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_a_snapshot_does_not_go_on_learning():
    model, buffer = gpt2().train(), TrajectoryBuffer()
    buffer.snapshot_policy(model)
    rollouts = Rollouts.collate([[1]], [[7, 8]])
    before = rollouts.under(buffer.policy_snapshot).logps
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    assert torch.equal(rollouts.under(buffer.policy_snapshot).logps, before)
    assert model.training
    assert not buffer.policy_snapshot.training


def test_weights_that_would_overflow():
    new = torch.tensor([[-2.0, -200.0]], requires_grad=True)
    weights = compute_importance_weights(lambda r: torch.tensor([[-91.0, -1.0]]), lambda r: new, None)
    assert weights[0].tolist() == pytest.approx([math.exp(20), math.exp(-20)])
    weights.sum().backward()
    assert new.grad.isfinite().all()


def test_log_probs_that_rollouts_carry():
    rollouts = Rollouts.collate([[1]], [[2, 3]], [[-1.0, -2.0]])
    weights = compute_importance_weights(None, lambda r: torch.tensor([[-0.5, -3.0]]), rollouts)
    assert weights[0].tolist() == pytest.approx([math.exp(0.5), math.exp(-1)])
    own = rollouts.under(lambda r: torch.tensor([[-1.0, -1.0]]))
    assert compute_importance_weights(None, None, own)[0].tolist() == pytest.approx([1, math.e])
    with pytest.raises(ConfigurationError, match="current_policy=None takes the rollouts' logps"):
        compute_importance_weights(None, None, rollouts)
    with pytest.raises(ConfigurationError, match="of one shape"):
        compute_importance_weights(None, lambda r: torch.zeros(1, 3), rollouts)


# The loss ---------------------------------------------------------------------------------------------------------------

SPREAD = math.sqrt(0.5) + 1e-4  # of the rewards 1 and 0


def rollouts_of(prompts, lengths, logps=None) -> Rollouts:
    given = Rollouts.collate([[p] for p in prompts], [[1] * n for n in lengths])
    if logps is None:
        return given
    return given.under(lambda r: logps)


def test_the_loss_of_fresh_rollouts_by_hand():
    """Two rollouts of one question, of 1 and 2 tokens; rewards 1 and 0: advantages 0.5/s and -0.5/s, mean over own tokens."""
    logps = torch.tensor([[-1.0, 0.0], [-1.0, -2.0]], requires_grad=True)
    loss = compute_grpo_loss(rollouts_of([7, 7], [1, 2], logps), [1.0, 0.0])
    assert loss.item() == pytest.approx(0)
    loss.backward()
    a = 0.5 / SPREAD
    assert logps.grad.flatten().tolist() == pytest.approx([-a / 2, 0, a / 4, a / 4])


def test_dr_grpo_is_the_loss_of_the_core():
    values = torch.tensor([[-1.0, -0.3, 0.0], [-1.0, -2.0, -0.2], [-0.1, 0.0, 0.0], [-0.7, -0.4, 0.0]])
    rewards, lengths = torch.tensor([1.0, 0.0, 1.0, 1.0]), [2, 3, 1, 2]
    mine, core = values.clone().requires_grad_(), values.clone().requires_grad_()
    rollouts = rollouts_of([1, 1, 1, 1], lengths, mine)
    compute_grpo_loss(rollouts, rewards, loss_type="dr_grpo", scale="none", max_completion_length=5).backward()
    nothing = torch.zeros(4, dtype=torch.bool)
    mixed_loss(
        core, values, values, rewards - rewards.mean(), rollouts.mask, nothing, ObjectiveConfig(), 5
    ).backward()  # fmt: skip
    assert mine.grad.abs().sum() > 0
    assert torch.allclose(mine.grad, core.grad)


def test_what_teaches_nothing():
    """The only rollout of a prompt; a group of equal rewards; one that cannot be scored."""
    logps = torch.full((5, 1), -1.0, requires_grad=True)
    compute_grpo_loss(rollouts_of([1, 2, 2, 3, 3], [1] * 5, logps), [1.0, 1.0, 1.0, math.nan, 0.0]).backward()
    assert logps.grad.flatten().tolist() == [0, 0, 0, 0, 0]


def test_baselines_of_ones_own():
    """A question of rate 0.4 and a success of it: 0.6; nothing is divided."""
    logps = torch.full((3, 1), -1.0, requires_grad=True)
    rollouts = rollouts_of([1, 2, 2], [1] * 3, logps)
    compute_grpo_loss(rollouts, [1.0, 1.0, math.nan], baselines=[0.4, 0.5, 0.5]).backward()
    assert (-3 * logps.grad).flatten().tolist() == pytest.approx([0.6, 0.5, 0])
    with pytest.raises(ConfigurationError, match="3 baselines"):
        compute_grpo_loss(rollouts, [1.0] * 3, baselines=[0.5])


def test_the_clip():
    """Rewards 1, 0: A > 0 for the first. Weights 1.5 and 0.5 each: those that the clip cuts have no gradient."""
    weights = torch.tensor([[1.5, 0.5], [1.5, 0.5]], requires_grad=True)
    loss = compute_grpo_loss(rollouts_of([7, 7], [2, 2]), [1.0, 0.0], weights)
    a = 0.5 / SPREAD
    assert loss.item() == pytest.approx(-(a * (1.2 + 0.5) / 2 - a * (1.5 + 0.8) / 2) / 2)
    loss.backward()
    assert weights.grad.flatten().tolist() == pytest.approx([0, -a / 4, a / 4, 0])
    wide = compute_grpo_loss(rollouts_of([7, 7], [2, 2]), [1.0, 0.0], weights, epsilon=0.6)
    assert wide.item() == pytest.approx(0, abs=1e-6)


def test_weights_without_gradient_are_numbers():
    """The same value and the same gradient as if it flowed through them."""
    new, old = (
        torch.tensor([[-1.0, -0.9], [-2.0, -0.4]], requires_grad=True),
        torch.tensor([[-0.9, -0.8], [-1.9, -0.5]]),
    )
    rollouts = rollouts_of([7, 7], [2, 2], new)
    with_gradient = compute_grpo_loss(rollouts, [1.0, 0.0], compute_importance_weights(lambda r: old, None, rollouts))
    (expected,) = torch.autograd.grad(with_gradient, new)
    detached = compute_grpo_loss(rollouts, [1.0, 0.0], torch.exp(new - old).detach())
    (found,) = torch.autograd.grad(detached, new)
    assert torch.allclose(detached, with_gradient)
    assert torch.allclose(found, expected)
    assert expected.abs().min() > 0


def test_a_weight_of_0_has_a_finite_gradient():
    weights = torch.tensor([[0.0], [0.0]], requires_grad=True)
    loss = compute_grpo_loss(rollouts_of([7, 7], [1, 1]), [1.0, 0.0], weights)
    loss.backward()
    assert loss.isfinite()
    assert weights.grad.isfinite().all()


def test_a_loss_that_could_not_teach_is_refused():
    rollouts = rollouts_of([7, 7], [1, 1])
    with pytest.raises(ConfigurationError, match="nothing to take a gradient of"):
        compute_grpo_loss(rollouts, [1.0, 0.0])
    with pytest.raises(ConfigurationError, match="nothing to take a gradient of"):
        compute_grpo_loss(rollouts, [1.0, 0.0], torch.ones(2, 1))
    with torch.no_grad():
        assert compute_grpo_loss(rollouts, [1.0, 0.0], torch.ones(2, 1)).item() == pytest.approx(0)


@pytest.mark.parametrize(
    ("rewards", "options"),
    [([1.0], {}), ([1.0, 0.0], {"loss_type": "bnpo"}), ([1.0, 0.0], {"scale": "batch"}),
     ([1.0, 0.0], {"importance_weights": torch.ones(2)})],
)  # fmt: skip
def test_a_loss_of_what_does_not_fit(rewards, options):
    logps = torch.zeros(2, 1, requires_grad=True)
    with pytest.raises(ConfigurationError):
        compute_grpo_loss(rollouts_of([7, 7], [1, 1], logps), rewards, **options)


def test_the_loss_of_no_rollouts_is_refused():
    with pytest.raises(ConfigurationError, match="at least one rollout"):
        compute_grpo_loss(Rollouts.collate([], []), [])


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, 0.25, math.nan])), min_size=1, max_size=20),
    st.sampled_from(["none", "group"]),
)
def test_advantages_of_groups_of_any_sizes(rows, scale):
    groups = torch.unique(torch.tensor([group for group, _ in rows]), return_inverse=True)[1]
    rewards = [reward for _, reward in rows]
    expected = []
    for group, reward in rows:
        members = [r for g, r in rows if g == group and not math.isnan(r)]
        if math.isnan(reward) or len(set(members)) == 1:
            expected.append(0.0)
            continue
        mean = sum(members) / len(members)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in members) / max(len(members) - 1, 1))
        expected.append((reward - mean) / (deviation + 1e-4 if scale == "group" else 1))
    found = advantages_by_group(torch.tensor(rewards), groups, scale)
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


def test_the_loop_as_it_was_published():
    """A sample's rollouts alone go into both functions; afterwards all that was trained on is added."""
    model, buffer = gpt2(), TrajectoryBuffer()
    for i in range(20):
        buffer.add(
            {"prompt": [1 + i % 2], "rollout": [2 + i % 5, 9][: 1 + i % 2], "reward": float(i // 2 % 2), "entropy": 1.0}
        )
    buffer.snapshot_policy(model)
    batch = buffer.sample("medium_difficulty_low_entropy", size=8, difficulty_range=(0.3, 0.7), entropy_percentile=25)
    with pytest.raises(ConfigurationError, match=r"snapshot_policy.*behaviour_logps"):
        compute_importance_weights(None, model, batch["rollouts"])
    weights = compute_importance_weights(
        old_policy=buffer.policy_snapshot, current_policy=model, rollouts=batch["rollouts"]
    )
    assert weights.flatten().tolist() == pytest.approx([1.0] * weights.numel())
    loss = compute_grpo_loss(rollouts=batch["rollouts"], rewards=batch["rewards"], importance_weights=weights)
    loss.backward()
    collated = Rollouts.collate(batch.prompts, batch.rollouts)
    expected = torch.autograd.grad(compute_grpo_loss(collated.under(model), batch.rewards), model.lm_head.weight)[0]
    assert expected.abs().sum() > 0
    assert torch.allclose(model.lm_head.weight.grad, expected, atol=1e-7)
    size, rate = len(buffer), buffer.difficulty.rate([1])
    for prompt, rollout, reward in zip(batch["prompts"], batch["rollouts"], batch["rewards"], strict=True):
        assert not buffer.add({"prompt": prompt, "rollout": rollout, "reward": reward, "entropy": 1.0})
    assert (len(buffer), buffer.difficulty.rate([1])) == (size, rate)


def test_text_is_for_policies_that_are_functions():
    buffer = TrajectoryBuffer()
    buffer.add({"prompt": "q", "rollout": "some text", "reward": 1.0, "entropy": 1.0})
    sample = buffer.sample("random", 1)
    weights = compute_importance_weights(
        lambda r: torch.zeros(1, 2), lambda r: torch.full((1, 2), len(r[0]) / 9), sample.rollouts
    )
    assert weights[0].tolist() == pytest.approx([math.e, math.e])
    with pytest.raises(ConfigurationError, match="token ids, not text"):
        compute_importance_weights(gpt2(), None, sample.rollouts)
    with pytest.raises(ConfigurationError, match="not list"):
        compute_grpo_loss(["some text"], [1.0])


# The room ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_names_load_what_they_need():
    code = (
        "import sys, exgrpo.recipes as r; r.TrajectoryBuffer, r.Sample, r.DifficultyBucketer, r.SelectiveReplay;"
        "print('torch' in sys.modules); r.Rollouts, r.compute_entropy, r.compute_grpo_loss, r.compute_importance_weights;"
        "print({'transformers', 'trl'} & {*sys.modules}, hasattr(r, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "set() False"]


def test_the_table_of_costs_is_what_was_measured():
    shapes = json.loads((ROOT / "benchmarks/results/recipe_a.json").read_text())["shapes"]
    page = (ROOT / "docs/recipe-a.md").read_text()
    for label, part in (
        ("adding all rollouts", "buffer"), ("`medium_difficulty_low_entropy`", "biased_sampling"),
        ("`random`", "random_sampling"),
        ("stored log-probs", "weights_from_stored"), ("a snapshot", "weights_from_snapshot"), ("entropies", "entropies"),
    ):  # fmt: skip
        cells = [
            f"{s['ms'][part]:.1f} ms, {s['percent_of_a_step'][part]:.2f} %"
            for s in (shapes["tiny"], shapes["smollm2_135m"])
        ]
        assert f"{label} | {cells[0]} | {cells[1]} |" in page, part


def test_all_names_are_there():
    import exgrpo.recipes

    for name in exgrpo.recipes.__all__:
        assert getattr(exgrpo.recipes, name).__name__ == name
