"""Corrections that look at a whole replayed completion; none compares completions, so the batch may be cut anyhow."""

import math

import torch
from torch import Tensor

from ...registry import register
from ..loss import MAX_LOG_RATIO, Terms
from .corrections import truncated


def own_tokens(terms: Terms) -> Tensor:
    """Return where the replayed tokens are, (B, T)."""
    return torch.ones_like(terms.log_w, dtype=torch.bool) if terms.tokens is None else terms.tokens


def second_moment(terms: Terms) -> Tensor:
    """Return w A, without the tokens of largest (log w)^2 (M2PO, arXiv 2510.01161).

    Tokens are left out until the mean of (log w)^2 over the rest of the completion is at most `moment_limit`.
    """
    w = torch.exp(terms.log_w.clamp(max=MAX_LOG_RATIO))
    return torch.where(~above_moment(terms), w * terms.advantages, 0.0)


def above_moment(terms: Terms) -> Tensor:
    """Return which tokens `second_moment` leaves out.

    Those ranked, ascending in (log w)^2, beyond the last at which the running mean is at most the limit.
    """
    squares = torch.where(own_tokens(terms), terms.log_w.detach().square(), math.inf)
    ordered, order = squares.sort(dim=1, stable=True)
    finite = torch.where(ordered.isinf(), 0.0, ordered)
    counts = torch.arange(1, squares.size(1) + 1, device=squares.device)
    fits = (finite.cumsum(1) / counts <= terms.config.moment_limit) & ~ordered.isinf()
    stays = torch.zeros_like(fits).scatter(1, order, fits)
    return own_tokens(terms) & ~stays


def topr(terms: Terms) -> Tensor:
    """Return A log pi where A > 0, and sg(min(W, c)) A log pi where A < 0 (TOPR, arXiv 2503.14286).

    W is the ratio of the whole completion: the product of its w.
    """
    log_w = terms.log_w.detach().sum(1, keepdim=True).clamp(max=math.log(terms.config.truncation))
    weight = torch.where(terms.advantages < 0, torch.exp(log_w), 1.0)
    return (weight * terms.advantages).expand_as(terms.logps) * terms.logps


def above_sequence_truncation(terms: Terms) -> Tensor:
    """Return where A < 0 and W > c."""
    above = terms.log_w.sum(1, keepdim=True) > math.log(terms.config.truncation)
    return (above & (terms.advantages < 0)).expand_as(terms.log_w) & own_tokens(terms)


def asymre(terms: Terms) -> Tensor:
    """Return (A + `asymmetry`) log pi where A is not 0 (AsymRE, arXiv 2506.20520; as in 2604.08706).

    A baseline below the mean, so that successes weigh more than failures, and no ratio.
    """
    shifted = torch.where(terms.advantages == 0, 0.0, terms.advantages + terms.config.asymmetry)
    return shifted * terms.logps


def veto(terms: Terms) -> Tensor:
    """Return sg(min(w, c)) A log pi, where failures end at their first unlikely token (after arXiv 2605.17570).

    Where A < 0, nothing counts after the first token with w below `veto_ratio`: the policy would not have come that
    far.

    Where A < 0, nothing counts after the first token with w below `veto_ratio`: the policy would not have come that
    far.
    """
    return torch.where(vetoed(terms), 0.0, truncated(terms))


def vetoed(terms: Terms) -> Tensor:
    """Return which tokens `veto` leaves out: where A < 0, those after the first token below `veto_ratio`."""
    triggers = own_tokens(terms) & (terms.log_w.detach() < math.log(terms.config.veto_ratio))
    after = triggers.long().cumsum(1) - triggers.long() > 0
    return after & (terms.advantages < 0) & own_tokens(terms)


register("correction", "second_moment", second_moment, clamped=above_moment)
register("correction", "topr", topr, clamped=above_sequence_truncation)
register("correction", "asymre", asymre)
register("correction", "veto", veto, clamped=vetoed)
