"""`exgrpo experience import` of completions that others wrote: demonstrations, teacher traces, rollouts.

What they become is what a run with the same recipe would have stored, so a trainer is made of it, and never trains.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...archive.merge import import_source
from ...errors import ConfigurationError, DatasetError
from ...log import LogReader, Provenance
from ...tasks.local_files import is_data
from ..environment import require
from ..main import FAILED, UsageError
from ..train import read_recipe
from . import FILE_NAME, log_path
from .answered import Answered, read_answered
from .output import counted, gathered_as_json, write, write_gathered, write_json

SHOWN, MOST_NAMED = 5, 20
"""Rows that are named for each reason why they are left out, and as wrong ones."""
NOT_OF_AN_IMPORT = (
    "generation_batch_size", "steps_per_generation", "gradient_accumulation_steps", "experience_from", "keep_retired",
    "resume_from_checkpoint", "deepspeed", "fsdp", "fsdp_config", "accelerator_config", "use_vllm", "push_to_hub", "run_name",
    "max_generated_tokens", "num_iterations", "eval_strategy", "load_best_model_at_end", "env",
)  # fmt: skip
"""Options of a run that do not affect an import, and may not suit one process that does not train."""


def import_data(args: argparse.Namespace) -> int:
    """Run the command where DATA is no exported folder."""
    require("trl", "trl", "Importing completions")
    require("datasets", "trl", "Importing completions")
    into = log_path(args.run, must_exist=False)
    if is_data(args.run):
        raise UsageError(
            f"the run comes first: {shlex.join(['exgrpo', 'experience', 'import', args.folder, args.run])}"
        )
    place = Path(args.folder).expanduser()
    if place.suffix == ".db" or (place / FILE_NAME).is_file():
        raise UsageError(
            f"{args.folder} is a run's log. To bring logs together: exgrpo experience merge RUN ... --into OUT; to start from "
            "it: experience_from."
        )
    from ...trl.demonstrations import Demonstrations
    from ...trl.quiet import quiet_host
    from ..training import check_inputs, make_trainer

    with tempfile.TemporaryDirectory(prefix="exgrpo-") as folder, quiet_host():
        settings, rows = settings_of(args, folder)
        data = read_answered(settings, args.folder, args.completion_column)
        if data.bad and not settings.script.drop_incomplete:
            raise DatasetError(_complaint(data))
        check_inputs(settings, data.inputs)
        trainer = make_trainer(settings, data.inputs)
        made = Demonstrations(trainer, data.demonstrations, not args.no_end_token, not args.no_accuracy)
        context = made.context
        _refuse_another(into, context.provenance())
        report = _report(data, made)
        gathered = None
        if made.drafts and not args.dry_run:
            source = made.source(data.name, args.log_probs == "forward", rows, sys.stderr.isatty())
            gathered = import_source(source, context.tokenizer(), into)
    if args.json:
        write_json({**report, "dry_run": args.dry_run, "log": None if gathered is None else gathered_as_json(gathered)})
    else:
        _write(report, args, into)
        if gathered is not None:
            write_gathered(gathered)
    return 0 if made.drafts else FAILED


# Options ----------------------------------------------------------------------------------------------------------------


def settings_of(args: argparse.Namespace, folder: str) -> tuple[Any, int]:
    """Return the run's settings for one process that does not train, and the batch size of forwards."""
    from ..training import parse

    recipe = read_recipe(args.config) if args.config else {}
    words = _by_option(args.of_train)
    if args.model is not None:
        if "model_name_or_path" in words:
            raise UsageError("--model and --model_name_or_path are the same option. Give one of them.")
        words["model_name_or_path"] = [args.model]
    for name in NOT_OF_AN_IMPORT:
        recipe.pop(name, None)
        words.pop(name, None)
    size = _number(words, recipe, "num_generations", 8)
    rows = _number(words, recipe, "per_device_train_batch_size", 8)
    ours: dict[str, Any] = {
        "output_dir": folder, "per_device_train_batch_size": size, "gradient_accumulation_steps": 1, "report_to": "none",
        "experience_log": "none", "save_strategy": "no", "disable_tqdm": True, "bf16": False, "fp16": False,
        "use_cpu": _has_no_accelerator(),
    }  # fmt: skip
    for name in ours:
        words.pop(name, None)
    argv = [word for name, values in words.items() for word in (f"--{name}", *values)]
    settings = parse({**recipe, **ours}, argv)
    if not settings.args.replay.active:
        raise ConfigurationError(
            f"preset={settings.args.preset!r} replays nothing, so that there is nothing to import for. Choose one with replay."
        )
    return settings, rows


