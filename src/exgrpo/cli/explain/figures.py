"""Figures of `exgrpo explain`, each from the function that a run uses.

Plans from the planner, weights from the question sampler, gradients from the corrections by autograd, pushes from the
advantages of a group.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from typing import Any

import numpy as np

from ...config import ObjectiveConfig, ReplayConfig
from ...objective import gradient_weights, net_push
from ...presets import PRESETS
from ...replay import BY_THE_COIN, ReplayedTrajectory
from .draws import Rehearsals, Table
from .pool import Pool, probability_of, with_everything_open

RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
PROBABILITIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
EXAMPLES = 3


@dataclass(frozen=True)
class Setting:
    """The setting to be explained.

    Args:
        preset: its name.
        given: options that go over it, None where not given.
        replay, objective: what follows.
        batch: questions a step.
        k: completions a question.
        epoch: epochs done.
        draws: plans that means are over; None: as many as are needed.
        epsilon: of PPO's clip.
        vocabulary: of the model, for `correction="likelihood"`.
    """

    preset: str
    given: Mapping[str, Any]
    replay: ReplayConfig
    objective: ObjectiveConfig
    batch: int
    k: int
    epoch: float = 0.0
    draws: int | None = None
    epsilon: float = 0.2
    vocabulary: int = 151_936


def describe(setting: Setting, pool: Pool | None) -> dict[str, Any]:
    """Return everything that is shown; keys are always the same. Without replay there is no pool."""
    names = ("pool", "gate", "replay", "questions", "types", "trajectories")
    of_pool: dict[str, Any] = dict.fromkeys(names) if pool is None else _of_pool(setting, pool)
    return {
        "preset": setting.preset, "batch": setting.batch, "k": setting.k, "epoch": setting.epoch,
        "step": None if pool is None else pool.step, "seed": None if pool is None else pool.planner.seed,
        "options": changed_options(setting), **of_pool, "gradient": gradient(setting),
        "group": group(setting, (of_pool["replay"] or {}).get("stored_in_a_group")),
    }  # fmt: skip


def changed_options(setting: Setting) -> list[dict[str, Any]]:
    """List options that do not have their default, and who set them."""
    rows: list[dict[str, Any]] = []
    of_preset = PRESETS[setting.preset].options
    for config in (setting.replay, setting.objective):
        for field in fields(config):
            name, value = field.name, getattr(config, field.name)
            given = setting.given.get(name) is not None
            overridden = given and name in of_preset and of_preset[name] != value
            if (value == field.default and not overridden) or any(row["option"] == name for row in rows):
                continue
            source = "command line" if given else f"preset {setting.preset}"
            if overridden:
                source += f" (preset: {of_preset[name]})"
            rows.append({"option": name, "value": value, "default": field.default, "from": source})
    return rows


# What is drawn ----------------------------------------------------------------------------------------------------------


def _of_pool(setting: Setting, pool: Pool) -> dict[str, Any]:
    planner, buffer = pool.planner, pool.buffer
    with pool.preview():
        this = planner.plan(setting.batch, pool.step, setting.epoch, pool.score)
    closed = planner.gate.check(pool.step, setting.epoch, len(buffer))
    about = {
        "log": None if pool.path is None else str(pool.path), "groups": pool.groups, "by": setting.replay.difficulty,
        "seen": int((buffer.questions.scorable > 0).sum()), "replayable": buffer.num_replayable, "retired": buffer.num_retired,
        "resting": buffer.num_resting, "trajectories": len(buffer),
        "failures": int((~buffer.column("correct")[buffer.live_slots()]).sum()),
        "pass_at_1": planner.gate.pass_at_1, "expired": this.expired, "returned": this.returned,
    }  # fmt: skip
    with_everything_open(planner, setting.batch, setting.epoch)
    with pool.preview():
        opened = planner.plan(setting.batch, pool.step, setting.epoch, pool.score).idle
    by_the_coin = (this.idle or "").startswith(BY_THE_COIN)
    idle = this.idle if closed is None and not by_the_coin else opened
    table = Table(pool)
    rehearsals = Rehearsals(pool, table, setting.batch, setting.epoch, setting.draws)
    return {
        "pool": about,
        "gate": {"open": closed is None, "why": closed},
        "replay": _form(setting, rehearsals, idle),
        "questions": _rows(table, rehearsals),
        "types": _types(table, rehearsals),
        "trajectories": _trajectories(setting.replay, rehearsals),
    }


def _form(setting: Setting, rehearsals: Rehearsals, idle: str | None) -> dict[str, Any]:
    """Describe how stored experience enters the batch, and how much of it.

    `idle`: why none, though the gate is open.
    """
    config = setting.replay
    return {
        "mixing": config.mixing, "probability": probability_of(config, setting.batch, setting.epoch),
        "wanted": rehearsals.wanted, "replayed": rehearsals.replayed, "refused": rehearsals.refused,
        "stored_in_a_group": _or_none(rehearsals.in_a_group), "idle": idle, "plans": len(rehearsals.all),
        "exact": rehearsals.exact,
    }  # fmt: skip


def _rows(table: Table, rehearsals: Rehearsals) -> list[dict[str, Any]]:
    """Return a row for each bucket.

    The chance is that of one question; of rescues, of one that is in the batch.
    """
    questions = table.by_row(np.flatnonzero(table.row_of_question >= 0))
    weights = None if rehearsals.rescues else table.weights()
    base = rehearsals.in_batch if rehearsals.rescues else questions
    seen, expected = table.seen(), rehearsals.expected
    return [
        {
            "accuracy": label, "seen": None if seen is None else int(seen[i]), "questions": int(questions[i]),
            "weight": None if weights is None else float(weights[i]), "expected": float(expected[i]),
            "standard_error": float(rehearsals.error[i]), "chance": float(expected[i] / base[i]) if base[i] else None,
        }
        for i, label in enumerate(table.labels)
    ]  # fmt: skip


def _types(table: Table, rehearsals: Rehearsals) -> list[dict[str, Any]]:
    """Return a row for each problem type, where they are drawn separately."""
    if table.buffer.num_types == 1:
        return []
    kinds = [table.buffer.types[drawn.questions] for drawn in rehearsals.all]
    counts = np.array([np.bincount(kind, minlength=table.buffer.num_types) for kind in kinds])
    return [
        {"type": name, "questions": int(size), "expected": float(mean), "standard_error": float(error)}
        for name, size, mean, error in zip(
            rehearsals.pool.type_names, table.available, counts.mean(0), counts.std(0) / math.sqrt(len(counts)),
            strict=False,
        )
    ]  # fmt: skip


def _trajectories(config: ReplayConfig, rehearsals: Rehearsals) -> dict[str, Any] | None:
    """Describe the choice of trajectories and its measurements; None where no trajectory is replayed."""
    if config.mixing == "prompt":
        return None
    measured, error = rehearsals.measured()
    columns: dict[str, Any] = {}
    for name in ("entropy", "step", "uses", "quality"):
        chosen, stored = rehearsals.compared(name)
        now = rehearsals.pool.step
        pair = (now - chosen, now - stored) if name == "step" else (chosen, stored)
        columns["age" if name == "step" else name] = {"chosen": _or_none(pair[0]), "stored": _or_none(pair[1])}
    return {
        "choice": config.trajectory_choice, "refresh": config.entropy_refresh, "measured": measured,
        "standard_error": error, **columns, "examples": _examples(rehearsals),
    }  # fmt: skip


def _examples(rehearsals: Rehearsals) -> list[dict[str, Any]]:
    """Return groups of the first plan that has some: each question's trajectories, and the chosen ones."""
    pool, table = rehearsals.pool, rehearsals.table
    first = next((drawn.chosen for drawn in rehearsals.all if drawn.chosen), ())
    return [_example(pool, table, choices) for choices in first[:EXAMPLES]]


