"""`exgrpo experience`: look at stored experience, move it, mend it.

The parser; the commands are in the other modules of this folder.

Imports nothing heavy, so that help takes no time.
"""

import argparse
import importlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..main import UsageError
from ..numbers import at_least
from ..parser import Parser, run_piped

FILE_NAME = "experience.db"
LOOK, QUERY, MOVE = (f"{__name__}.{name}" for name in ("look", "query", "move"))
SORTS = ("accuracy", "replays", "stored", "groups", "completions")
ROWS = 20  # of a table, where not told otherwise
RUN = "an output_dir that holds experience.db, or the file itself (default: the current folder)"


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    of_train: list[str] = []
    if argv[:1] == ["import"]:
        from ..fields import split_off

        argv, of_train = split_off(argv)
    args = parser().parse_args(argv, argparse.Namespace(of_train=of_train))
    module, function = args.does
    return run_piped(lambda: getattr(importlib.import_module(module), function)(args))


def refuse_the_old_order(command: str, run: str, other: str) -> None:
    """Explain the new order to those who still put the run last, as until 0.2, where that can be told."""
    if not _path_of(run).is_file() and _path_of(other).is_file():
        words = shlex.join(["exgrpo", "experience", command, other, run])
        raise UsageError(f"the run comes first: {words}")


def _path_of(run: str) -> Path:
    try:
        path = Path(run).expanduser()
        if path.is_dir() or (not path.exists() and not path.suffix):
            from ...log import log_in

            return log_in(path)
    except (OSError, RuntimeError, ValueError) as error:  # too long, links in a circle, nobody's home
        raise UsageError(f"{run[:200]} is not a usable path ({error}). Give {RUN}.") from error
    return path


def log_path(run: str, must_exist: bool = True) -> Path:
    """Return the log of a run: that in its folder, or the file itself."""
    path = _path_of(run)
    if must_exist and not path.is_file():
        raise UsageError(f"there is no experience log {path}. Give {RUN}.")
    return path


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="exgrpo experience",
        description="Inspect, move and repair stored experience. RUN is " + RUN + ".",
        epilog="Reading works while a run writes. Every command takes --json, and its --help has an example.",
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for add in (_stats, _questions, _show, _sql, _export, _import, _merge, _prune, _verify, _fork):
        add(commands)
    return top


Commands = Any  # a private class of argparse


def _command(
    commands: Commands, name: str, does: tuple[str, str], text: str, example: str, more: str = ""
) -> Callable[..., argparse.Action]:
    one = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.\n{more}".strip(),
        epilog=f"example:\n  exgrpo experience {example}",
    )
    one.set_defaults(does=does)
    one.add_argument("--json", action="store_true", help="print JSON")
    return one.add_argument


def _run(argument: Callable[..., argparse.Action]) -> None:
    argument("run", nargs="?", default=".", metavar="RUN", help=RUN)


def _stats(commands: Commands) -> None:
    argument = _command(commands, "stats", (LOOK, "stats"), "summarise what a log holds", "stats outputs/run-1")
    _run(argument)


def _questions(commands: Commands) -> None:
    argument = _command(
        commands, "questions", (LOOK, "questions"), "list the questions seen, with accuracy and state",
        "questions outputs/run-1 --unsolved --sort groups --limit 20",
    )  # fmt: skip
    _run(argument)
    argument("--unsolved", action="store_true", help="only those without a right fresh completion so far")
    argument("--retired", action="store_true", help="only retired ones")
    argument("--stored", action="store_true", help="only those with stored trajectories")
    argument("--sort", choices=SORTS, help="accuracy: hardest first; the others: highest first (default: by number)")
    argument(
        "--limit",
        type=at_least(0),
        metavar="N",
        help=f"at most N of them, 0 for all (default: {ROWS}; with --json all)",
    )


def _show(commands: Commands) -> None:
    argument = _command(
        commands, "show", (QUERY, "show"), "show everything known about a trajectory or a question",
        "show outputs/run-1 q:12",
    )  # fmt: skip
    _run(argument)
    argument("id", metavar="ID", help="a trajectory's id; for a question, q:NUMBER or the first characters of its key")


def _sql(commands: Commands) -> None:
    argument = _command(
        commands, "sql", (QUERY, "sql"), "run a read-only SQL statement",
        'sql outputs/run-1 "SELECT reason, count(*) FROM evictions GROUP BY reason"',
        "Plural names (trajectories, observations, replays, ...) are views of what counts now; singular ones are tables of "
        "all\nthat ever happened, dead branches included.",
    )  # fmt: skip
    _run(argument)
    argument("statement", metavar="STATEMENT", help="SELECT, WITH, VALUES or EXPLAIN; nothing is ever written")
    argument("--csv", action="store_true", help="print CSV")


