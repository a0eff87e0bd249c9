"""What an objective is said to do equals what its loss does."""

import itertools
import math

import pytest
import torch

from exgrpo.config import BASELINES, CORRECTIONS, ObjectiveConfig
from exgrpo.errors import ConfigurationError
from exgrpo.objective import (
    NetPush,
    gradient_weights,
    group_advantages,
    mixed_loss,
    net_push,
    register_correction,
    replay_loss,
)  # fmt: skip

RATIOS = [0.01, 0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0, 10.0]


@pytest.fixture
def own_options(monkeypatch):
    """What a test registers is gone after it."""
    assert all(CORRECTIONS[name] for name in CORRECTIONS)
    monkeypatch.setattr(CORRECTIONS, "_rules", dict(CORRECTIONS._rules))


# The gradient weight of a token ---------------------------------------------------------------------------------------


def test_the_shaped_ratio_worked_by_hand():
    """.1 / 1.21 at w = 1, and at most 1/4, where w = beta."""
    assert gradient_weights(ObjectiveConfig(), [1.0, 0.1]) == pytest.approx([0.1 / 1.21, 0.25], rel=1e-12)
    assert gradient_weights(ObjectiveConfig(), [1.0])[0] == pytest.approx(0.0826, abs=5e-5)
    finely = gradient_weights(ObjectiveConfig(shaping_beta=0.4), [0.01 * i for i in range(1, 200)])
    assert max(finely) == pytest.approx(0.25, rel=1e-12)
    assert finely.index(max(finely)) == 39  # w = .4


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(
    ("options", "formula"),
    [
        (dict(correction="shaped"), lambda w, sign: 0.1 * w / (w + 0.1) ** 2),
        (dict(correction="shaped", shaping_beta=2.0), lambda w, sign: 2 * w / (w + 2) ** 2),
        (dict(correction="truncated"), lambda w, sign: min(w, 1.0)),
        (dict(correction="truncated", truncation=1.5), lambda w, sign: min(w, 1.5)),
        (dict(correction="none"), lambda w, sign: 1.0),
        (dict(correction="clip"), lambda w, sign: w if (w < 1.2 if sign > 0 else w > 0.8) else 0.0),
        (dict(correction="second_moment"), lambda w, sign: w if math.log(w) ** 2 <= 0.04 else 0.0),
        (dict(correction="topr"), lambda w, sign: 1.0 if sign > 0 else min(w, 1.0)),
        (dict(correction="asymre"), lambda w, sign: 1.1 if sign > 0 else 0.9),
        (dict(correction="veto"), lambda w, sign: min(w, 1.0)),
        (dict(correction="likelihood"), lambda w, sign: 3.0),  # 20 * .15
        (dict(correction="likelihood", likelihood_clamp=2.0), lambda w, sign: 2.0),
    ],
)  # fmt: skip
def test_every_correction_at_many_ratios(options, formula, sign):
    got = gradient_weights(ObjectiveConfig(**options), RATIOS, sign, vocabulary=20, probability=0.15)
    assert got == pytest.approx([formula(w, sign) for w in RATIOS], rel=1e-12)
    assert all(math.copysign(1.0, g) == 1.0 for g in got)  # no -0.0 in a table


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("advantage", [0.875, -0.125])
@pytest.mark.parametrize("epsilon", [0.1, 0.3])
def test_equal_to_the_gradient_of_the_loss_that_trains(correction, advantage, epsilon):
    config, n = ObjectiveConfig(correction=correction), len(RATIOS)
    told = gradient_weights(config, RATIOS, advantage, epsilon, vocabulary=30, probability=0.2)
    leaf = torch.full((n, 1), math.log(0.2), dtype=torch.float64, requires_grad=True)  # an answer each
    behaviour = leaf.detach() - torch.tensor(RATIOS, dtype=torch.float64).log()[:, None]
    replay_loss(
        leaf, behaviour, torch.full((n,), advantage, dtype=torch.float64), torch.ones(n, 1),
        torch.ones(n, dtype=torch.bool), config, 1.0, epsilon, vocabulary=30,
    ).loss.backward()  # fmt: skip
    assert (-leaf.grad[:, 0] / advantage).tolist() == pytest.approx(told, rel=1e-9)


