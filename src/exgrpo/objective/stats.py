"""Statistics of importance ratios, by row and over rows; computed from log-ratios, so that nothing overflows."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RatioStats:
    """Ratio statistics of each row over its own tokens; all (B,), without gradient.

    log_ratio: mean log w, NaN where a row has no token. log_sum: log of sum w, and log_sum_squares: log of sum w^2, -inf
    there. tokens: how many. clamped: how many of them the correction cut.
    """

    log_ratio: Tensor
    log_sum: Tensor
    log_sum_squares: Tensor
    tokens: Tensor
    clamped: Tensor


def ratio_stats(log_w: Tensor, tokens: Tensor, clamped: Tensor | None = None) -> RatioStats:
    """Compute `RatioStats` of rows, (B, T) each; `clamped` marks where the correction cut, None: nowhere."""
    count = tokens.sum(1)
    inside = torch.where(tokens, log_w, -math.inf)
    return RatioStats(
        torch.where(tokens, log_w, 0.0).sum(1) / count,
        inside.logsumexp(1),
        (2 * inside).logsumexp(1),
        count,
        torch.zeros_like(count) if clamped is None else (clamped.bool() & tokens).sum(1),
    )


def effective_sample_size(log_sum: Tensor, log_sum_squares: Tensor, tokens: Tensor) -> float:
    """Return (sum w)^2 / (n sum w^2) over the tokens of all rows, in (0, 1]; NaN where there are none."""
    n = tokens.sum()
    if not n:
        return math.nan
    return float(torch.exp(2 * log_sum.logsumexp(0) - log_sum_squares.logsumexp(0)) / n)


def at_level(log_w: Tensor, tokens: Tensor, level: str) -> Tensor:
    """Return log-ratios per token, or at `sequence` level the mean of its row on each token [GSPO, Eq. 7].

    All (B, T); 0 outside the tokens.
    """
    if level != "sequence":
        return log_w
    means = log_w.sum(1, keepdim=True) / tokens.sum(1, keepdim=True).clamp(min=1)
    return torch.where(tokens, means, 0.0)
