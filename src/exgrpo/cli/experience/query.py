"""`exgrpo experience show` and `sql`: one trajectory, one question, or any rows."""

import argparse
import contextlib
import csv
import json
import re
import sqlite3
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from ...archive.decoding import Decoder
from ...archive.opened import consistent_reader
from ...errors import ExperienceLogError
from ...experience.policy_stats import MEASURED
from ...log import LogReader, schema
from ...log.connection import connect, explained, name_of
from ...log.records import UNKNOWN
from ..main import UsageError
from . import log_path, refuse_the_old_order
from .output import format_cell, harmless, prompt_text, width, write, write_fields, write_json, write_table

# show -------------------------------------------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> int:
    refuse_the_old_order("show", args.run, args.id)
    with consistent_reader(log_path(args.run)) as reader:
        one = _Shown(reader)
        number = one.trajectory_number(args.id)
        found = one.trajectory(number) if number is not None else one.question(one.question_number(args.id))
    if args.json:
        write_json(found)
    elif number is not None:
        _trajectory_as_text(found)
    else:
        _question_as_text(found)
    return 0


class _Shown:
    """A log's trajectories and questions, as shown."""

    def __init__(self, reader: LogReader):
        self._reader = reader
        self._decode = Decoder(reader)
        self._origins = reader.origins()

    def trajectory_number(self, text: str) -> int | None:
        """Return the id of a trajectory, if the text is one."""
        if not re.fullmatch(r"\d+", text):
            return None
        number = min(int(text), 2**63 - 1)
        if next(self._reader.rows("SELECT 1 FROM trajectory WHERE id = ?", (number,)), None) is None:
            if next(self._matching(text), None) is None:
                raise UsageError(
                    f"there is no trajectory {text} in {self._reader.path}, and no question's key begins so."
                )
            return None
        return number

    def _matching(self, prefix: str) -> Any:
        sql = "SELECT id, key FROM question WHERE substr(key, 1, ?) = ? ORDER BY id LIMIT 3"
        return self._reader.rows(sql, (len(prefix), prefix.lower()))

    def question_number(self, text: str) -> int:
        if text.startswith("q:"):
            if not text[2:].isdecimal():
                raise UsageError(f"{text!r} is no question: q: is followed by its number, for example q:12.")
            sql = "SELECT id, key FROM question WHERE id = ?"
            found = list(self._reader.rows(sql, (min(int(text[2:]), 2**63 - 1),)))
        else:
            found = list(self._matching(text)) if re.fullmatch(r"\S+", text) else []
        if len(found) > 1 and all(key != text for _, key in found):
            raise UsageError(f"{text!r} begins several keys: {', '.join(key for _, key in found)}. Give more of it.")
        if not found:
            raise UsageError(
                f"there is no question {text!r} in {self._reader.path}. Give a trajectory's id, q:NUMBER, or the first "
                "characters of a question's key; `exgrpo experience questions` lists them."
            )
        return int(found[0][0])

    def question(self, number: int) -> dict[str, Any]:
        names = ("id", "key", "dataset_row", "prompt", "columns", "problem_type")
        (row,) = self._reader.rows(f"SELECT {', '.join(names)} FROM question WHERE id = ?", (number,))
        about = dict(zip(names, row, strict=True))
        seen = self._rows(
            "observations", "question = ?", number,
            ("branch", "generation", "step", "successes", "scorable", "unscorable", "replayed", "spread"),
        )  # fmt: skip
        retired = self._rows("retirements", "question = ?", number, ("branch", "generation", "step", "kind"))
        ids = [
            n for (n,) in self._reader.rows("SELECT id FROM trajectories WHERE question = ? ORDER BY seq", (number,))
        ]
        return {
            **about, "columns": _parsed(about["columns"]), "observations": seen, "retirements": retired,
            "trajectories": [self.trajectory(n) for n in ids],
        }  # fmt: skip

    def _rows(self, table: str, where: str, value: int, names: Sequence[str]) -> list[dict[str, Any]]:
        sql = f"SELECT {', '.join(names)} FROM {table} WHERE {where} ORDER BY seq"
        return [dict(zip(names, row, strict=True)) for row in self._reader.rows(sql, (value,))]

    def trajectory(self, number: int) -> dict[str, Any]:
        names = [name for name in schema.EVENTS["trajectory"] if name not in ("digest", "dimension")]
        (row,) = self._reader.rows(f"SELECT {', '.join(names)} FROM trajectory WHERE id = ?", (number,))
        about = dict(zip(names, row, strict=True))
        sql = "SELECT 1 FROM trajectories WHERE id = ?"
        counts = next(self._reader.rows(sql, (number,)), None) is not None
        many = "s" if counts else ""  # views of what counts, or tables with all that ever happened
        replays = self._replays(number, counts)
        evictions = self._rows(f"eviction{many}", "trajectory = ?", number, ("generation", "step", "reason"))
        measured = self._rows(f"measurement{many}", "trajectory = ?", number, ("step", *MEASURED))
        (key, prompt) = next(
            self._reader.rows("SELECT key, prompt FROM question WHERE id = ?", (about["question"],)), (None, None)
        )
        return {
            **about, "key": key, "prompt": prompt, "rewards": json.loads(about["rewards"]), "correct": bool(about["correct"]),
            "counts": counts,
            "source": self._origins[about["origin"]].source_in_words(),
            "model": self._origins[about["origin"]].without_paths().model, **self._tokens(number, about["origin"]),
            "measurements": measured, "replays": replays, "continued": self._continued(number, counts),
            "begins_with": self._begins_with(about), "left": evictions[-1] if evictions else None,
        }  # fmt: skip

    def _replays(self, number: int, counts: bool) -> list[dict[str, Any]]:
        names = ("generation", "step", "moment", "age", "entropy")
        replays = self._rows("replays" if counts else "replay", "trajectory = ?", number, names)
        table = "learnings" if counts else "learning"
        ratios = self._rows(table, "trajectory = ?", number, ("generation", "log_ratio", "ess"))
        learned = {row["generation"]: row for row in ratios}
        unknown = {"log_ratio": None, "ess": None}
        return [{**row, **learned.get(row["generation"], unknown)} for row in replays]

    def _continued(self, number: int, counts: bool) -> list[dict[str, Any]]:
        """List groups that began with a trajectory's first tokens."""
        if "continuation" not in self._reader.tables:
            return []
        names = ("generation", "step", "length", "successes", "scorable")
        return self._rows("continuations" if counts else "continuation", "trajectory = ?", number, names)

    def _begins_with(self, about: dict[str, Any]) -> dict[str, Any] | None:
        """Return the tokens of an earlier trajectory that a completion went on from."""
        if "continuation" not in self._reader.tables:
            return None
        sql = "SELECT trajectory, length FROM continuation WHERE branch = ? AND generation = ? AND question = ?"
        place = (about["branch"], about["generation"], about["question"])
        row = next(self._reader.rows(sql, place), None)
        return None if row is None else {"trajectory": row[0], "length": row[1]}

    def _tokens(self, number: int, origin: int) -> dict[str, Any]:
        try:
            trajectory = self._reader.trajectory(number)
        except ExperienceLogError as error:
            return {"logp_mean": None, "completion": None, "completion_ids": None, "missing": str(error)}
        ids = trajectory.completion_ids.tolist()
        (text,) = self._decode(self._origins[origin], [ids])
        unknown = self._origins[origin].behaviour_logps == UNKNOWN
        logp = None if unknown else float(trajectory.behaviour_logps.mean())
        return {"logp_mean": logp, "completion": text, "completion_ids": ids, "missing": None}


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text) if text is not None else None
    except ValueError:
        return text


