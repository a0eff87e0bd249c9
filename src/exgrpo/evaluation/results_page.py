"""An evaluation's results as tables, and as one page."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..report.page import page
from ..report.table import html_table
from .benchmarks import BENCHMARKS
from .summary import in_points, told

EXPLANATION = """\
Rates are in percent with 95 % intervals, clustered by question: Clopper-Pearson at the effective sample size (Korn-Graubard).
A difference is between accuracies on the same questions, by Student's t with half a question won and half of one lost added.
unscorable: completions whose gold answer cannot be read. disagree: completions that a second verifier takes otherwise than the
first, which decides. cut: completions that were ended at the limit of tokens. different: different right texts a question."""


def table_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per model and a column per benchmark, in the order of the paper's table."""
    order = {name: place for place, name in enumerate(BENCHMARKS)}
    names = sorted(
        {row["benchmark"] for row in summary["results"]}, key=lambda name: (order.get(name, len(order)), name)
    )
    rows = []
    for model in summary["models"]:
        own = {row["benchmark"]: row for row in summary["results"] if row["model"] == model["name"]}
        row: dict[str, Any] = {"model": model["name"]}
        for name in names:
            samples = summary["benchmarks"][name]["num_samples"]
            measure = "Pass@1" if samples == 1 else f"Avg@{samples}"
            title = BENCHMARKS[name].title if name in BENCHMARKS else name
            row[f"{title} ({measure})"] = in_points(own[name]["avg"]) if name in own else None
        rows.append(row)
    return rows


def detail_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per model and benchmark."""
    rows = []
    for found in summary["results"]:
        row = {"model": found["model"], "benchmark": found["benchmark"], "questions": found["questions"]}
        row |= {"completions": found["samples"], "Pass@1": in_points(found["avg"])}
        ks = [k for k in found["pass_at_k"] if k != "1"]
        row["Pass@k"] = ", ".join(f"{k}: {in_points(found['pass_at_k'][k])}" for k in ks[-1:]) or None
        row |= {
            "cut": f"{found['cut_share']:.1%}",
            "tokens": found["mean_tokens"],
            "different": found["distinct_right"],
        }
        row["unscorable"] = found["unscorable"]
        row["disagree"] = ", ".join(f"{name} {len(which)}" for name, which in found["disagreements"].items()) or None
        rows.append(row)
    return rows


def results_page(summary: Mapping[str, Any], disagreements: Sequence[Mapping[str, Any]], command: str) -> str:
    """Return the results as one HTML page."""
    parts = [html_table(table_rows(summary)), *(f"<p>{escape(told(row))}</p>" for row in summary["differences"])]
    parts += ["<h2>In detail</h2>", html_table(detail_rows(summary), digits=1)]
    if disagreements:
        parts += ["<h2>Where verifiers disagree</h2>", html_table(disagreements, digits=1)]
    if "contamination" in summary:
        parts += ["<h2>Seen in training</h2>", html_table(_seen_rows(summary["contamination"]))]
    if "recalled" in summary:
        rows = [{"model": m, "benchmark": b, **v} for m, found in summary["recalled"].items() for b, v in found.items()]
        parts += ["<h2>Rest of the question by heart</h2>", html_table(rows)]
    parts += [
        f"<p class='muted small'>{escape(EXPLANATION)}</p>",
        f"<p class='muted small'><code>{escape(command)}</code></p>",
    ]
    return page("Evaluation", parts)


def _seen_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "benchmark": name,
            "questions": row["questions"],
            "word by word in the training texts": len(row["exact"]),
            "half of its 8-grams or more": len(row["much"]),
        }
        for name, row in found.items()
    ]
