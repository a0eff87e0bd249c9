"""The objective in float64, one token after the other. Gradients are autograd's of exactly this text."""

import math

import torch


def advantages(
    rewards: list[list[float | None]],
    positive_weight: float = 1.0,
    replayed: list[list[bool]] | None = None,
    baseline: str = "group",
    scale: str = "none",
) -> list[list[float]]:
    """One member after the other: its reward minus the mean of those it is compared with; None (unscorable) counts nowhere."""
    answer = []
    for place, group in enumerate(rewards):
        old = replayed[place] if replayed is not None else [False] * len(group)
        known = [(r, o) for r, o in zip(group, old, strict=True) if r is not None]
        found = []
        for reward, is_old in zip(group, old, strict=True):
            if reward is None:
                found.append(0.0)
                continue
            everyone = [r for r, _ in known]
            part = [r for r, o in known if o == is_old]
            fresh = [r for r, o in known if not o]
            others = {"group": everyone, "fresh": fresh or everyone, "split": part}[baseline]
            mean = others[0] if max(others) == min(others) else math.fsum(others) / len(others)
            spread = deviation(part if baseline == "split" else everyone) + 1e-4 if scale == "group" else 1.0
            advantage = (reward - mean) / spread
            found.append(advantage * positive_weight if advantage > 0 else advantage)
        answer.append(found)
    return answer


def deviation(values: list[float]) -> float:
    """Of a sample; 0 for one value."""
    if len(values) == 1 or max(values) == min(values):
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def token_term(
    correction, logp, behaviour_logp, advantage, *, beta=0.1, cap=1.0, epsilon=0.2, clamp=5.0, vocabulary=None
):
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
    if correction == "likelihood":
        return min(math.exp(float(logp.detach())) / (1 / vocabulary), clamp) * advantage * logp
    if correction == "unclipped":
        return w * advantage
    raise ValueError(correction)


def row_terms(
    correction, logps, behaviour_logps, advantage, *, cap=1.0, moment_limit=0.04, asymmetry=0.1, veto_ratio=0.1
):
    """What the tokens of one replayed answer contribute, where that depends on the answer as a whole."""
    ratios = [float(logp.detach()) - behaviour for logp, behaviour in zip(logps, behaviour_logps, strict=True)]
    capped = [min(math.exp(min(x, 700.0)), cap) * advantage * logp for x, logp in zip(ratios, logps, strict=True)]
    if correction == "second_moment":
        kept = set(range(len(ratios)))
        while kept and math.fsum(ratios[t] ** 2 for t in kept) / len(kept) > moment_limit:
            kept.remove(max(kept, key=lambda t: (ratios[t] ** 2, t)))
        return [torch.exp(logps[t] - behaviour_logps[t]) * advantage for t in sorted(kept)]
    if correction == "topr":
        weight = 1.0 if advantage >= 0 else min(math.exp(min(math.fsum(ratios), 700.0)), cap)
        return [weight * advantage * logp for logp in logps]
    if correction == "asymre":
        return [(advantage + asymmetry) * logp for logp in logps] if advantage else []
    if correction == "veto":
        if advantage >= 0:
            return capped
        trigger = next((t for t, x in enumerate(ratios) if x < math.log(veto_ratio)), len(ratios))
        return capped[: trigger + 1]
    raise ValueError(correction)


OF_ROWS = ("second_moment", "topr", "asymre", "veto")


def mixed_loss(
    logps, old_logps, behaviour_logps, advantages, mask, replayed, correction, normaliser,
    *, beta=0.1, cap=1.0, epsilon=0.2, clamp=5.0, vocabulary=None, clip_fresh=True, parts=("fresh", "replayed"), **more,
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
        own = [t for t in range(leaf.shape[1]) if bool(mask[row, t])]
        if is_replayed and correction in OF_ROWS:
            behaviour = [float(behaviour_logps[row, t]) for t in own]
            terms = row_terms(
                correction, [leaf[row, t] for t in own], behaviour, float(advantages[row]), cap=cap, **more
            )
            total = total + sum(terms, torch.zeros((), dtype=torch.float64))
            continue
        for t in own:
            behaviour = float((behaviour_logps if is_replayed else old_logps)[row, t])
            name = correction if is_replayed else ("clip" if clip_fresh else "unclipped")
            total = total + token_term(
                name, leaf[row, t], behaviour, float(advantages[row]), beta=beta, cap=cap, epsilon=epsilon,
                clamp=clamp, vocabulary=vocabulary,
            )  # fmt: skip
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
