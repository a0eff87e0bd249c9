"""What rewards are compared with: `group`, `fresh`, `split`, and a user's own."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.config import BASELINES, ObjectiveConfig
from exgrpo.errors import ConfigurationError
from exgrpo.objective import group_advantages, register_baseline, weight_positive
from exgrpo.objective.group_stats import mean_of
from tests.reference import objective as reference

NAN = math.nan
member = st.tuples(
    st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.3, 0.1]), st.floats(-10, 10, width=32)), st.booleans()
)
groups = st.integers(1, 10).flatmap(
    lambda k: st.lists(st.lists(member, min_size=k, max_size=k), min_size=1, max_size=4)
)
scales = st.sampled_from(["none", "group"])


def tensors(drawn, dtype=torch.float64):
    """Rewards and which members are replayed."""
    return (
        torch.tensor([[NAN if r is None else r for r, _ in group] for group in drawn], dtype=dtype),
        torch.tensor([[old for _, old in group] for group in drawn]),
    )


@pytest.fixture
def own_options(monkeypatch):
    """What a test registers is gone after it."""
    assert all(BASELINES.values())
    monkeypatch.setattr(BASELINES, "_rules", dict(BASELINES._rules))


# Properties -----------------------------------------------------------------------------------------------------------


@given(groups, st.sampled_from(BASELINES.builtin), scales, st.sampled_from([1.0, 8.0, 0.5]))
def test_equal_to_the_reference(drawn, baseline, scale, weight):
    rewards, replayed = tensors(drawn)
    got = group_advantages(rewards, weight, scale, replayed, baseline)
    expected = reference.advantages(
        [[r for r, _ in group] for group in drawn], weight, replayed.tolist(), baseline, scale
    )
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-9)


@given(groups, st.sampled_from(BASELINES.builtin), scales, st.sampled_from([torch.float32, torch.bfloat16]))
def test_exactly_zero_where_all_that_are_compared_are_alike(drawn, baseline, scale, dtype):
    """In every precision: two rewards that are alike stay alike when they are rounded."""
    rewards, replayed = tensors(drawn, dtype)
    got = group_advantages(rewards, 8.0, scale, replayed, baseline)
    assert torch.isfinite(got).all()
    assert got.dtype == dtype
    for values, old, found in zip(rewards.tolist(), replayed.tolist(), got.tolist(), strict=True):
        for value, is_old, advantage in zip(values, old, found, strict=True):
            known = [(v, o) for v, o in zip(values, old, strict=True) if not math.isnan(v)]
            compared = {
                "group": {v for v, _ in known},
                "fresh": {v for v, o in known if not o} or {v for v, _ in known},
                "split": {v for v, o in known if o == is_old},
            }[baseline]
            if math.isnan(value) or compared == {value}:
                assert advantage == 0


@given(groups, scales, st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_the_default_is_bit_for_bit_the_reward_minus_the_group_s_mean(drawn, scale, dtype):
    """Written as before there were baselines; who was replayed makes no difference."""
    rewards, replayed = tensors(drawn, dtype)
    scorable = ~rewards.isnan()
    plain = rewards - rewards.nanmean(dim=1, keepdim=True)
    if scale == "group":
        deviation = torch.where(scorable, plain, 0.0)
        variance = deviation.square().sum(1, keepdim=True) / (scorable.sum(1, keepdim=True) - 1).clamp(min=1)
        plain = plain / (variance.sqrt() + 1e-4)
    flat = torch.where(scorable, rewards, -torch.inf).amax(1) == torch.where(scorable, rewards, torch.inf).amin(1)
    plain = weight_positive(torch.where(scorable & ~flat[:, None], plain, 0.0), 3.0)
    assert torch.equal(group_advantages(rewards, 3.0, scale), plain)
    assert torch.equal(group_advantages(rewards, 3.0, scale, replayed, "group"), plain)
    for baseline in BASELINES.builtin:
        assert torch.equal(group_advantages(rewards, 3.0, scale, None, baseline), plain)
        assert torch.equal(group_advantages(rewards, 3.0, scale, torch.zeros_like(replayed), baseline), plain)


@given(groups, st.sampled_from(BASELINES.builtin), scales, st.randoms(use_true_random=False))
def test_groups_do_not_mix_and_the_order_of_members_says_nothing(drawn, baseline, scale, random):
    rewards, replayed = tensors(drawn)
    got = group_advantages(rewards, 1.0, scale, replayed, baseline)
    order = list(range(rewards.shape[1]))
    random.shuffle(order)
    turned = group_advantages(rewards[:, order], 1.0, scale, replayed[:, order], baseline)
    torch.testing.assert_close(turned, got[:, order], rtol=1e-7, atol=1e-9)
    for row in range(len(rewards)):
        alone = group_advantages(rewards[row : row + 1], 1.0, scale, replayed[row : row + 1], baseline)
        assert torch.equal(alone, got[row : row + 1])


# Worked by hand -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("group", [0.5, -0.5, -0.5, -0.5, 0.5, 0.5]),  # mean of six: .5
        ("fresh", [0.75, -0.25, -0.25, -0.25, 0.75, 0.75]),  # of the first four: .25
        ("split", [0.75, -0.25, -0.25, -0.25, 0.0, 0.0]),  # of the last two: 1
    ],
)
def test_two_stored_successes_beside_four_fresh_completions(baseline, expected):
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0, 1.0]])
    replayed = torch.tensor([[False] * 4 + [True] * 2])
    assert group_advantages(rewards, replayed=replayed, baseline=baseline)[0].tolist() == expected
    weighted = [8 * a if a > 0 else a for a in expected]
    assert group_advantages(rewards, 8.0, "none", replayed, baseline)[0].tolist() == weighted


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("group", [0.5, -0.5, 0.0, 0.0]),  # mean of 1, 0, .5: the NaN counts nowhere
        ("fresh", [0.5, -0.5, 0.0, 0.0]),
        ("split", [0.5, -0.5, 0.0, 0.0]),
    ],
)
def test_unscorable_members_count_nowhere(baseline, expected):
    rewards, replayed = torch.tensor([[1.0, 0.0, NAN, 0.5]]), torch.tensor([[False, False, False, True]])
    assert group_advantages(rewards, replayed=replayed, baseline=baseline)[0].tolist() == expected
    rewards, replayed = torch.tensor([[1.0, NAN, 0.0, 0.5]]), torch.tensor([[True, True, False, False]])
    by_hand = {"group": [0.5, 0.0, -0.5, 0.0], "fresh": [0.75, 0.0, -0.25, 0.25], "split": [0.0, 0.0, -0.25, 0.25]}
    assert group_advantages(rewards, replayed=replayed, baseline=baseline)[0].tolist() == by_hand[baseline]
    nothing = torch.full((1, 4), NAN)
    assert group_advantages(nothing, replayed=replayed, baseline=baseline)[0].tolist() == [0.0] * 4


def test_without_a_scorable_fresh_member_fresh_is_the_mean_of_all():
    rewards, replayed = torch.tensor([[NAN, 1.0, 0.0, 0.0, 1.0]]), torch.tensor([[False, True, True, True, True]])
    got = group_advantages(rewards, replayed=replayed, baseline="fresh")
    assert got[0].tolist() == [0.0, 0.5, -0.5, -0.5, 0.5]
    got = group_advantages(rewards[:, 1:], replayed=replayed[:, 1:], baseline="fresh")
    assert got[0].tolist() == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("scale", ["none", "group"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [0.3, 0.1, 1 / 3, -0.9])
def test_eight_fresh_rewards_alike_leave_no_dust(value, dtype, scale):
    rewards = torch.full((1, 11), value, dtype=dtype)
    replayed = torch.arange(11)[None] >= 8
    for baseline in BASELINES.builtin:
        assert (group_advantages(rewards, 8.0, scale, replayed, baseline) == 0).all()
    rewards[0, 10] = 1.0
    fresh = group_advantages(rewards, 1.0, scale, replayed, "fresh")[0]
    assert fresh[:10].tolist() == [0.0] * 10  # two replayed members have the fresh ones' reward
    assert fresh[10] > 0
    if scale == "none":
        assert fresh[10] == rewards[0, 10] - rewards[0, 0]  # not minus a rounded mean
    split = group_advantages(rewards, 1.0, scale, replayed, "split")[0]
    assert split[:8].tolist() == [0.0] * 8
    assert (split[8:10] < 0).all()
    rewards[0, 8:] = 0.7
    split = group_advantages(rewards, 1.0, scale, replayed, "split")[0]
    assert split.tolist() == [0.0] * 11  # each part by itself


def test_the_dust_that_the_above_guards_against_exists():
    means = [
        torch.full((1, n), v).nanmean(1).item() - torch.tensor(v).item() for n in (3, 7, 8, 11) for v in (0.3, 0.1)
    ]
    assert any(means)


def test_group_scale_divides_by_the_deviation_of_the_group_or_of_each_part():
    """Fresh 1, 0, 0 and replayed 1, 0: standard deviation sqrt(1/3) and sqrt(1/2), of all five sqrt(.3)."""
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    replayed = torch.tensor([[False, False, False, True, True]])
    everyone, fresh, old = math.sqrt(0.3) + 1e-4, math.sqrt(1 / 3) + 1e-4, math.sqrt(1 / 2) + 1e-4
    for baseline, expected in {
        "group": [0.6 / everyone, -0.4 / everyone, -0.4 / everyone, 0.6 / everyone, -0.4 / everyone],
        "fresh": [2 / 3 / everyone, -1 / 3 / everyone, -1 / 3 / everyone, 2 / 3 / everyone, -1 / 3 / everyone],
        "split": [2 / 3 / fresh, -1 / 3 / fresh, -1 / 3 / fresh, 0.5 / old, -0.5 / old],
    }.items():
        got = group_advantages(rewards, 1.0, "group", replayed, baseline)[0].tolist()
        assert got == pytest.approx(expected, rel=1e-12), baseline


def test_split_teaches_nothing_from_a_replayed_member_that_is_alone():
    rewards, replayed = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[False, False, False, True]])
    assert group_advantages(rewards, replayed=replayed, baseline="split")[0, 3] == 0
    assert group_advantages(rewards, replayed=replayed, baseline="fresh")[0, 3] == pytest.approx(2 / 3)


def test_mean_of():
    rewards = torch.tensor([[1.0, 0.0, NAN, 4.0], [0.3, 0.3, 0.3, 9.0]])
    members = torch.tensor([[True, True, True, False]] * 2)
    assert mean_of(rewards, members).tolist() == [[0.5], [rewards[1, 0].item()]]
    assert mean_of(rewards, torch.zeros_like(members)).isnan().all()


# Baselines of one's own -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("own_options")
def test_a_baseline_of_one_s_own():
    """Everyone against the best replayed reward; one value per group is enough."""

    @register_baseline("best_replayed")
    def best_replayed(rewards, replayed):
        return torch.where(replayed, rewards, -torch.inf).amax(1, keepdim=True)

    assert ObjectiveConfig(baseline="best_replayed").baseline == "best_replayed"
    rewards, replayed = torch.tensor([[1.0, 0.0, NAN, 0.75]]), torch.tensor([[False, False, False, True]])
    got = group_advantages(rewards, 2.0, replayed=replayed, baseline="best_replayed")
    assert got[0].tolist() == [0.5, -0.75, 0.0, 0.0]


@pytest.mark.usefixtures("own_options")
def test_a_baseline_of_one_s_own_may_scale_the_parts_apart():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    replayed = torch.tensor([[False, False, False, True, True]])
    for name, apart in (("whole", False), ("parts", True)):
        register_baseline(name, lambda rewards, replayed: torch.full_like(rewards, 0.5), apart=apart)
        got = group_advantages(rewards, 1.0, "group", replayed, name)[0].tolist()
        spreads = [1 / 3] * 3 + [1 / 2] * 2 if apart else [0.3] * 5
        assert got == pytest.approx(
            [(r - 0.5) / (s**0.5 + 1e-4) for r, s in zip([1, 0, 0, 1, 0], spreads, strict=True)]
        )


@pytest.mark.usefixtures("own_options")
def test_a_baseline_without_a_value_is_refused():
    rewards, replayed = torch.tensor([[1.0, NAN, 0.0]]), torch.tensor([[False, False, True]])
    register_baseline("plain_mean", lambda rewards, replayed: rewards.mean(1, keepdim=True))
    with pytest.raises(ConfigurationError, match="baseline='plain_mean' must give a number for every member"):
        group_advantages(rewards, replayed=replayed, baseline="plain_mean")
    register_baseline("of_all_groups", lambda rewards, replayed: rewards.nanmean())
    with pytest.raises(ConfigurationError, match=r"\(1, 3\) or \(1, 1\), but gave \(\)"):
        group_advantages(rewards, replayed=replayed, baseline="of_all_groups")
    with pytest.raises(ConfigurationError, match="baseline 'split' already"):
        register_baseline("split", lambda rewards, replayed: rewards)


def test_a_baseline_named_by_a_dotted_path(tmp_path, monkeypatch):
    (tmp_path / "baselines_of_a_user.py").write_text(
        "def zero(rewards, replayed):\n    return rewards.new_zeros(rewards.shape)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    config = ObjectiveConfig(baseline="baselines_of_a_user.zero")
    got = group_advantages(torch.tensor([[1.0, 0.0, NAN]]), 2.0, baseline=config.baseline)
    assert got[0].tolist() == [2.0, 0.0, 0.0]
    assert set(BASELINES) == set(BASELINES.builtin)  # and nothing else of these tests is left behind
