"""Corrections that look at a replayed answer as a whole, not at each token by itself; none compares answers, so that none
depends on how a batch is cut."""

import math

import torch
from torch import Tensor

from ...registry import register
from ..loss import MAX_LOG_RATIO, Terms


def own_tokens(terms: Terms) -> Tensor:
    """Return where the replayed tokens are, (B, T)."""
    return torch.ones_like(terms.log_w, dtype=torch.bool) if terms.tokens is None else terms.tokens


def weighted_by_ratio(terms: Terms) -> Tensor:
    """Return sg(min(w, c)) A log pi."""
    return torch.exp(terms.log_w.detach().clamp(max=math.log(terms.config.truncation))) * terms.advantages * terms.logps


def second_moment(terms: Terms) -> Tensor:
    """w A on the tokens that stay, where those with the largest (log w)^2 are left out until its mean over the rest of the
    answer is at most `moment_limit` (M2PO, arXiv 2510.01161)."""
    w = torch.exp(terms.log_w.clamp(max=MAX_LOG_RATIO))
    return torch.where(~above_moment(terms), w * terms.advantages, 0.0)


def above_moment(terms: Terms) -> Tensor:
    """Where a token is left out: its rank, ascending in (log w)^2, is beyond the last at which the running mean is at most
    the limit."""
    squares = torch.where(own_tokens(terms), terms.log_w.detach().square(), math.inf)
    ordered, order = squares.sort(dim=1, stable=True)
    finite = torch.where(ordered.isinf(), 0.0, ordered)
    counts = torch.arange(1, squares.size(1) + 1, device=squares.device)
    fits = (finite.cumsum(1) / counts <= terms.config.moment_limit) & ~ordered.isinf()
    stays = torch.zeros_like(fits).scatter(1, order, fits)
    return own_tokens(terms) & ~stays


def topr(terms: Terms) -> Tensor:
    """A log pi where A > 0; sg(min(W, c)) A log pi where A < 0, W the ratio of the whole answer: the product of its w (TOPR,
    arXiv 2503.14286)."""
    log_w = terms.log_w.detach().sum(1, keepdim=True).clamp(max=math.log(terms.config.truncation))
    weight = torch.where(terms.advantages < 0, torch.exp(log_w), 1.0)
    return (weight * terms.advantages).expand_as(terms.logps) * terms.logps


def above_sequence_truncation(terms: Terms) -> Tensor:
    """A < 0 and W > c."""
    above = terms.log_w.sum(1, keepdim=True) > math.log(terms.config.truncation)
    return (above & (terms.advantages < 0)).expand_as(terms.log_w) & own_tokens(terms)


def asymre(terms: Terms) -> Tensor:
    """(A + `asymmetry`) log pi where A is not 0: a baseline below the mean, so that successes weigh more than failures, and no
    ratio (AsymRE, arXiv 2506.20520; as in 2604.08706)."""
    shifted = torch.where(terms.advantages == 0, 0.0, terms.advantages + terms.config.asymmetry)
    return shifted * terms.logps


def veto(terms: Terms) -> Tensor:
    """sg(min(w, c)) A log pi; of an answer with A < 0 nothing that comes after its first token with w below `veto_ratio`: from
    there on the policy would not have come this way (after arXiv 2605.17570)."""
    return torch.where(vetoed(terms), 0.0, weighted_by_ratio(terms))


def vetoed(terms: Terms) -> Tensor:
    """Where a token is left out: it follows one that the policy has turned away from, in an answer with A < 0."""
    triggers = own_tokens(terms) & (terms.log_w.detach() < math.log(terms.config.veto_ratio))
    after = triggers.long().cumsum(1) - triggers.long() > 0
    return after & (terms.advantages < 0) & own_tokens(terms)


register("correction", "second_moment", second_moment, clamped=above_moment)
register("correction", "topr", topr, clamped=above_sequence_truncation)
register("correction", "asymre", asymre)
register("correction", "veto", veto, clamped=vetoed)
