"""Corrections one by one: likelihood over uniform, which tokens are clamped, and a user's own."""

import math

import pytest
import torch

from exgrpo.config import CORRECTIONS, ObjectiveConfig
from exgrpo.errors import ConfigurationError
from exgrpo.objective import Terms, mixed_loss, register_correction, replay_loss
from exgrpo.registry import resolve_rules
from tests.objective.test_objective import VOCABULARY, Batch


def replayed_tokens(probabilities, behaviour, advantage, config, **more):
    """One replayed row: `replay_loss`'s answer with weight 1, and the gradient of the loss."""
    leaf = torch.tensor([probabilities], dtype=torch.float64).log().requires_grad_()
    out = replay_loss(
        leaf, torch.tensor([behaviour], dtype=torch.float64).log(), torch.tensor([advantage], dtype=torch.float64),
        torch.ones(1, len(probabilities)), torch.tensor([True]), config, 1.0, **more,
    )  # fmt: skip
    out.loss.backward()
    return out, leaf.grad[0].tolist()


def test_likelihood_over_uniform_worked_by_hand():
    """V = 10. pi = .25: weight 2.5; pi = .8: 8, clamped to 5. The ratio to the behaviour policy plays no part."""
    config = ObjectiveConfig(correction="likelihood")
    for behaviour in ([0.25, 0.8], [0.01, 0.9]):
        out, gradient = replayed_tokens([0.25, 0.8], behaviour, 0.5, config, vocabulary=10)
        assert gradient == pytest.approx([-2.5 * 0.5, -5 * 0.5])
        assert out.loss.item() == pytest.approx(1.25 * math.log(4) + 2.5 * math.log(1.25))
        assert out.stats.clamped.tolist() == [1]


def test_the_likelihood_s_gradient_below_the_clamp_is_that_of_the_likelihood_itself():
    probabilities = [0.01, 0.1, 0.3, 0.49]
    _, gradient = replayed_tokens(
        probabilities, probabilities, -0.7, ObjectiveConfig(correction="likelihood"), vocabulary=10
    )
    leaf = torch.tensor(probabilities, dtype=torch.float64).log().requires_grad_()
    (10 * leaf.exp() * -0.7).sum().backward()
    assert gradient == pytest.approx((-leaf.grad).tolist(), rel=1e-12)


LOG2 = math.log(2)


def gradients(ratios, advantage, **options):
    """Of the objective with respect to log pi of each token of one answer, divided by nothing."""
    probabilities = [0.25] * len(ratios)
    behaviour = [p / w for p, w in zip(probabilities, ratios, strict=True)]
    out, found = replayed_tokens(probabilities, behaviour, advantage, ObjectiveConfig(**options))
    return [-g for g in found], out.stats.clamped.tolist()


def test_second_moment_worked_by_hand():
    """log w = 0, ln 2, -ln 4: squares 0, .480, 1.922, whose running means are 0, .240, .801."""
    ratios = [1.0, 2.0, 0.25]
    assert gradients(ratios, 0.5, correction="second_moment", moment_limit=1.0) == (
        pytest.approx([0.5, 1.0, 0.125]),
        [0],
    )
    assert gradients(ratios, 0.5, correction="second_moment", moment_limit=0.3) == (pytest.approx([0.5, 1.0, 0.0]), [1])
    assert gradients(ratios, 0.5, correction="second_moment") == (pytest.approx([0.5, 0.0, 0.0]), [2])
    assert gradients([2.0, 2.0], 0.5, correction="second_moment") == (pytest.approx([0.0, 0.0]), [2])


def test_topr_worked_by_hand():
    """W = 2 * .25 * .5 = .25 for a failure; a success weighs 1 whatever its ratio."""
    assert gradients([2.0, 0.25, 0.5], 0.5, correction="topr")[0] == pytest.approx([0.5] * 3)
    assert gradients([2.0, 0.25, 0.5], -0.5, correction="topr") == (pytest.approx([-0.125] * 3), [0])
    assert gradients([2.0, 2.0], -0.5, correction="topr") == (pytest.approx([-0.5] * 2), [2])  # W = 4, cut at 1
    assert gradients([2.0, 2.0], -0.5, correction="topr", truncation=2.0)[0] == pytest.approx([-1.0] * 2)


