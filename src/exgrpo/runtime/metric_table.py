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
        "right among the scorable fresh completions; the gate looks at it. Fresh members of replayed questions are in it, "
        "stored completions are not",
        basic=True,
    ),
    "fresh/unanswered": Metric(
        "share",
        "fresh completions without an answer where the verifier looks, be it right or wrong; only with a reward function that "
        "can tell. 1 is said at once",
        basic=True,
        rare=True,
    ),
    "fresh/entropy": Metric(
        "nats",
        "token mean of the entropy over fresh rows, at the training temperature; without replay it equals TRL's `entropy`",
        basic=True,
    ),
    "fresh/groups_unsolved": Metric("share of groups", "no fresh completion right", basic=True),
    "fresh/groups_solved": Metric("share of groups", "all fresh completions right"),
    "fresh/generated_tokens": Metric(
        "tokens",
        "completion tokens sampled since the start, over all processes and all calls of `train()`, without prompts and stored "
        "completions",
        basic=True,
        state=True,
    ),
    "fresh/data_pass": Metric(
        "passes",
        "completed passes over the questions; not TRL's `epoch`, which counts replayed questions too",
        state=True,
    ),
    "fresh/refilled": Metric("questions", "retired ones that filled up the batch", basic=True, rare=True),
    "fresh/skipped": Metric(
        "questions",
        "left out of the fresh stream, since their latest groups had no variance (`skip`)",
        basic=True,
        rare=True,
    ),
    "fresh/rows_skipped": Metric(
        "share of rows",
        "of a micro-batch, left out of the loss since their advantage is 0 (`skip_rows`); entropies cover the others",
    ),
    "replay/share": Metric(
        "share of groups",
        'that replay chose, or that a rescue mended; with `mixing="added"` the added completions per group',
        basic=True,
    ),
    "replay/reward_mixed": Metric(
        "reward",
        "mean over all rows that are learned from, stored completions among them; TRL's `reward` is of fresh ones",
        basic=True,
    ),
    "replay/size": Metric("completions", "stored, this generation's among them", basic=True, state=True),
    "replay/questions": Metric(
        "questions", "that can be replayed: with a stored completion, not retired", basic=True, state=True
    ),
    "replay/retired": Metric("questions", "retired now", basic=True, state=True),
    "replay/gate_open": Metric("0 or 1", "1 once replay has started", basic=True, state=True),
    "replay/age_mean": Metric(
        "optimizer steps", "mean age of the replayed completions; only if there are any", basic=True
    ),
    "replay/age_p50": Metric("optimizer steps", "median of their ages"),
    "replay/age_p90": Metric("optimizer steps", "90th percentile of their ages"),
    "replay/age_max": Metric("optimizer steps", "age of the oldest of them"),
    "replay/ess": Metric("share", "(sum w)^2 / (n sum w^2) over replayed tokens, in (0, 1]", basic=True),
    "replay/ratio_mean": Metric("ratio", "token mean of w, the policy now over the behaviour policy", basic=True),
    "replay/log_ratio_mean": Metric("nats", "token mean of log w"),
    "replay/clamped_share": Metric(
        "share", "of the replayed tokens, those that the correction cut: above the cap, or clipped"
    ),
    "replay/net_push": Metric(
        "reward",
        "mean over groups with a stored member of the sum, over members, of advantage times gradient weight (1 for a fresh "
        "one); below 0, such a group makes its completions less likely as a whole",
    ),
    "replay/entropy": Metric("nats", "as `fresh/entropy`, over stored completions in the batch"),
    "replay/admitted": Metric("completions", "new ones stored of this generation"),
    "replay/injected": Metric("completions", "stored ones in the batch"),
    "replay/refused": Metric("questions", "drawn, and none of their completions was eligible"),
    "replay/expired": Metric("completions", "left because they were older than `max_age`"),
    "replay/returned": Metric("questions", "retired ones that came back (`review_every`)"),
    "replay/skipped_unscorable": Metric(
        "completions", "fresh ones that the deciding function gave None", basic=True, rare=True
    ),
    "replay/uses_mean": Metric(
        "replays", "mean number of times that the replayed completions had been replayed before"
    ),
    "replay/uses_max": Metric("replays", "the most of them"),
    "replay/first_use_share": Metric("share", "of them, those that were replayed for the first time"),
    "prefix/share": Metric(
        "share of groups", "that begin with the first tokens of a stored success (`prefix` mixing)", basic=True
    ),
    "prefix/pass_at_1": Metric(
        "share", "right among their scorable completions, which no metric under `fresh/` counts", basic=True
    ),
    "prefix/length_mean": Metric("tokens", "mean length of what they begin with", basic=True),
    "prefix/fraction": Metric("share", "mean of that length over the length of the stored success"),
    "replay/unsolved": Metric("questions", "replayable, bucket 0: the latest fresh group had no success", state=True),
    "replay/hard": Metric("questions", "replayable, accuracy in (0, 25] %", state=True),
    "replay/medium": Metric("questions", "replayable, accuracy in (25, 75) %", state=True),
    "replay/easy": Metric("questions", "replayable, accuracy from 75 % on", state=True),
    "replay/bucket_k": Metric(
        "questions", "replayable, accuracy k of K: `replay/bucket_0` and so on, where K is at most 16", state=True
    ),
    "replay/time/PHASE": Metric(
        "seconds",
        "of a generation on this process: `plan` (which questions and completions), `measure` (candidates under the current "
        "policy), `observe`, `embed` (waiting for embeddings), `admit` (storing), `log` (handing to the log)",
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
