"""The console script `exgrpo`. Imports nothing heavy: each command imports what it needs, when it runs.

Exit codes: 0 done; 1 it failed, with the reason on stderr; 2 wrong usage, or options or data that cannot work; 130 ended
by Ctrl-C.
"""

import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence

from .. import __version__
from ..errors import ConfigurationError, DatasetError, ExGRPOError
from ..spelling import did_you_mean
from .parser import USAGE

COMMANDS = {
    "train": ("exgrpo.cli.train", "train a model with experience replay, from a recipe"),
    "demo": ("exgrpo.lab.demo", "compare presets on a built-in tiny policy, in minutes on a CPU"),
    "lab": ("exgrpo.lab.commands", "run studies of presets on tiny policies, with intervals"),
    "compare": ("exgrpo.lab.compare", "compare presets on your recipe, with seeds and intervals"),
    "evaluate": ("exgrpo.cli.evaluate", "measure models on benchmarks or your own questions"),
    "view": ("exgrpo.cli.view", "inspect a run in a browser, or save it as one file"),
    "experience": ("exgrpo.cli.experience", "inspect, query, move and repair stored experience"),
    "rewards": ("exgrpo.cli.rewards", "check verifiers against gold answers and stored experience"),
    "data": ("exgrpo.cli.data", "convert questions to the layout that verl reads"),
    "presets": ("exgrpo.cli.presets_command", "list the presets, or get advice on which to take"),
    "explain": ("exgrpo.cli.explain", "show what a preset would replay in one step, before training"),
    "bench": ("exgrpo.lab.bench", "measure what replay costs on this machine"),
    "env": ("exgrpo.cli.environment", "print versions and devices, to paste into an issue"),
}
FAILED, INTERRUPTED = 1, 130


class UsageError(ConfigurationError):
    """The command line or the recipe does not say what can be done; exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("EXGRPO_DEBUG", "") not in ("", "0")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)  # as `python -m exgrpo` does: for dotted paths to the user's own functions
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal has no sign for is escaped, and no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        if arguments[:1] == ["--debug"]:
            debug = bool(arguments.pop(0))
        if not arguments or arguments[0] in ("-h", "--help"):
            sys.stdout.write(help_text())
            return 0
        if arguments[0] == "--version":
            sys.stdout.write(f"exgrpo {__version__}\n")
            return 0
        command, *arguments = arguments
        if command not in COMMANDS:
            what = "option" if command.startswith("-") else "command"
            raise UsageError(
                f"error: there is no {what} {command!r}.{did_you_mean(command, COMMANDS)} See exgrpo --help."
            )
        return importlib.import_module(COMMANDS[command][0]).run(arguments)
    except SystemExit as ended:  # argparse, after --help or a mistake
        return ended.code if isinstance(ended.code, int) else FAILED
    except KeyboardInterrupt as interrupted:
        return _say(str(interrupted) or "interrupted", INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a message for users instead of a traceback
        return report(error, debug)


def report(error: Exception, debug: bool) -> int:
    """Write what went wrong to stderr; returns the exit code."""
    if debug:
        traceback.print_exception(error)
        sys.stderr.write(getattr(error, "details", ""))
    if isinstance(error, (ConfigurationError, DatasetError)):
        return _say(f"{error}", USAGE)
    if isinstance(error, ExGRPOError):
        return _say(f"{error}", FAILED)
    hint = "" if debug else "\nThe traceback: run `exgrpo --debug ...`, or set EXGRPO_DEBUG=1."
    return _say(f"{type(error).__name__}: {error}{hint}", FAILED)


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"exgrpo: {message}\n")
    return code


def help_text() -> str:
    """Return help on the commands, within 80 columns."""
    commands = "\n".join(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())
    return f"""\
usage: exgrpo [--debug] COMMAND ...

Experience replay for RL of reasoning models, on TRL and verl.

commands:
{commands}

options:
  --debug     show tracebacks (also: EXGRPO_DEBUG=1)
  --version   print the version

Run `exgrpo COMMAND --help` for its options.
"""


if __name__ == "__main__":
    sys.exit(main())