def _example(pool: Pool, table: Table, choices: tuple[ReplayedTrajectory, ...]) -> dict[str, Any]:
    question, records = choices[0].trajectory.question, pool.buffer.table.records
    serials = {choice.serial for choice in choices}
    stored = [
        {
            "entropy": _or_none(float(records["entropy"][slot])), "age": pool.step - int(records["step"][slot]),
            "uses": int(records["uses"][slot]), "quality": _or_none(float(records["quality"][slot])),
            "correct": bool(records["correct"][slot]), "chosen": int(records["serial"][slot]) in serials,
        }
        for slot in pool.buffer.slots_of(question)[::-1]
    ]  # fmt: skip
    return {"question": question, "accuracy": table.labels[table.row_of_question[question]], "stored": stored}


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


# How hard it pushes -----------------------------------------------------------------------------------------------------


def gradient(setting: Setting) -> dict[str, Any]:
    """Return the factor of A x (gradient of log pi) of a token at each ratio, for either sign of A.

    Of a fresh token under PPO's clip, and of a replayed one; of `likelihood`, which looks at pi and not at the ratio,
    at each pi.
    """
    s, fresh = setting, replace(setting.objective, correction="clip")
    epsilon = s.epsilon if s.objective.clip_fresh else math.inf
    signs = {"positive": 1.0, "negative": -1.0}
    found: dict[str, Any] = {"w": list(RATIOS), "epsilon": s.epsilon, "positive_weight": s.objective.positive_weight}
    found["fresh"] = {name: gradient_weights(fresh, RATIOS, sign, epsilon) for name, sign in signs.items()}
    found["replayed"] = found["of_pi"] = None
    if s.replay.mixing in ("none", "prompt", "prefix"):
        return found
    if s.objective.correction == "likelihood":
        weights = [gradient_weights(s.objective, [1.0], 1.0, s.epsilon, s.vocabulary, pi)[0] for pi in PROBABILITIES]
        found["of_pi"] = {"pi": list(PROBABILITIES), "vocabulary": s.vocabulary, "weight": weights}
    found["replayed"] = {
        name: gradient_weights(s.objective, RATIOS, sign, s.epsilon, s.vocabulary) for name, sign in signs.items()
    }
    return found


