"""`exgrpo train`: from a recipe to a trained model.

Also the module to launch on several processes:

    torchrun --nproc_per_node 2 -m exgrpo.cli.train --config recipes/rescue.yaml

This module imports nothing heavy, so that help and mistakes in a recipe's form take no time; the work is in `training`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..yaml_file import read_yaml
from .environment import require
from .main import UsageError
from .parser import run_piped

USAGE = """\
usage: exgrpo train --config RECIPE.yaml [--OPTION VALUE ...]

Train with GRPO and experience replay. A recipe is a YAML mapping of options, with an optional mapping `env` of environment
variables. Options on the command line override the recipe's; hyphens and underscores are equivalent.

On several processes: torchrun --nproc_per_node N -m exgrpo.cli.train --config RECIPE.yaml (or accelerate launch -m ...)
"""


def run(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    if (place := next((i for i, word in enumerate(argv) if word in ("-h", "--help")), None)) is not None:
        return run_piped(lambda: show_help(argv[place + 1 :]))
    path, rest = split_config(argv)
    recipe = read_recipe(path) if path else {}
    require("trl", "trl", "Training")
    require("datasets", "trl", "Training")
    os.environ.update({name: str(value) for name, value in recipe.pop("env", {}).items()})
    from .training import train

    train(recipe, rest, argv)
    return 0


def show_help(topics: Sequence[str]) -> int:
    """Write the options that most runs set; with topics, those of a group, a single one, or all."""
    from .fields import help_text

    sys.stdout.write(help_text(USAGE, topics))
    return 0


def split_config(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of `--config`, and the arguments without it."""
    path, rest, arguments = None, [], iter(argv)
    for argument in arguments:
        if argument == "--config":
            path = next(arguments, None)
            if path is None:
                raise UsageError("--config needs the path of a recipe.")
        elif argument.startswith("--config="):
            path = argument.removeprefix("--config=")
        else:
            rest.append(argument)
    if path is None and not rest:
        raise UsageError("exgrpo train needs options, for example --config RECIPE.yaml; see exgrpo train --help.")
    return path, rest


def read_recipe(path: str) -> dict[str, Any]:
    """Return the options of a YAML file as they stand there; names may have hyphens."""
    if not Path(path).is_file():
        raise UsageError(f"there is no recipe {path!r}.")
    recipe = read_yaml(Path(path), "the recipe")
    if not isinstance(recipe, dict) or not all(isinstance(name, str) for name in recipe):
        raise UsageError(f"the recipe {path} must be a mapping of options, but is a {type(recipe).__name__}.")
    if not isinstance(recipe.get("env", {}), Mapping):
        raise UsageError(f"`env` in the recipe {path} must be a mapping of environment variables.")
    options = {name.replace("-", "_"): value for name, value in recipe.items()}
    if len(options) < len(recipe):
        twice = next(name for name in options if [n.replace("-", "_") for n in recipe].count(name) > 1)
        raise UsageError(f"the recipe {path}: {twice!r} occurs twice, with hyphens and with underscores.")
    return options


if __name__ == "__main__":
    from exgrpo.cli.main import main

    sys.exit(main(["train", *sys.argv[1:]]))
