"""Tables of advantages and gradient weights of a run's objective, made once in another process, since torch is large."""

import math
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

MOST_STORED = 2
LIMIT, POINTS = 6.0, 121
"""Log-ratios of the table of weights, from -6 to 6."""


def table_of(options: Mapping[str, Any], k: int) -> dict[str, Any]:
    """Compute the table with the objective itself; imports torch.

    Args:
        options: of the run; a rule of the user's own is not run.
        k: members of a group.

    Returns:
        `log_ratios` (P,) and the gradient weights there of a positive and a negative advantage, `up` and `down`; and
        `advantages`: of a group with n scorable fresh members, s right ones, r right and w wrong stored ones, under
        "n,s,r,w", those of a right and a wrong fresh and a right and a wrong stored member, for rewards 1 and 0. Or `why` not.
    """
    import torch

    from ..config import BASELINES, CORRECTIONS
    from ..objective import gradient_weights
    from ..objective.advantage import group_advantages
    from .options import configs_of, of_the_user

    _, objective = configs_of(dict(options))
    options = dict(options)
    why = of_the_user(options, CORRECTIONS, "correction") or of_the_user(options, BASELINES, "baseline")
    if why is not None:
        return {"why": why}
    ratios = [-LIMIT + 2 * LIMIT * i / (POINTS - 1) for i in range(POINTS)]
    w = [math.exp(ratio) for ratio in ratios]
    up, down = (
        gradient_weights(objective, w, advantage=sign, vocabulary=150_000, probability=0.9) for sign in (1.0, -1.0)
    )
    kinds = [
        (n, s, r, wrong)
        for r in range(MOST_STORED + 1) for wrong in range(MOST_STORED + 1 - r)
        for n in range(k - r - wrong + 1) for s in range(n + 1)
    ]  # fmt: skip
    rewards = torch.full((len(kinds), k), math.nan, dtype=torch.float64)
    replayed = torch.zeros((len(kinds), k), dtype=torch.bool)
    for row, (n, s, r, wrong) in enumerate(kinds):
        values = [1.0] * s + [0.0] * (n - s) + [1.0] * r + [0.0] * wrong
        rewards[row, : len(values)] = torch.tensor(values, dtype=torch.float64)
        replayed[row, n : n + r + wrong] = True
    found = group_advantages(rewards, objective.positive_weight, "none", replayed, objective.baseline)
    advantages = {}
    for (n, s, r, wrong), row in zip(kinds, found.tolist(), strict=True):
        places = (0 if s else None, s if n > s else None, n if r else None, n + r if wrong else None)
        advantages[f"{n},{s},{r},{wrong}"] = [None if place is None else round(row[place], 5) for place in places]
    rounded = [[round(value, 5) for value in values] for values in (ratios, up, down)]
    return {"log_ratios": rounded[0], "up": rounded[1], "down": rounded[2], "advantages": advantages, "why": None}


def table_apart(options: Mapping[str, Any], k: int) -> dict[str, Any]:
    """Compute the table in another process, so that its memory is freed."""
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            return pool.submit(table_of, dict(options), k).result(timeout=120)
    except Exception as error:  # noqa: BLE001 - whatever it was, the rest of the page works without
        return {"why": f"the objective could not be asked ({type(error).__name__}: {error})"}