@pytest.mark.usefixtures("own_options")
def test_a_correction_of_one_s_own_is_explained_too():
    """One whose weight depends on how large the advantage is, and one without any gradient."""
    register_correction("squared", lambda terms: terms.log_w * terms.advantages**2)
    register_correction("nothing", lambda terms: torch.zeros_like(terms.log_w))
    with torch.no_grad():  # as a report may be written inside an evaluation
        assert gradient_weights(ObjectiveConfig(correction="squared"), [0.5, 2.0], 3.0) == [3.0, 3.0]
        assert gradient_weights(ObjectiveConfig(correction="nothing"), [0.5, 2.0]) == [0.0, 0.0]
    assert gradient_weights(ObjectiveConfig(correction="nothing"), []) == []
    assert gradient_weights(ObjectiveConfig(), []) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(w=[1.0, 0.0]), "w to be finite ratios above 0"),
        (dict(w=[math.inf]), "w to be"),
        (dict(w=[1.0], advantage=0.0), "advantage to be a finite number other than 0, but advantage=0.0 came"),
        (dict(w=[1.0], probability=1.5), "probability to be"),
        (dict(w=[1.0]), r"Pass vocabulary=model\.config\.vocab_size"),
    ],
)
def test_what_gradient_weights_refuses(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        gradient_weights(ObjectiveConfig(correction="likelihood"), **arguments)


# The net push of a group ----------------------------------------------------------------------------------------------


def test_a_stored_success_among_seven_failures_worked_by_hand():
    """Advantages 7/8 and seven times -1/8. The shaped ratio leaves .0826 of the one and all of the others."""
    got = net_push(ObjectiveConfig(), 8, 0)
    assert got == NetPush(pytest.approx(0.1 / 1.21 * 7 / 8), pytest.approx(-7 / 8), pytest.approx(-0.8027, abs=5e-5))
    assert net_push(ObjectiveConfig(correction="truncated"), 8, 0).net == pytest.approx(0.0, abs=1e-12)
    rescue = ObjectiveConfig(correction="truncated", positive_weight=8.0)
    assert net_push(rescue, 8, 0) == NetPush(pytest.approx(7.0), pytest.approx(-7 / 8), pytest.approx(7 * 7 / 8))


def test_more_fresh_successes_worked_by_hand():
    """K = 4, one stored: with s fresh successes the mean is (s+1)/4. At s = 3 the group is flat."""
    f = 0.1 / 1.21
    got = [net_push(ObjectiveConfig(), 4, s) for s in range(4)]
    assert [p.positive for p in got] == pytest.approx([f * 0.75, 0.5 + f * 0.5, 0.5 + f * 0.25, 0.0])
    assert [p.negative for p in got] == pytest.approx([-0.75, -1.0, -0.75, 0.0])
    assert [p.net for p in got] == pytest.approx([p.positive + p.negative for p in got])


def test_a_replayed_failure_and_a_stale_one():
    """Rewards 1, 0 fresh and 0 replayed at w = 2: mean 1/3; the truncated ratio keeps it at 1, no clip at all at 2."""
    one = ObjectiveConfig(correction="truncated")
    two = ObjectiveConfig(correction="truncated", truncation=2.0)
    assert net_push(one, 3, 1, (0.0,), w=2.0).negative == pytest.approx(-2 / 3)
    assert net_push(two, 3, 1, (0.0,), w=2.0).negative == pytest.approx(-1)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("scale", ["none", "group"])
@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("stored", [(), (1.0,), (1.0, 0.5, 0.0)], ids=len)
def test_equal_to_the_gradient_of_a_whole_group(baseline, scale, correction, stored):
    """Every member one token, through `group_advantages` and `mixed_loss`."""
    k, vocabulary, probability = 6, 12, 0.3
    for w, weight in itertools.product((0.3, 2.5), (1.0, 4.0)):
        config = ObjectiveConfig(correction=correction, baseline=baseline, positive_weight=weight)
        for successes in range(k - len(stored) + 1):
            rewards = torch.zeros(1, k, dtype=torch.float64)
            rewards[0, :successes] = 1.0
            replayed = torch.arange(k) >= k - len(stored)
            rewards[0, replayed] = torch.tensor(stored, dtype=torch.float64)
            advantages = group_advantages(rewards, weight, scale, replayed[None], baseline)[0]
            leaf = torch.full((k, 1), math.log(probability), dtype=torch.float64, requires_grad=True)
            then = leaf.detach() - replayed[:, None] * math.log(w)
            mixed_loss(
                leaf, leaf.detach(), then, advantages, torch.ones(k, 1), replayed, config, 1, vocabulary=vocabulary
            ).backward()
            pushes = (-leaf.grad * k)[:, 0]
            told = net_push(config, k, successes, stored, w, 0.2, vocabulary, probability, scale)
            assert told.positive == pytest.approx(pushes.clamp(min=0).sum().item(), rel=1e-6, abs=1e-9)
            assert told.negative == pytest.approx(pushes.clamp(max=0).sum().item(), rel=1e-6, abs=1e-9)
            assert told.net == pytest.approx(pushes.sum().item(), rel=1e-6, abs=1e-9)


def test_numbers_that_make_no_group_are_refused():
    for generations, successes, stored, most in ((8, 8, (1.0,), 7), (8, -1, (1.0,), 7), (1, 0, (1.0, 1.0), 0)):
        with pytest.raises(ConfigurationError, match=f"0 to {most} fresh successes, but num_generations={generations}"):
            net_push(ObjectiveConfig(), generations, successes, stored)
