"""The argument parser of all commands: one spelling, the terminal's width, and helpful errors."""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ..spelling import did_you_mean, spelled

USAGE = 2  # the exit code of wrong usage
PIPED_WIDTH = 80
NARROWEST, WIDEST = 40, 120


def width() -> int:
    """Return the columns of the terminal, or of a pipe; `COLUMNS` overrules both."""
    return max(NARROWEST, shutil.get_terminal_size((PIPED_WIDTH, 24)).columns)


def prose_width() -> int:
    """Return the columns for prose, which is hard to read in wide lines."""
    return min(width(), WIDEST)


class Formatter(argparse.HelpFormatter):
    """A help formatter that fills each paragraph; a block whose first line ends in a colon is kept as it is."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=prose_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = text.strip().split("\n\n")
        return "\n\n".join(
            block
            if block.partition("\n")[0].endswith(":")
            else textwrap.fill(" ".join(block.split()), width, break_on_hyphens=False)
            for block in blocks
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """An argument parser whose options may be written with hyphens or underscores; underscores are shown.

    Args:
        renamed: earlier options and what to write instead, for messages.
        options: of `argparse.ArgumentParser`.
    """

    def __init__(self, *, renamed: Mapping[str, str] | None = None, **options: Any) -> None:
        options.setdefault("formatter_class", Formatter)
        super().__init__(**options)
        self.renamed = dict(renamed or {})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like the base; whatever is left over is this very command's error."""
        arguments = [underscored(argument) for argument in (sys.argv[1:] if args is None else args)]
        if not arguments and self._commands() is not None:
            self.print_help()
            raise SystemExit(0)
        namespace, rest = super().parse_known_args(_positionals_together(self, arguments), namespace)
        if rest:
            self._refuse(rest[0])
        return namespace, rest

    def _commands(self) -> Any:
        found = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return next(found, None)

    def _refuse(self, argument: str) -> NoReturn:
        name = argument.partition("=")[0]
        if not argument.startswith("-"):
            self.error(f"{argument!r} is one argument too many")
        if name in self.renamed:
            self.error(f"{name} is written {self.renamed[name]} now")
        self.error(f"unknown option {name!r}.{did_you_mean(name, self._option_string_actions)}")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        if action.choices is not None and not isinstance(action, argparse._SubParsersAction):
            text = spelled(text, [choice for choice in action.choices if isinstance(choice, str)])
        return argparse.ArgumentParser._get_value(self, action, text)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action, f"there is no {value!r}.{did_you_mean(value, choices)} Choices: {', '.join(choices)}"
            )

    def error(self, message: str) -> NoReturn:
        """Print this command's usage and the message on stderr, and exit with code 2."""
        self.print_usage(sys.stderr)
        end = "" if message[-1] in ".?" else "."
        self.exit(USAGE, f"{self.prog}: error: {message}{end} See {self.prog} --help.\n")


def underscored(argument: str) -> str:
    """Write an option's name with underscores; leave anything else as it is."""
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _positionals_together(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Move options first: an optional positional before an option would count as missing."""
    if any(isinstance(action, argparse._SubParsersAction) for action in parser._actions) or "--" in arguments:
        return list(arguments)
    takes = {name: action.nargs for name, action in parser._option_string_actions.items()}  # 0, or None for one value
    first, rest = [], list[str]()
    words = iter(arguments)
    for word in words:
        if word in takes and takes[word] in (0, None):
            first += [word, *([] if takes[word] == 0 else [w for w in [next(words, None)] if w is not None])]
        else:
            (first if word.partition("=")[0] in takes and "=" in word else rest).append(word)
    return first + rest


def run_piped(command: Callable[[], int]) -> int:
    """Run a command whose output `| head` may cut short; return its exit code."""
    import os

    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
