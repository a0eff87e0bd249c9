"""The objective in float64, one token after the other. Gradients are autograd's of exactly this text."""

import math

import torch


def advantages(rewards: list[list[float | None]], positive_weight: float = 1.0) -> list[list[float]]:
    """A_i = r_i - mean(r) inside each group; None (unscorable) counts nowhere; no variance gives exactly 0."""
    answer = []
    for group in rewards:
        known = [r for r in group if r is not None]
        if not known or max(known) == min(known):
            answer.append([0.0] * len(group))
            continue
        mean = math.fsum(known) / len(known)
        centred = [0.0 if r is None else r - mean for r in group]
        answer.append([a * positive_weight if a > 0 else a for a in centred])
    return answer


def token_term(correction, logp, behaviour_logp, advantage, *, beta=0.1, cap=1.0, epsilon=0.2):
    """What one token contributes to the objective that is maximised. `logp` is a scalar tensor with gradient."""
    w = torch.exp(logp - behaviour_logp)
    if correction == "shaped":
        return w / (w + beta) * advantage
    value = float(w.detach())
    if correction == "clip":
        clipped = min(max(value, 1 - epsilon), 1 + epsilon)
        return w * advantage if value * advantage <= clipped * advantage else torch.tensor(clipped * advantage)
    if correction == "truncated":
        return min(value, cap) * advantage * logp
    if correction == "none":
        return advantage * logp
    if correction == "unclipped":
        return w * advantage
    raise ValueError(correction)


def mixed_loss(
    logps, old_logps, behaviour_logps, advantages, mask, replayed, correction, normaliser,
    *, beta=0.1, cap=1.0, epsilon=0.2, clip_fresh=True, parts=("fresh", "replayed"),
):  # fmt: skip
    """Minus the sum of all tokens' terms, divided by `normaliser`. Loss and gradient, both float64.

    Args:
        logps, old_logps, behaviour_logps: (B, T), any dtype; what stands outside the mask is never looked at.
        advantages: (B,).
        mask, replayed: (B, T) and (B,) of truth values.
    """
    leaf = logps.detach().double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for row in range(leaf.shape[0]):
        is_replayed = bool(replayed[row])
        if ("replayed" if is_replayed else "fresh") not in parts:
            continue
        for t in range(leaf.shape[1]):
            if not bool(mask[row, t]):
                continue
            behaviour = float((behaviour_logps if is_replayed else old_logps)[row, t])
            name = correction if is_replayed else ("clip" if clip_fresh else "unclipped")
            total = total + token_term(
                name, leaf[row, t], behaviour, float(advantages[row]), beta=beta, cap=cap, epsilon=epsilon
            )
    loss = -total / normaliser
    gradient = torch.zeros_like(leaf)
    if loss.requires_grad:
        (found,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        gradient = gradient if found is None else found
    return loss.detach(), gradient


def ratio_figures(log_ratios: list[list[float]]) -> dict[str, list[float] | float]:
    """Mean log w of each row, mean w and the effective sample size (sum w)^2 / (n sum w^2) of all tokens together."""
    everything = [x for row in log_ratios for x in row]
    largest = max(everything)
    w = [math.exp(x - largest) for x in everything]
    return {
        "log_ratio": [math.fsum(row) / len(row) for row in log_ratios],
        "mean": math.fsum(math.exp(x) for x in everything) / len(everything),
        "ess": math.fsum(w) ** 2 / (len(w) * math.fsum(x * x for x in w)),
    }