def _trajectory_as_text(found: dict[str, Any]) -> None:
    write_fields(
        {
            "trajectory": str(found["id"]), "question": f"q:{found['question']} ({found['key']})",
            "prompt": " ".join(prompt_text(found["prompt"]).split()), **_fields(found),
        }
    )  # fmt: skip
    _history(found)


def _fields(found: dict[str, Any]) -> dict[str, Any]:
    left, begun = found["left"], found["begins_with"]
    where = "" if found["counts"] else ", on a branch that no longer counts"
    came = f"imported from {found['source']}" if found["source"] else f"by {found['model'] or 'an unnamed model'}"
    return {
        "made": f"at step {found['step']} (generation {found['generation']}, branch {found['branch']}{where}) {came}",
        "length": f"{found['length']:,} tokens, ended by {found['finish_reason']}",
        "begins with": None if begun is None else f"the first {begun['length']} tokens of trajectory {begun['trajectory']}",
        "rewards": ", ".join(format_cell(reward) for reward in found["rewards"])
        + ("" if found["correct"] else " (a failure)"),
        **{name: found[name] for name in ("advantage", "quality") if found[name] is not None},
        "log-prob": None if found["logp_mean"] is None else f"{found['logp_mean']:.4f} nats a token on average",
        "entropy": None if found["entropy"] is None else f"{found['entropy']:.4f} nats a token, under the policy of step "
        f"{found['entropy_step']}",
        "left": f"at step {left['step']}: {left['reason']}" if left else "no, it is stored" if found["counts"] else "no",
    }  # fmt: skip


def _history(found: dict[str, Any]) -> None:
    if found["measurements"]:
        write("\nmeasured again")
        known = [name for name in MEASURED if any(row[name] is not None for row in found["measurements"])]
        write_table(found["measurements"], ["step", *known])
    if found["replays"]:
        write("\nreplays")
        write_table(found["replays"], ["generation", "step", "moment", "age", "entropy", "log_ratio", "ess"])
    if found["continued"]:
        write("\ngone on from")
        write_table(found["continued"], ["generation", "step", "length", "successes", "scorable"])
    write("\ncompletion")
    ids = found["completion_ids"]
    if found["completion"] is not None:
        write(textwrap.indent(found["completion"], "  "))
    else:
        text = found["missing"] if ids is None else f"token ids: {' '.join(map(str, ids))}"
        write(textwrap.fill(text, max(40, width()), initial_indent="  ", subsequent_indent="  "))


