"""List every metric of this package: its unit, its meaning, and whether it is shown by default."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

PREFIXES = ("fresh/", "replay/", "prefix/")
FILE_NAME = "metrics.jsonl"
"""File of the logged metrics beside the experience log, one log per line."""
SHOWN = ("basic", "all")
"""Values of the option `replay_metrics`."""


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Args:
        unit: of its values.
        meaning: what is measured, in one sentence.
        basic: whether it is shown with `replay_metrics="basic"`.
        rare: of the basic ones, whether it is left out as long as it has always been 0, as all that are not basic are.
        state: whether it is a state, of which only the latest value is true; others are averaged until the next log.
    """

    unit: str
    meaning: str
    basic: bool = False
    rare: bool = False
    state: bool = False


METRICS: Mapping[str, Metric] = {
    "fresh/pass_at_1": Metric(
        "share",
        "right among the scorable fresh completions, those of replayed questions included; the gate compares it",
        basic=True,
    ),
    "fresh/unanswered": Metric(
        "share",
        "fresh completions without an answer where the verifier looks; only if the reward function can tell",
        basic=True,
        rare=True,
    ),
    "fresh/entropy": Metric(
        "nats",
        "mean over the tokens of fresh rows, at the training temperature; without replay, TRL's `entropy`",
        basic=True,
    ),
    "fresh/groups_unsolved": Metric("share of groups", "no fresh completion right", basic=True),
    "fresh/groups_solved": Metric("share of groups", "all fresh completions right"),
    "fresh/generated_tokens": Metric(
        "tokens",
        "completion tokens sampled since the start, over all processes; no prompts, no stored completions",
        basic=True,
        state=True,
    ),
    "fresh/data_pass": Metric(
        "passes",
        "passes over the questions, without the replayed ones that TRL's `epoch` counts",
        state=True,
    ),
    "fresh/refilled": Metric("questions", "retired ones that filled up the batch", basic=True, rare=True),
    "fresh/skipped": Metric(
        "questions",
        "left out of the fresh stream by `skip`",
        basic=True,
        rare=True,
    ),
    "fresh/rows_skipped": Metric(
        "share of rows",
        "of a micro-batch, left out of the loss for advantage 0 (`skip_rows`)",
    ),
    "replay/share": Metric(
        "share of groups",
        'chosen by replay or mended by a rescue; with `mixing="added"`, added completions per group',
        basic=True,
    ),
    "replay/reward_mixed": Metric(
        "reward",
        "mean over all rows learned from, stored ones included; TRL's `reward` is of fresh ones",
        basic=True,
    ),
    "replay/size": Metric("completions", "stored, those of this generation included", basic=True, state=True),
    "replay/questions": Metric(
        "questions", "that can be replayed: not retired, with a stored completion", basic=True, state=True
    ),
    "replay/retired": Metric("questions", "retired now", basic=True, state=True),
    "replay/gate_open": Metric("0 or 1", "1 once replay has started", basic=True, state=True),
    "replay/age_mean": Metric("optimizer steps", "mean age of the replayed completions, if any", basic=True),
    "replay/age_p50": Metric("optimizer steps", "their median age"),
    "replay/age_p90": Metric("optimizer steps", "90th percentile of their ages"),
    "replay/age_max": Metric("optimizer steps", "age of the oldest"),
    "replay/ess": Metric(
        "share", "effective sample size, (sum w)^2 / (n sum w^2) over replayed tokens, in (0, 1]", basic=True
    ),
    "replay/ratio_mean": Metric("ratio", "token mean of w, the policy now over the behaviour policy", basic=True),
    "replay/log_ratio_mean": Metric("nats", "token mean of log w"),
    "replay/clamped_share": Metric("share", "of the replayed tokens, those that the correction capped or clipped"),
    "replay/net_push": Metric(
        "reward",
        "over groups with a stored member, mean of the sum of advantage times gradient weight; below 0, such a group "
        "makes its completions less likely as a whole",
    ),
    "replay/entropy": Metric("nats", "as `fresh/entropy`, over stored completions in the batch"),
    "replay/admitted": Metric("completions", "newly stored from this generation"),
    "replay/injected": Metric("completions", "stored ones in the batch"),
    "replay/refused": Metric("questions", "drawn, but without an eligible completion"),
    "replay/expired": Metric("completions", "left for being older than `max_age`"),
    "replay/returned": Metric("questions", "retired ones that came back (`review_every`)"),
    "replay/skipped_unscorable": Metric(
        "completions", "fresh ones that the deciding function scored None", basic=True, rare=True
    ),
    "replay/uses_mean": Metric("replays", "earlier replays of the replayed completions, mean"),
    "replay/uses_max": Metric("replays", "the same, highest"),
    "replay/first_use_share": Metric("share", "of the replayed completions, those replayed for the first time"),
    "prefix/share": Metric(
        "share of groups", "that begin with a stored success's first tokens (`prefix` mixing)", basic=True
    ),
    "prefix/pass_at_1": Metric(
        "share", "right among their scorable completions, which no `fresh/` metric counts", basic=True
    ),
    "prefix/length_mean": Metric("tokens", "mean length of the prefix", basic=True),
    "prefix/fraction": Metric("share", "its mean share of the stored success"),
    "replay/unsolved": Metric("questions", "replayable, no success in the latest fresh group (bucket 0)", state=True),
    "replay/hard": Metric("questions", "replayable, accuracy in (0, 25] %", state=True),
    "replay/medium": Metric("questions", "replayable, accuracy in (25, 75) %", state=True),
    "replay/easy": Metric("questions", "replayable, accuracy of 75 % or more", state=True),
    "replay/bucket_k": Metric(
        "questions", "replayable, accuracy k of K: `replay/bucket_0` and on, for K up to 16", state=True
    ),
    "replay/time/PHASE": Metric(
        "seconds",
        "per generation on this process: `plan`, `measure` (candidates under the current policy), `observe`, `embed` "
        "(waiting), `admit` (storing), `log`",
    ),
}


def metric_of(name: str) -> Metric | None:
    """Return the row of a logged name; None for one that is not in the table, such as a user's own."""
    pattern = re.sub(r"^replay/bucket_\d+$", "replay/bucket_k", re.sub(r"^replay/time/\w+$", "replay/time/PHASE", name))
    return METRICS.get(pattern)


def hidden(values: Mapping[str, float], shown: str, seen: Iterable[str]) -> set[str]:
    """Return which of the logged names are left out.

    Args:
        values: by name.
        shown: `basic` or `all`.
        seen: names that were shown before; what was once other than 0 stays.
    """
    seen, names = set(seen), set()
    for name, value in values.items():
        if (metric := metric_of(name)) is not None:
            always_zero = value == 0 and name not in seen and (metric.rare or not metric.basic)
            if always_zero or not (metric.basic or shown == "all"):
                names.add(name)
    return names


def as_markdown() -> str:
    """Format the table for the documentation; a star marks what is shown by default."""
    lines = ["| metric | unit | meaning |", "|---|---|---|"]
    for name, metric in METRICS.items():
        star = "*" if metric.basic else ""
        lines.append(f"| `{name}`{star} | {metric.unit} | {metric.meaning} |")
    return "\n".join(lines) + "\n"