def _export(commands: Commands) -> None:
    argument = _command(
        commands, "export", (MOVE, "export"), "export a log to a folder that datasets.load_dataset reads",
        "export outputs/run-1 my-experience", "Parquet files and a card; `import` and `experience_from` read it back.",
    )  # fmt: skip
    _run(argument)
    argument("folder", metavar="DIR", help="a new or empty folder")
    argument("--step", type=int, metavar="N", help="export the state at optimizer step N (default: the end)")
    argument(
        "--logp_dtype", choices=("float32", "float16"), default="float32",
        help="float16 halves the log-probs and rounds those kept in float32 by up to 0.05 %% (default: %(default)s)",
    )  # fmt: skip
    argument("--no_text", action="store_true", help="leave out completions as text")
    argument("--skip_damaged", action="store_true", help="leave out trajectories whose tokens are damaged")


def _import(commands: Commands) -> None:
    argument = _command(
        commands, "import", (MOVE, "import_"), "import an exported folder, or demonstrations from a file",
        "import bank demonstrations.jsonl --model Qwen/Qwen2.5-Math-1.5B --reward_funcs math_reward",
        "An existing log gets a new branch that continues its newest one; what does not match it is reported and left out.\n\n"
        "DATA other than an exported folder are demonstrations, teacher traces or rollouts: a file (.jsonl, .json, .csv, also "
        "with .gz, .parquet), a folder or pattern of such, or a data set of the hub. A row holds a question, a completion or "
        "several, and an answer. They become trajectories as if the model had written them: under the run's prompts, scored by "
        "its reward. Take the run's recipe (--config), or give its options as to `exgrpo train`, behind DATA: columns, "
        "prompt_template, system_prompt, conversational, reward_funcs, max_completion_length. With dataset_name or task the "
        "questions and answers are those of the run, and DATA's are matched by their prompts; else DATA bring their own.",
    )  # fmt: skip
    argument("run", nargs="?", default=".", metavar="RUN", help=RUN + "; a log that is not there yet is made")
    argument("folder", metavar="DATA", help="a folder made by `exgrpo experience export`, or completions")
    argument("--model", metavar="M", help="model_name_or_path of the run that will start from them")
    argument("--config", metavar="RECIPE", help="recipe of that run; options on the command line override it")
    argument("--completion_column", metavar="C", help="column of the completions (default: found by its name)")
    argument(
        "--log_probs", choices=("forward", "none"), default="forward",
        help="forward: compute them with the model; none: leave them unknown, and no run starts with options that need "
            "them (default: %(default)s)",
    )  # fmt: skip
    argument(
        "--no_end_token", action="store_true",
        help="do not add the end token; completions without it count as cut",
    )  # fmt: skip
    argument(
        "--no_accuracy", action="store_true",
        help="leave accuracies unknown, even where right and wrong completions of a question are present",
    )  # fmt: skip
    argument("--dry_run", action="store_true", help="print what would be imported, and stop")


def _merge(commands: Commands) -> None:
    argument = _command(
        commands, "merge", (MOVE, "merge"), "merge several logs into a new one",
        "merge outputs/run-1 outputs/run-2 --into outputs/both/experience.db",
        "Logs are taken over in turn, as by experience_from. If two know a question, the later one's accuracy "
            "counts.",
    )  # fmt: skip
    argument("runs", nargs="+", metavar="RUN", help="output_dirs that hold experience.db, or the files themselves")
    argument("--into", required=True, metavar="OUT", help="the new log, or its folder")


def _prune(commands: Commands) -> None:
    argument = _command(
        commands, "prune", (MOVE, "prune"), "delete what is no longer needed, and shrink the file",
        "prune outputs/run-1 --dry_run",
        "Deletes branches that neither the newest one nor a checkpoint beside the log continues, and token ids and "
            "log-probs of\ntrajectories that left long ago. Every checkpoint beside the log can still be resumed.",
    )  # fmt: skip
    _run(argument)
    argument(
        "--before_step", type=int, metavar="N",
        help="delete tokens of what left before step N (default: the step of the earliest checkpoint beside the log; "
            "without one, all that left)",
    )  # fmt: skip
    argument(
        "--checkpoints", action="append", default=[], metavar="DIR", help="another folder with checkpoints of this log"
    )
    argument(
        "--without_checkpoints",
        action="store_true",
        help="proceed even if checkpoints were saved with the log and none is found",
    )
    argument("--dry_run", action="store_true", help="print what would be deleted, and stop")


def _verify(commands: Commands) -> None:
    argument = _command(
        commands, "verify", (MOVE, "verify"), "check a log for damage", "verify outputs/run-1",
        "Exit code 0: no damage; 1: damage found.",
    )  # fmt: skip
    _run(argument)


def _fork(commands: Commands) -> None:
    argument = _command(
        commands, "fork", (MOVE, "fork"), "return to the experience of an earlier step, on a new branch",
        "fork outputs/run-1 --step 500",
        "Afterwards stats, export and experience_from see the experience of that step. Nothing is deleted.",
    )  # fmt: skip
    _run(argument)
    argument(
        "--step", type=int, required=True, metavar="N", help="take the last commit at or before this optimizer step"
    )
