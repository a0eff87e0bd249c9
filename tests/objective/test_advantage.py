"""Advantages against plain Python: Dr. GRPO's form, and where a group says nothing."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.objective import group_advantages, weight_positive
from tests.reference import objective as reference

values = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.3, 0.1]), st.floats(-10, 10, width=32))


@given(st.integers(2, 12).flatmap(lambda k: st.lists(st.lists(values, min_size=k, max_size=k), max_size=5, min_size=1)),
       st.sampled_from([1.0, 8.0, 0.5]))  # fmt: skip
def test_equal_to_the_reference(rewards, positive_weight):
    tensor = torch.tensor([[math.nan if r is None else r for r in group] for group in rewards], dtype=torch.float64)
    got = group_advantages(tensor, positive_weight)
    expected = torch.tensor(reference.advantages(rewards, positive_weight), dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    assert torch.equal(got == 0, (expected == 0) | (got == 0))
    assert torch.isfinite(group_advantages(tensor.float(), positive_weight)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", ["none", "group"])
@pytest.mark.parametrize("k", [2, 3, 7, 8, 64, 128])
def test_a_group_without_variance_has_advantages_of_exactly_zero(k, scale, dtype):
    """In floating point r - mean is not 0: eight times 0.3."""
    for value in (0.3, 0.1, 0.7, 1 / 3, 0.0, 1.0, -0.9):
        rewards = torch.full((1, k), value, dtype=dtype)
        assert (group_advantages(rewards, 8.0, scale) == 0).all()
        if k > 2:
            rewards[0, 1] = math.nan
            assert (group_advantages(rewards, 8.0, scale) == 0).all()


def test_the_float_fault_that_the_above_guards_against_exists():
    rewards = torch.full((1, 8), 0.3)
    naive = [(rewards.repeat(1, n) - rewards.repeat(1, n).mean()).abs().max() > 0 for n in (1, 3, 8, 16)]
    assert any(naive)


@pytest.mark.parametrize("k", [2, 3, 8, 64, 128])
def test_one_success_among_k(k):
    rewards = torch.zeros(1, k)
    rewards[0, -1] = 1.0
    got = group_advantages(rewards)
    torch.testing.assert_close(got[0, -1], torch.tensor(1 - 1 / k))
    torch.testing.assert_close(got[0, 0], torch.tensor(-1 / k))
    assert abs(float(got.sum())) < 1e-5


def test_unscorable_members_count_nowhere():
    nan = math.nan
    rewards = torch.tensor([[1.0, 0.0, nan, 0.0], [nan, nan, nan, nan], [1.0, nan, nan, nan], [nan, 1.0, 1.0, nan]])
    got = group_advantages(rewards)
    torch.testing.assert_close(got[0], torch.tensor([2 / 3, -1 / 3, 0.0, -1 / 3]))
    assert (got[1:] == 0).all()


def test_groups_do_not_mix():
    rewards = torch.tensor([[1.0, 0.0], [5.0, 3.0], [math.nan, 1.0]])
    got = group_advantages(rewards)
    for row in range(3):
        assert torch.equal(got[row : row + 1], group_advantages(rewards[row : row + 1]))
    assert got[1].tolist() == [1.0, -1.0]


def test_positive_weight_touches_positive_advantages_only():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    plain, weighted = group_advantages(rewards), group_advantages(rewards, 8.0)
    assert weighted[0].tolist() == [plain[0, 0].item() * 8, *plain[0, 1:].tolist()]
    assert weight_positive(torch.tensor([-2.0, 0.0, 3.0]), 4.0).tolist() == [-2.0, 0.0, 12.0]


def test_group_scale_is_division_by_the_standard_deviation_of_the_scorable():
    rewards = torch.tensor([[1.0, 0.0, 0.5, math.nan], [1.0, 0.0, 0.0, 0.0]])
    got = group_advantages(rewards, scale="group")
    for row in rewards:
        known = row[~row.isnan()]
        expected = (known - known.mean()) / (known.std() + 1e-4)
        index = 0 if row[-1].isnan() else 1
        torch.testing.assert_close(got[index][: len(known)], expected)
    assert got[0, 3] == 0
