"""`exgrpo experience export`, `import`, `merge`, `prune`, `verify` and `fork`: experience moved and mended."""

import argparse
import shlex
from pathlib import Path

from ...archive import maintenance
from ...archive.dataset_card import CARD, metadata_of_card
from ...archive.decoding import Decoder
from ...archive.layout import TRAJECTORIES
from ...archive.parquet import export as export_to
from ...errors import ExperienceLogError
from ...log import LogReader
from ..main import FAILED, UsageError
from . import FILE_NAME, log_path, refuse_the_old_order
from .output import counted, gathered_as_json, listed, plain, quantity, write, write_gathered, write_json


def export(args: argparse.Namespace) -> int:
    refuse_the_old_order("export", args.run, args.folder)
    with LogReader(log_path(args.run)) as reader:
        position = None if args.step is None else reader.position_at_step(args.step)
        decode = Decoder(reader)
        texts = decode if not args.no_text and decode.knows_any() else None
        report = export_to(reader, args.folder, position, args.logp_dtype, texts, args.skip_damaged)
    if args.json:
        write_json(report)
        return 0
    write(
        f"{counted(report.trajectories, 'trajectory', 'trajectories')} of {counted(report.questions, 'question')} that were "
        f"seen, {counted(report.tokens, 'token')}, {quantity(report.bytes)} in {report.folder}."
    )
    if report.unreadable:
        write(f"Left out, damaged or pruned: {listed(report.unreadable)}.")
    write(
        f"Look at it: datasets.load_dataset({str(report.folder)!r}); train on from it: experience_from={str(report.folder)!r}."
    )
    return 0


def import_(args: argparse.Namespace) -> int:
    if _is_export(args.run) and not _is_export(args.folder):
        raise UsageError(
            f"the run comes first: {shlex.join(['exgrpo', 'experience', 'import', args.folder, args.run])}"
        )
    if not _is_meant_as_export(args.folder):
        from .import_data import import_data

        return import_data(args)
    if given := [word for word in (*args.of_train, *_of_data(args)) if word.startswith("--")]:
        raise UsageError(f"{given[0]} has no effect on an exported folder, which is taken over as it is. Remove it.")
    return _gathered(maintenance.import_folder(args.folder, log_path(args.run, must_exist=False)), args)


def _of_data(args: argparse.Namespace) -> list[str]:
    """List given options that only completions take."""
    names = ("model", "config", "completion_column", "no_end_token", "no_accuracy", "dry_run")
    return [f"--{name}" for name in names if getattr(args, name)] + ["--log_probs"] * (args.log_probs != "forward")


def _is_export(folder: str) -> bool:
    return metadata_of_card(Path(folder).expanduser() / CARD) is not None


def _is_meant_as_export(folder: str) -> bool:
    """Return whether a folder is an export, or an incomplete one: unfinished, or its card without metadata."""
    return _is_export(folder) or (Path(folder).expanduser() / TRAJECTORIES).is_dir()


def merge(args: argparse.Namespace) -> int:
    into = Path(args.into).expanduser()
    into = into if into.suffix == ".db" else into / FILE_NAME
    return _gathered(maintenance.merge([log_path(run) for run in args.runs], into), args)


def _gathered(report: maintenance.Gathered, args: argparse.Namespace) -> int:
    if args.json:
        write_json(gathered_as_json(report))
    else:
        write_gathered(report)
    return 0


def prune(args: argparse.Namespace) -> int:
    folders = [Path(folder).expanduser() for folder in args.checkpoints]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise UsageError(f"--checkpoints: there is no folder {missing[0]}.")
    report = maintenance.prune(log_path(args.run), args.before_step, args.dry_run, folders, args.without_checkpoints)
    if args.json:
        write_json({**plain(report), "bytes_freed": report.bytes_before - report.bytes_after, "dry_run": args.dry_run})
        return 0
    write(f"{'Would go' if args.dry_run else 'Gone'}:")
    write(f"  branches that nothing continues: {listed(report.branches)}")
    write(f"  events that nothing sees: {report.events:,}, among them {report.trajectories:,} trajectories")
    write(f"  tokens of trajectories that left before step {report.before_step}: {report.tokens:,}")
    write(f"Can be resumed from as before: {listed(report.checkpoints)}.")
    if not args.dry_run:
        freed = max(0, report.bytes_before - report.bytes_after)
        write(f"{quantity(freed)} freed; the file has {quantity(report.bytes_after)}.")
    if report.note:
        write(f"Warning: {report.note}")
    return 0


def verify(args: argparse.Namespace) -> int:
    path = log_path(args.run)
    found = maintenance.verify(path)
    if args.json:
        write_json({"path": path, "sound": not found, "findings": found})
    elif not found:
        write(f"{path}: no damage found.")
    else:
        for finding in found:
            write(str(finding))
        write(
            f"{path}: {counted(len(found), 'finding')}. Nothing was changed. `exgrpo experience export "
            f"{shlex.quote(args.run)} DIR --skip_damaged` saves what can still be read."
        )
    return FAILED if found else 0


def fork(args: argparse.Namespace) -> int:
    path = log_path(args.run)
    try:
        report = maintenance.fork(path, args.step)
    except ExperienceLogError as error:
        if "holds nothing at or before" in str(error):
            raise UsageError(str(error)) from error
        raise
    if args.json:
        write_json(report)
        return 0
    write(
        f"{path}: branch {report.branch} continues branch {report.parent} from step {report.step} on, with "
        f"{counted(report.trajectories, 'trajectory', 'trajectories')}. What came later stays on its branch."
    )
    return 0