def test_asymre_worked_by_hand():
    assert gradients([2.0, 0.25], 0.5, correction="asymre")[0] == pytest.approx([0.6, 0.6])
    assert gradients([2.0, 0.25], -0.5, correction="asymre", asymmetry=0.2)[0] == pytest.approx([-0.3, -0.3])
    assert gradients([2.0, 0.25], 0.0, correction="asymre")[0] == [0.0, 0.0]  # a group without variance stays silent


def test_veto_worked_by_hand():
    """The token of ratio .05 ends a failure, itself still counted; a success is learned from to its end."""
    ratios = [1.0, 0.05, 1.0, 4.0]
    assert gradients(ratios, -0.5, correction="veto") == (pytest.approx([-0.5, -0.025, 0.0, 0.0]), [2])
    assert gradients(ratios, 0.5, correction="veto") == (pytest.approx([0.5, 0.025, 0.5, 0.5]), [0])
    assert gradients(ratios, -0.5, correction="veto", veto_ratio=0.01)[0] == pytest.approx([-0.5, -0.025, -0.5, -0.5])


def test_the_likelihood_without_a_vocabulary_is_refused():
    batch, config = Batch(1), ObjectiveConfig(correction="likelihood")
    arguments = (batch.logps, batch.behaviour_logps, batch.advantages, batch.mask, batch.replayed, config)
    with pytest.raises(ConfigurationError, match=r"Pass vocabulary=model\.config\.vocab_size"):
        replay_loss(*arguments, 1.0)
    with pytest.raises(ConfigurationError, match="vocabulary=0"):
        mixed_loss(batch.logps, *arguments, batch.width)


@pytest.mark.parametrize(
    ("options", "advantage", "expected"),
    [
        (dict(correction="shaped"), 1.0, 0),
        (dict(correction="none"), 1.0, 0),
        (dict(correction="truncated"), 1.0, 3),  # 1.1, 1.3, 30
        (dict(correction="truncated"), -1.0, 3),
        (dict(correction="truncated", truncation=1.2), 1.0, 2),
        (dict(correction="clip"), 1.0, 2),  # 1.3, 30
        (dict(correction="clip"), -1.0, 2),  # .1, .7
        (dict(correction="clip"), 0.0, 0),
        (dict(correction="likelihood"), 1.0, 2),  # V pi: .4, 1, 4.9, 5.1, 8, 1
        (dict(correction="likelihood", likelihood_clamp=0.9), 1.0, 5),
        (dict(correction="asymre"), 1.0, 0),
    ],
)
def test_clamped_tokens_worked_by_hand(options, advantage, expected):
    ratios = [0.1, 0.7, 1.0, 1.1, 1.3, 30.0]
    probabilities = [0.04, 0.1, 0.49, 0.51, 0.8, 0.1]
    behaviour = [p / w for p, w in zip(probabilities, ratios, strict=True)]
    behaviour[2] = probabilities[2]  # exactly
    out, _ = replayed_tokens(probabilities, behaviour, advantage, ObjectiveConfig(**options), vocabulary=10)
    assert out.stats.clamped.tolist() == [expected]


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.5])
def test_a_token_counts_as_clipped_exactly_where_its_gradient_is_zero(epsilon):
    some = 0
    for seed in range(12):
        batch = Batch(seed)
        leaf = batch.logps.clone().requires_grad_()
        out = replay_loss(
            leaf, batch.behaviour_logps, batch.advantages, batch.mask, batch.replayed,
            ObjectiveConfig(correction="clip"), 1.0, epsilon,
        )  # fmt: skip
        out.loss.backward()
        own = batch.mask & batch.replayed[:, None] & (batch.advantages != 0)[:, None]
        assert out.stats.clamped.tolist() == ((leaf.grad == 0) & own).sum(1).tolist()
        some += int(out.stats.clamped.sum())
    assert some > 10


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_no_token_outside_the_replayed_ones_counts_as_clamped(correction):
    for seed in range(6):
        batch, config = Batch(seed, spread=3.0), ObjectiveConfig(correction=correction)
        arguments = (batch.advantages, batch.mask, batch.replayed, config, 1.0)
        clamped = replay_loss(batch.logps, batch.behaviour_logps, *arguments, vocabulary=VOCABULARY).stats.clamped
        tokens = (batch.mask & batch.replayed[:, None]).sum(1)
        assert (clamped <= tokens).all()
        assert not clamped.is_floating_point()
        with torch.no_grad():
            garbage = torch.where(batch.mask & batch.replayed[:, None], batch.logps, math.nan)
            again = replay_loss(garbage, batch.behaviour_logps, *arguments, vocabulary=VOCABULARY).stats.clamped
        assert torch.equal(clamped, again)


