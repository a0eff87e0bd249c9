"""Net push: the direction in which an objective moves tokens before any training, by autograd of the corrections."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..config import CORRECTIONS, ObjectiveConfig
from ..errors import ConfigurationError
from .advantage import group_advantages
from .loss import Terms


@dataclass(frozen=True)
class NetPush:
    """Gradient weight times advantage of one token of each member of a group, summed.

    Over members that become likelier (positive), over those that become less likely (negative, at most 0), and over
    both (net).
    """

    positive: float
    negative: float
    net: float


def gradient_weights(
    config: ObjectiveConfig,
    w: Sequence[float],
    advantage: float | Sequence[float] = 1.0,
    epsilon: float = 0.2,
    vocabulary: int = 0,
    probability: float | Sequence[float] = 0.5,
) -> list[float]:
    """Return the gradient of one replayed token's objective by log pi, over the advantage, at each ratio.

    A fresh token has 1 at w = 1, and so has plain policy gradient. PPO's clip depends on the advantage's sign.

    Args:
        config: which correction, and its constants.
        w: ratios pi/pi_behaviour, each above 0.
        advantage: not 0; one for all, or one for each ratio.
        epsilon: of PPO's clip.
        vocabulary: size of the model's vocabulary, for `correction="likelihood"`.
        probability: pi of the token, in (0, 1]; it matters to `likelihood` only; one for all, or one for each ratio.

    Raises:
        ConfigurationError: an argument is out of its range.
    """
    advantages, probabilities = _for_each(advantage, w), _for_each(probability, w)
    for name, value, holds, required in (
        ("w", w, all(0 < ratio < math.inf for ratio in w), "finite ratios above 0"),
        ("advantage", advantage, all(a != 0 and math.isfinite(a) for a in advantages), "a finite number other than 0"),
        ("probability", probability, all(0 < p <= 1 for p in probabilities), "in (0, 1]"),
    ):
        if not holds:
            raise ConfigurationError(f"gradient_weights needs {name} to be {required}, but {name}={value!r} came.")
    log_w, given, log_pi = (  # a row for each token
        torch.tensor(values, dtype=torch.float64).view(-1, 1)
        for values in (list(map(math.log, w)), advantages, list(map(math.log, probabilities)))
    )
    with torch.enable_grad():
        change = torch.zeros_like(log_w, requires_grad=True)  # of log pi
        terms = Terms(log_w + change, log_pi + change, given, config, epsilon, vocabulary)
        gain = CORRECTIONS[config.correction](terms).sum()
        if not gain.requires_grad:
            return [0.0] * len(w)
        (gradient,) = torch.autograd.grad(gain, change)
    return [float(g) + 0.0 for g in (gradient / given)[:, 0]]  # + 0.0: no -0.0


def _for_each(value: float | Sequence[float], w: Sequence[float]) -> list[float]:
    return list(value) if isinstance(value, Sequence) else [value] * len(w)


def net_push(
    config: ObjectiveConfig,
    num_generations: int,
    fresh_successes: int,
    replayed_rewards: Sequence[float] = (1.0,),
    w: float = 1.0,
    epsilon: float = 0.2,
    vocabulary: int = 0,
    probability: float = 0.5,
    scale: str = "none",
) -> NetPush:
    """Return where one step pushes a mixed group: whether its members become likelier or less likely on the whole.

    The group has `num_generations` members: the replayed ones with their rewards, and fresh ones of which
    `fresh_successes` have reward 1 and the others 0. Each counts with one token, so completions are taken to be of one
    length. Fresh tokens stand at ratio 1, where their gradient weight is 1; replayed ones at `w`.

    Args:
        config: correction, baseline and positive weight.
        num_generations: members of the group, the replayed ones included.
        fresh_successes: 0 to the number of fresh members.
        replayed_rewards: one for each replayed member.
        w, epsilon, vocabulary, probability: as for `gradient_weights`.
        scale: as for `group_advantages`.

    Raises:
        ConfigurationError: the numbers make no group.
    """
    fresh = num_generations - len(replayed_rewards)
    if not 0 <= fresh_successes <= fresh:
        raise ConfigurationError(
            f"net_push needs a group with room for its replayed members and 0 to {max(fresh, 0)} fresh successes, but "
            f"num_generations={num_generations!r}, {len(replayed_rewards)} replayed rewards and "
            f"fresh_successes={fresh_successes!r} came."
        )
    rewards = [1.0] * fresh_successes + [0.0] * (fresh - fresh_successes) + list(replayed_rewards)
    replayed = torch.arange(num_generations) >= fresh
    advantages = group_advantages(
        torch.tensor([rewards], dtype=torch.float64), config.positive_weight, scale, replayed[None], config.baseline
    )[0].tolist()
    pushes = advantages[:fresh] + [
        a * gradient_weights(config, [w], a, epsilon, vocabulary, probability)[0] if a else 0.0
        for a in advantages[fresh:]
    ]
    positive, negative = math.fsum(p for p in pushes if p > 0), math.fsum(p for p in pushes if p < 0)
    return NetPush(positive, negative, math.fsum(pushes))
