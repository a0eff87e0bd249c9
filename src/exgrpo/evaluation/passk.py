"""The unbiased estimate of pass@k."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ConfigurationError


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    r"""Estimate the probability that at least one of `k` samples is right, from `c` right ones among `n`.

    `1 - C(n-c, k) / C(n, k)`, the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374), as the product
    `1 - prod_{j<k} (n-c-j) / (n-j)`, whose factors are all in [0, 1]: nothing can overflow or cancel.

    Args:
        n: samples of each question, integers >= k; a scalar or an array.
        c: right ones among them, 0 <= c <= n; broadcast against `n`.
        k: samples that may be drawn, at least 1.

    Returns:
        Probabilities in [0, 1], in the broadcast shape of `n` and `c` (a NumPy scalar for scalars).

    Raises:
        ConfigurationError: if a number is not an integer or out of these bounds.
    """
    n_array, c_array = np.broadcast_arrays(_integers("n", n), _integers("c", c))
    k = int(_integers("k", k).item())
    if k < 1:
        raise ConfigurationError(f"pass@k needs k >= 1, got k={k}.")
    if n_array.size and k > n_array.min():
        raise ConfigurationError(
            f"pass@{k} cannot be estimated from {n_array.min()} samples: k must not exceed n. Draw more samples of "
            f"each question (num_samples >= {k}) or ask for a smaller k."
        )
    if np.any(c_array < 0) or np.any(c_array > n_array):
        raise ConfigurationError("pass@k needs 0 <= c <= n: more right samples than samples, or a negative number.")
    all_wrong = np.ones(n_array.shape)
    for j in range(k):
        all_wrong *= np.maximum(n_array - c_array - j, 0) / (n_array - j)
    return (1.0 - all_wrong)[()]


def _integers(name: str, value: ArrayLike) -> NDArray[Any]:
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer):
        if not (np.issubdtype(array.dtype, np.floating) and np.all(np.mod(array, 1) == 0)):
            raise ConfigurationError(f"pass@k needs integers, got {name}={value!r}.")
        array = array.astype(np.int64)
    return array