# Corrections of one's own ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_options(monkeypatch):
    """What a test registers is gone after it."""
    assert all(CORRECTIONS.values())
    monkeypatch.setattr(CORRECTIONS, "_rules", dict(CORRECTIONS._rules))


@pytest.mark.usefixtures("own_options")
def test_a_correction_of_one_s_own_is_trained_with():
    """The square root of the ratio: gradient sqrt(w)/2 A, so 1 A at w = 4. It raises the probability of its token."""

    @register_correction("square_root", clamped=lambda terms: terms.log_w > 1.0)
    def square_root(terms: Terms) -> torch.Tensor:
        return torch.exp(terms.log_w / 2) * terms.advantages

    assert square_root.__name__ == "square_root"
    config = ObjectiveConfig(correction="square_root")
    out, gradient = replayed_tokens([0.4, 0.1], [0.1, 0.1], 2.0, config)
    assert gradient == pytest.approx([-2.0, -1.0])
    assert out.stats.clamped.tolist() == [1]

    logits, seen = torch.zeros(1, 3, requires_grad=True), []
    optimizer = torch.optim.SGD([logits], lr=0.5)
    for _ in range(20):
        logp = logits.log_softmax(-1)[:, 1:2]
        seen.append(float(logp.detach()))
        loss = replay_loss(
            logp, torch.tensor([[-1.0]]), torch.ones(1), torch.ones(1, 1), torch.tensor([True]), config, 1.0
        ).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert seen == sorted(seen)
    assert math.exp(seen[0]) == pytest.approx(1 / 3)
    assert math.exp(seen[-1]) > 0.8


@pytest.mark.usefixtures("own_options")
def test_a_name_is_given_once():
    with pytest.raises(ConfigurationError, match="correction 'clip' already"):
        register_correction("clip", lambda terms: terms.log_w)
    assert register_correction("mine", math_of_log_pi) is math_of_log_pi
    with pytest.raises(ConfigurationError, match="correction 'mine' already"):
        register_correction("mine", math_of_log_pi)


def math_of_log_pi(terms: Terms) -> torch.Tensor:
    return terms.advantages * terms.logps


def test_no_registered_correction_is_left_behind():
    assert set(CORRECTIONS) == set(CORRECTIONS.builtin)


def test_a_correction_named_by_a_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "corrections_of_a_user.py").write_text(
        "def halved(terms):\n    return terms.advantages * terms.logps / 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    out, gradient = replayed_tokens(
        [0.4, 0.1], [0.2, 0.5], 3.0, ObjectiveConfig(correction="corrections_of_a_user.halved")
    )
    assert gradient == pytest.approx([-1.5, -1.5])
    assert out.stats.clamped.tolist() == [0]
    with pytest.raises(ConfigurationError, match="has no such attribute"):
        resolve_rules(ObjectiveConfig(correction="corrections_of_a_user.doubled"))


@pytest.mark.usefixtures("own_options")
@pytest.mark.parametrize("shape", [(), (1, 3), (2, 1)])
def test_a_correction_must_give_one_value_per_token(shape):
    """(1, 3) and (2, 1) would be spread over the batch of (2, 3) without a word."""
    values = dict(function=torch.zeros(2, 3), clamped=torch.zeros(2, 3, dtype=torch.bool))
    register_correction("mine", lambda terms: values["function"], clamped=lambda terms: values["clamped"])
    arguments = (torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2), torch.ones(2, 3), torch.tensor([True, True]))
    config = ObjectiveConfig(correction="mine")
    replay_loss(*arguments, config, 1.0)
    for name, whole in dict(values).items():
        values[name] = whole.new_zeros(shape)
        with pytest.raises(ConfigurationError, match=r"correction='mine' must give one value per token, \(2, 3\)"):
            replay_loss(*arguments, config, 1.0)
        values[name] = whole
