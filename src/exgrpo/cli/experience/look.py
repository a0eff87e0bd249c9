"""`exgrpo experience stats` and `questions`: what a log holds, in figures and question by question."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...archive.opened import consistent_reader
from ...experience.buffer import ExperienceBuffer
from ...experience.difficulty import buckets_of
from ...log import LogReader, rebuild
from ...log.connection import owner_of
from ...log.rebuild import empty_buffer
from ...log.records import Provenance
from . import ROWS, log_path
from .output import bar, counted, prompt_text, quantity, write, write_fields, write_json, write_table

QUANTILES = (0, 10, 50, 90, 100)
RECENT = 20


def writer_of(path: Path) -> dict[str, Any] | None:
    """Return who writes a log now, as far as can be told without disturbing it."""
    owner = owner_of(path)
    if owner is None or owner.is_gone:
        return None
    return {"pid": owner.pid, "host": owner.host, "since": owner.since}


# stats ------------------------------------------------------------------------------------------------------------------


def stats(args: argparse.Namespace) -> int:
    path = log_path(args.run)
    with consistent_reader(path) as reader:
        found = describe(reader)
    if args.json:
        write_json(found)
    else:
        as_text(found)
    return 0


def describe(reader: LogReader) -> dict[str, Any]:
    """Return everything that `stats` shows; keys are always the same."""
    path, position = reader.path, reader.position()
    origins = reader.origins()
    lineage = {span.branch for span in reader.lineage()}
    origin = origins[reader.branches[position.branch].origin] if position is not None else Provenance()
    buffer = empty_buffer(reader, position)
    state = rebuild(reader, buffer)
    meta = dict(reader.rows("SELECT key, value FROM meta"))
    return {
        "log": {
            "path": str(path), "id": reader.id, "created": meta.get("created"), "bytes": path.stat().st_size,
            "pruned": meta.get("pruned"), "writer": writer_of(path),
        },
        "branches": _branches(reader, lineage),
        "now": {
            "branch": None if position is None else position.branch, "step": state.step, "generation": state.generation,
            "pass_at_1": state.pass_at_1, "gate_open": state.gate_open, "generated_tokens": state.generated_tokens,
        },
        "origin": vars(origin.without_paths()),
        "questions": _question_counts(reader, buffer),
        "trajectories": _trajectory_counts(reader, buffer),
        "imported": _imported(reader),
        "accuracy": _accuracy(buffer),
        **_distributions(buffer, state.step),
        "replay": _replay(reader),
    }  # fmt: skip


def _branches(reader: LogReader, lineage: set[int]) -> list[dict[str, Any]]:
    sql = "SELECT branch, count(*), min(step), max(step) FROM state GROUP BY branch"
    commits = {branch: values for branch, *values in reader.rows(sql)}
    rows = []
    for branch in reader.branches.values():
        count, _, last = commits.get(branch.id, (0, None, branch.step))
        rows.append(
            {
                "id": branch.id, "parent": branch.parent, "first_step": branch.step, "last_step": last, "commits": count,
                "started": branch.started, "host": branch.host, "counts": branch.id in lineage, "note": branch.note,
            }
        )  # fmt: skip
    return rows


def _question_counts(reader: LogReader, buffer: ExperienceBuffer) -> dict[str, int]:
    sql = (
        "SELECT count(*), sum(scorable > 0 AND solved = 0) FROM "
        "(SELECT sum(scorable) AS scorable, sum(successes) AS solved FROM observations GROUP BY question)"
    )
    seen, unsolved = next(reader.rows(sql))
    return {"seen": seen, "replayable": buffer.num_replayable, "retired": buffer.num_retired, "unsolved": unsolved or 0}


def _trajectory_counts(reader: LogReader, buffer: ExperienceBuffer) -> dict[str, Any]:
    sql = "SELECT count(*), coalesce(sum(length), 0) FROM trajectories"
    ever, tokens_ever = next(reader.rows(sql))
    (_, tokens) = next(reader.rows(f"{sql} WHERE id NOT IN (SELECT trajectory FROM evictions)"))
    left = dict(reader.rows("SELECT reason, count(*) FROM evictions GROUP BY reason ORDER BY reason"))
    failures = int((~buffer.column("correct")[buffer.live_slots()]).sum())
    return {
        "stored": len(buffer), "failures": failures, "tokens": tokens, "ever_stored": ever, "tokens_ever": tokens_ever,
        "left": left,
    }  # fmt: skip


def _imported(reader: LogReader) -> list[dict[str, Any]]:
    """Count stored trajectories by the data they were imported from."""
    origins = reader.origins()
    if not any(origin.source for origin in origins.values()):
        return []
    sql = "SELECT origin, count(*) FROM trajectories WHERE id NOT IN (SELECT trajectory FROM evictions) GROUP BY origin"
    return [
        {"source": words, "stored": stored}
        for number, stored in reader.rows(sql)
        if (words := origins[number].source_in_words()) is not None
    ]


def _accuracy(buffer: ExperienceBuffer) -> list[dict[str, Any]]:
    """Count questions by accuracy, in buckets of 1 / K."""
    k, stats = buffer.num_generations, buffer.questions
    observed, replayable = (
        np.bincount(buckets_of(stats.successes[questions], stats.scorable[questions], k), minlength=k + 1)
        for questions in (np.flatnonzero(stats.scorable), buffer.replayable())
    )
    return [
        {"bucket": f"{i}/{k}", "questions": int(observed[i]), "replayable": int(replayable[i])} for i in range(k + 1)
    ]


def _distributions(buffer: ExperienceBuffer, step: int) -> dict[str, Any]:
    slots = buffer.live_slots()
    entropy, quality = (buffer.column(name)[slots].astype(float) for name in ("entropy", "quality"))
    return {
        "age": _quantiles(step - buffer.column("step")[slots]),
        "uses": _quantiles(buffer.column("uses")[slots]),
        "entropy": _quantiles(entropy[~np.isnan(entropy)]),
        "quality": _quantiles(quality[~np.isnan(quality)]),
    }


def _quantiles(values: NDArray[Any]) -> dict[str, Any]:
    """Count, mean, and quantiles in per cent."""
    known = len(values) > 0
    points = np.percentile(values, QUANTILES).tolist() if known else [None] * len(QUANTILES)
    return {
        "count": len(values), "mean": float(values.mean()) if known else None,
        **{f"p{q}": point for q, point in zip(QUANTILES, points, strict=True)},
    }  # fmt: skip


def _replay(reader: LogReader) -> dict[str, Any]:
    moments = dict(reader.rows("SELECT moment, count(*) FROM replay r JOIN lineage l ON r.branch = l.branch "
                               "AND r.seq <= l.last_seq GROUP BY moment"))  # fmt: skip
    rows = list(reader.rows("SELECT questions, replayed FROM generations ORDER BY seq"))
    ratios = np.array([r for (r,) in reader.rows("SELECT log_ratio FROM learnings WHERE log_ratio NOTNULL")])
    (ess,) = next(reader.rows("SELECT avg(ess) FROM learnings"))
    return {
        "planned": moments.get("plan", 0), "rescues": moments.get("rescue", 0), "added": moments.get("added", 0),
        "share": _share(rows),
        "recent_share": _share(rows[-RECENT:]), "log_ratio": _quantiles(ratios), "ess_mean": ess,
    }  # fmt: skip


def _share(rows: list[tuple[int, int]]) -> float | None:
    questions = sum(n for n, _ in rows)
    return sum(replayed for _, replayed in rows) / questions if questions else None


def as_text(found: dict[str, Any]) -> None:
    log, now, origin = found["log"], found["now"], found["origin"]
    writer = log["writer"]
    q, t, r = found["questions"], found["trajectories"], found["replay"]
    left = ", ".join(f"{count:,} {reason}" for reason, count in t["left"].items())
    write_fields(
        {
            "log": log["path"],
            "id": f"{log['id']}, created {log['created']}" + (f", pruned {log['pruned']}" if log["pruned"] else ""),
            "size": quantity(log["bytes"]),
            "written now": f"by process {writer['pid']} on {writer['host']} since {writer['since']}"
            if writer
            else "no",
            "step": f"{now['step']} (generation {now['generation']}, branch {now['branch']})",
            "model": origin["model"] or None,
            "tokenizer": origin["tokenizer"][:12] or None,
            "template": origin["template"][:12] or None,
            "rewards": Provenance(rewards=origin["rewards"]).rewards_in_words() or None,
            "imported": ", ".join(f"{one['stored']:,} of {one['source']}" for one in found["imported"]) or None,
            "questions": f"{q['seen']:,} seen, {q['replayable']:,} replayable, {q['retired']:,} retired, "
            f"{q['unsolved']:,} unsolved",
            "trajectories": f"{t['stored']:,} stored ({t['tokens']:,} tokens"
            + (f", {t['failures']:,} failures" if t["failures"] else "")
            + f"), {t['ever_stored']:,} ever"
            + (f"; left: {left}" if left else ""),
            "replays": f"{r['planned']:,} planned, {r['rescues']:,} rescues, {r['added']:,} added; share of questions "
            f"{_number(r['share'])}, of the last {RECENT} generations {_number(r['recent_share'])}",
        }
    )
    write("\nquestions by latest accuracy")
    most = max([row["questions"] for row in found["accuracy"]] + [1])
    write_table([{**row, "": bar(row["questions"] / most)} for row in found["accuracy"]],
                ["bucket", "questions", "replayable", ""])  # fmt: skip
    write()
    rows = [
        {"distribution": "age (steps)", **found["age"]}, {"distribution": "uses", **found["uses"]},
        {"distribution": "entropy (nats a token)", **found["entropy"]},
        *[{"distribution": "quality", **found["quality"]}] * bool(found["quality"]["count"]),
        {"distribution": "log-ratio of replays", **r["log_ratio"]},
    ]  # fmt: skip
    names = ["count", "mean", *(f"p{quantile}" for quantile in QUANTILES)]
    write_table(rows, ["distribution", *names])
    write("\nbranches (* what counts now)")
    branches = [
        {**row, "": "*" if row["counts"] else "", "branch": str(row["id"]),
         "from": None if row["parent"] is None else str(row["parent"]),
         "steps": f"{row['first_step']}..{row['last_step']}"}
        for row in found["branches"]
    ]  # fmt: skip
    write_table(
        branches,
        ["", "branch", "from", "steps", "commits", "started", "host", "note"],
        spare=["note", "host", "commits"],
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


# questions --------------------------------------------------------------------------------------------------------------

_ORDER: dict[str | None, str] = {
    None: "id",
    "accuracy": "(scorable > 0) DESC, 1.0 * successes / scorable, id",
    **{name: f"{name} DESC, id" for name in ("replays", "stored", "groups", "completions")},
}
_FIELDS = (
    "id", "key", "successes", "scorable", "observed_at", "groups", "completions", "solved", "stored", "failures", "quality",
    "replays", "retired", "problem_type", "prompt", "columns",
)  # fmt: skip


def questions(args: argparse.Namespace) -> int:
    filters = {
        "completions > 0 AND solved = 0": args.unsolved, "retired": args.retired, "stored > 0": args.stored
    }  # fmt: skip
    wanted = " AND ".join(f"({text})" for text, given in filters.items() if given) or "1"
    sql = f"SELECT {', '.join(_FIELDS)} FROM questions WHERE {wanted} ORDER BY {_ORDER[args.sort]} LIMIT ?"
    limit = args.limit if args.limit is not None else 0 if args.json else ROWS
    with consistent_reader(log_path(args.run)) as reader:
        rows = [dict(zip(_FIELDS, row, strict=True)) for row in reader.rows(sql, (min(limit, 2**63 - 1) or -1,))]
        (number,) = next(reader.rows(f"SELECT count(*) FROM questions WHERE {wanted}"))
    for row in rows:
        row["retired"] = bool(row["retired"])
    if args.json:
        write_json(rows)
        return 0
    shown = [
        {**row, "id": f"q:{row['id']}", "key": row["key"][:12], "accuracy": _accuracy_of(row),
         "prompt": prompt_text(row["prompt"])}
        for row in rows
    ]  # fmt: skip
    known = ["failures"] * any(row["failures"] for row in rows)
    columns = [
        "id",
        "key",
        "accuracy",
        "groups",
        "completions",
        "solved",
        "stored",
        *known,
        "replays",
        "retired",
        "prompt",
    ]
    write_table(shown, columns, long="prompt", spare=["key", "completions", "groups", "solved"])
    if number > len(rows):
        write(f"and {counted(number - len(rows), 'more question')} of {number:,}; --limit N shows more, 0 all")
    return 0


def _accuracy_of(row: dict[str, Any]) -> str | None:
    return f"{row['successes']}/{row['scorable']}" if row["scorable"] else None