def group(setting: Setting, in_a_group: float | None = None) -> dict[str, Any]:
    """Return the net push of a group by its successes, at w = 1.

    Of a fresh group, or of one with as many stored members as there are on average (`in_a_group`), or may be; these are
    successes, unless they are the whole group.
    """
    s, k = setting, setting.k
    most = min(s.replay.replays_per_group, k) if in_a_group is None else max(1, round(in_a_group))
    stored = most if s.replay.mixing in ("share", "coin") else 0
    stored = 1 if s.replay.mixing == "rescue" else stored
    fresh = k - stored
    if fresh:
        cases = [(right, [1.0] * stored) for right in range(1 if s.replay.mixing == "rescue" else fresh + 1)]
    else:
        cases = [(0, [1.0] * right + [0.0] * (stored - right)) for right in range(stored + 1)]
    rows = []
    for right, rewards in cases:
        push = net_push(s.objective, k, right, rewards, epsilon=s.epsilon, vocabulary=s.vocabulary)
        rows.append({"successes": right if fresh else int(sum(rewards)), **asdict(push)})
    return {"fresh": fresh, "stored": stored, "rows": rows, "reading": reading(rows, fresh or stored)}


def reading(rows: list[dict[str, Any]], members: int) -> str:
    """Say where a group pushes; `members` are those that the successes are among."""
    parts = []
    for direction, found in groupby(rows, key=_direction):
        numbers = [row["successes"] for row in found]
        first, last = numbers[0], numbers[-1]
        if first == 0 and last > 0 and last < members:
            where = f"while fewer than {last + 1} of {members} are right"
        elif first == last:
            where = f"with {first} of {members} right"
        else:
            where = f"with {first} to {last} of {members} right"
        parts.append(f"{direction} {where}")
    return "; ".join(parts)


def _direction(row: Mapping[str, Any]) -> str:
    if row["positive"] == 0 and row["negative"] == 0:
        return "teaches nothing"
    if abs(row["net"]) < 1e-9 * (row["positive"] - row["negative"]):
        return "balances"
    return "pushes down" if row["net"] < 0 else "pushes up"