def _question_as_text(found: dict[str, Any]) -> None:
    write_fields(
        {
            "question": f"q:{found['id']} ({found['key']})", "dataset row": found["dataset_row"],
            "problem type": found["problem_type"],
        }
    )  # fmt: skip
    write("\nprompt")
    write(textwrap.indent(prompt_text(found["prompt"]), "  "))
    write("\ncolumns")
    columns = found["columns"] if isinstance(found["columns"], dict) else {"": found["columns"]}
    for name, value in columns.items():
        write(f"  {name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")
    write("\nobservations")
    seen = [{**row, "replayed": bool(row["replayed"])} for row in found["observations"]]
    write_table(seen, ["step", "generation", "successes", "scorable", "unscorable", "replayed"])
    for row in found["retirements"]:
        write(f"{'left replay' if row['kind'] == 'left' else 'came back'} at step {row['step']}")
    for trajectory in found["trajectories"]:
        write(f"\n--- trajectory {trajectory['id']}")
        write_fields(_fields(trajectory))
        _history(trajectory)


# sql --------------------------------------------------------------------------------------------------------------------

_READING = {
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE,
}  # fmt: skip
_OF_THE_FILE = tuple(
    f"SQLITE_{name}"
    for name in ("CORRUPT", "NOTADB", "IOERR", "FULL", "BUSY", "LOCKED", "NOMEM", "CANTOPEN", "PROTOCOL")
)
"""Errors that say nothing of a statement."""
_TICK = 100_000


def sql(args: argparse.Namespace) -> int:
    if args.json and args.csv:
        raise UsageError("--json and --csv exclude each other.")
    refuse_the_old_order("sql", args.run, args.statement)
    path = log_path(args.run)
    connection = connect(path)
    with contextlib.closing(connection), explained(path, "reading"):
        connection.execute("PRAGMA query_only = 1")
        connection.execute(
            "SELECT 1 FROM pragma_table_info('meta')"
        ).fetchall()  # its first use asks for more than reading
        connection.set_authorizer(_allowed)
        connection.set_progress_handler(lambda: 0, _TICK)  # lets Ctrl-C in
        _write_rows(_executed(connection, args.statement), args)
    return 0


def _allowed(action: int, name: str | None, *_: object) -> int:
    described = action == sqlite3.SQLITE_PRAGMA and name in ("table_info", "table_xinfo", "table_list")
    return sqlite3.SQLITE_OK if action in _READING or described else sqlite3.SQLITE_DENY


def _executed(connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
    try:
        cursor = connection.execute(statement)
    except (sqlite3.Error, sqlite3.Warning) as error:
        if name_of(error).startswith(_OF_THE_FILE):
            raise
        raise _explained(connection, error) from error
    if cursor.description is None:
        raise _explained(connection, "this statement gives no rows")
    return cursor


def _explained(connection: sqlite3.Connection, error: object) -> Exception:
    if str(error) == "interrupted":
        return KeyboardInterrupt()  # type: ignore[return-value]
    if re.search(r"authoriz|readonly|prohibited", str(error)):
        return UsageError(f"only statements that read are run here (SELECT, WITH, VALUES, EXPLAIN): {error}.")
    connection.set_authorizer(None)
    names = {kind: [] for kind in ("table", "view")}  # type: dict[str, list[str]]
    for kind, name in connection.execute(
        "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY 2"
    ):
        names[kind].append(name)
    return UsageError(
        f"{error}.\ntables (all that ever happened): {', '.join(names['table'])}\n"
        f"views (what counts now): {', '.join(names['view'])}\n"
        "columns of one: exgrpo experience sql \"SELECT name FROM pragma_table_info('NAME')\""
    )


def _write_rows(cursor: sqlite3.Cursor, args: argparse.Namespace) -> None:
    names = _distinct([column[0] for column in cursor.description])
    try:
        if args.csv:
            writer = csv.writer(sys.stdout, lineterminator="\n")
            writer.writerow(names)
            is_terminal = sys.stdout.isatty()
            for row in cursor:
                cells = [_shown(value) for value in row]
                writer.writerow([harmless(c) if is_terminal and isinstance(c, str) else c for c in cells])
            return
        rows = [dict(zip(names, map(_shown, row), strict=True)) for row in cursor]
    except sqlite3.Error as error:
        if name_of(error).startswith(_OF_THE_FILE):
            raise
        raise _explained(cursor.connection, error) from error
    if args.json:
        write_json(rows)
    else:
        texts = [{name: str(v) if isinstance(v, int) else v for name, v in row.items()} for row in rows]
        write_table(texts, names)


def _distinct(names: Sequence[str]) -> list[str]:
    """Rename columns of the same name, so that they stay two."""
    found: list[str] = []
    for name in names:
        number, free = 1, name
        while free in found:
            number, free = number + 1, f"{name}:{number + 1}"
        found.append(free)
    return found


def _shown(value: Any) -> Any:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else value
