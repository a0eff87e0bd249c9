"""pass@k against its definition."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError
from exgrpo.evaluation import pass_at_k


def test_by_enumeration():
    for n in range(1, 7):
        for c in range(n + 1):
            for k in range(1, n + 1):
                draws = list(combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-12)


@given(st.integers(1, 5000), st.data())
def test_against_exact_binomials(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, min(n, 300)))
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-9)


def test_vectors_broadcast():
    n, c = np.array([[8], [16]]), np.array([0, 1, 8])
    result = pass_at_k(n, c, 4)
    assert result.shape == (2, 3)
    assert result[0].tolist() == [0.0, 0.5, 1.0]
    assert pass_at_k(np.array([8.0]), [4], 1).tolist() == [0.5]
    assert pass_at_k([], [], 3).shape == (0,)
    assert np.ndim(pass_at_k(8, 4, 1)) == 0


@pytest.mark.parametrize(
    ("n", "c", "k"), [(4, 2, 5), ([8, 4], [1, 1], 8), (4, 5, 1), (4, -1, 1), (4, 2, 0), (4.5, 2, 1), (4, "x", 1)]
)
def test_what_cannot_be_estimated(n, c, k):
    with pytest.raises(ConfigurationError):
        pass_at_k(n, c, k)
