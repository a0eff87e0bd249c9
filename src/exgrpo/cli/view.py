"""`exgrpo view`: the page of a run in a browser, live while it trains; or one file with a part of it."""

import argparse
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from .main import UsageError
from .numbers import at_least
from .parser import Parser

LOOPBACK = "127.0.0.1"
QUESTIONS = 200
MEGABYTES = 10.0


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    args = parser().parse_args(argv)
    if args.html is not None:
        return _write(args)
    return _serve(args)


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="exgrpo view",
        description="Inspect a run (its curves, its questions and their lives, its steps) or an evaluation (its results, its "
        "questions and their completions). Serves a page on this machine and opens it in a browser; the page follows a run "
        "that still trains. With --html, write one file instead, to mail or attach.",
        epilog="examples:\n  exgrpo view outputs/run-1\n  exgrpo view outputs/run-1 outputs/run-2\n"
        "  exgrpo view outputs/run-1 --html run-1.html\n  exgrpo view exgrpo-evaluation",
    )
    add = top.add_argument
    add(
        "runs", nargs="+", metavar="RUN",
        help="an output_dir, an experience.db or an exported folder; two are laid over each other. Or the output_dir or "
            "evaluation.db of exgrpo evaluate",
    )  # fmt: skip
    add("--html", type=Path, metavar="FILE", help="write a page with a part of the run to this file")
    add("--questions", type=at_least(0), default=QUESTIONS, metavar="N",
        help="questions in that file: the hardest, the most replayed, the last retired, some at random; of an evaluation "
            "those that models or verifiers differ on, that none solved, some at random (default: %(default)s)")  # fmt: skip
    add(
        "--megabytes",
        type=float,
        default=MEGABYTES,
        metavar="MB",
        help="largest size of that file in MB (default: %(default)g)",
    )
    add("--port", type=int, metavar="PORT", help="port to listen on (default: the first free one from 8753)")
    add(
        "--host", default=LOOPBACK, metavar="HOST",
        help="address to listen on; with anything but %(default)s, others on your network can read the run",
    )  # fmt: skip
    add("--no_browser", action="store_true", help="print the address, open no browser")
    return top


def _opened(args: argparse.Namespace) -> list:
    from ..view.evaluation import evaluation_in, open_evaluations
    from ..view.run import Run

    paths = [Path(path).expanduser() for path in args.runs]
    files = [evaluation_in(path) for path in paths]
    if any(files):
        others = [str(path) for path, file in zip(paths, files, strict=True) if file is None]
        if others:
            raise UsageError(f"{others[0]} is no evaluation, and the others are: look at runs and evaluations apart.")
        return open_evaluations([file for file in files if file is not None])
    names = [path.resolve().name if path.is_dir() else path.resolve().parent.name for path in paths]
    if len(set(names)) < len(names):
        names = [f"{name} ({number + 1})" for number, name in enumerate(names)]
    runs = []
    for path, name in zip(paths, names, strict=True):
        if sys.stderr.isatty():  # a long log takes seconds
            sys.stderr.write(f"reading {path} ...\n")
        runs.append(Run(path, name))
    return runs


def _write(args: argparse.Namespace) -> int:
    from ..view.page import write_page

    if not args.megabytes > 0:
        raise UsageError(f"--megabytes must be above 0, but is {args.megabytes:g}.")
    if args.html.is_dir() or not args.html.resolve().parent.is_dir():
        raise UsageError(f"--html needs the path of a file in a folder that exists, but is {str(args.html)!r}.")
    written = write_page(_opened(args), args.html, args.questions, round(args.megabytes * 1e6))
    print(f"wrote {args.html}: {written}")
    return 0


def _serve(args: argparse.Namespace) -> int:
    from ..view.server import ViewServer

    if args.port is not None and not 0 <= args.port < 65_536:
        raise UsageError(f"--port must be in 0..65535, but is {args.port}.")
    runs = _opened(args)
    server = ViewServer(runs, args.host, args.port)
    if args.host not in (LOOPBACK, "localhost", "::1"):
        sys.stderr.write(
            f"exgrpo: listening on {args.host}: whoever reaches this machine and learns the address reads prompts and "
            "completions, unencrypted. An SSH tunnel to 127.0.0.1 needs no --host.\n"
        )
    print(f"{server.address}\nCtrl-C ends it.", flush=True)
    if not args.no_browser:
        threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
    try:
        server.serve_forever(0.2)
    except KeyboardInterrupt:
        print("ended")
    finally:
        server.server_close()
        for one in runs:
            one.close()
    return 0