def _by_option(words: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.removeprefix("--").partition("=")
            found[name] = [value] if equals else []
        else:
            found[name].append(word)
    return found


def _number(words: Mapping[str, list[str]], recipe: Mapping[str, Any], name: str, default: int) -> int:
    given = words[name][0] if words.get(name) else recipe.get(name, default)
    if not str(given).isdecimal() or int(given) < 1:
        raise UsageError(f"{name} must be a whole number of at least 1, but is {given!r}.")
    return int(given)


def _has_no_accelerator() -> bool:
    import torch

    return not torch.accelerator.is_available()


# What is said -----------------------------------------------------------------------------------------------------------


def _complaint(data: Answered) -> str:
    """Describe the invalid rows, some of them by name."""
    more = len(data.bad) - MOST_NAMED
    named = "\n".join(f"  {bad}" for bad in data.bad[:MOST_NAMED]) + (f"\n  and {more:,} more" if more > 0 else "")
    return (
        f"{data.name}: {len(data.bad):,} of {data.rows:,} rows are invalid. Fix them, or leave them out with "
        f"--drop_incomplete:\n{named}"
    )


def _refuse_another(into: Path, origin: Provenance) -> None:
    """Refuse a log in which nothing of this could be used."""
    if not into.is_file():
        return
    with LogReader(into) as reader:
        position = reader.position()
        differ = [] if position is None else reader.origin_of(position.branch).differences(origin)
    if differ := [what for what in differ if what != "model"]:
        raise ConfigurationError(
            f"{into} was written with another {' and another '.join(differ)}: nothing that is imported could be used there. "
            "Import with the options of that run (--config), or into a new log."
        )


def _report(data: Answered, made: Any) -> dict[str, Any]:
    left_out: dict[str, list[str]] = {**data.left_out, **made.left_out}
    if data.bad:
        left_out["not as they must be"] = data.bad
    return {
        "data": data.name, "rows": data.rows, **made.counts(), "longest_left_out": made.longest or None,
        "left_out": {reason: {"count": len(places), "rows": places} for reason, places in left_out.items()},
    }  # fmt: skip


def _write(report: Mapping[str, Any], args: argparse.Namespace, into: Path) -> None:
    of = (
        f"{counted(report['trajectories'], 'trajectory', 'trajectories')} of {counted(report['questions'], 'question')}"
    )
    beside = [f"{report[name]:,} {text}" for name, text in (("failures", "wrong"), ("cut", "cut")) if report[name]]
    beside.append(counted(report["tokens"], "token"))
    verb = "would be" if args.dry_run else "can be"
    write(
        f"{report['data']}, {counted(report['rows'], 'row')}: {of} ({', '.join(beside)}) {verb} imported into {into}."
    )
    for reason, found in report["left_out"].items():
        rows = list(dict.fromkeys(place.partition(": ")[0].rpartition(", row ")[2] for place in found["rows"]))
        more = ", ..." if len(rows) > SHOWN else ""
        write(f"Left out: {found['count']:,} {reason} (row{'s' * (len(rows) > 1)} {', '.join(rows[:SHOWN])}{more}).")
    if report["longest_left_out"]:
        write(
            f"The longest has {counted(report['longest_left_out'], 'token')}: set --max_completion_length, as in the run."
        )
    known, unknown = report["with_accuracy"], report["questions"] - report["with_accuracy"]
    if known:
        write(f"{counted(known, 'question')} with right and wrong completions: their accuracy is that of these rows.")
    if unknown > 0:
        write(
            f"{counted(unknown, 'question')} of unknown accuracy: rescue can use them at once, replay after their first fresh "
            "group."
        )
    if not report["trajectories"]:
        write("Nothing is left to import; the log is as it was.")
