"""`exgrpo train`: from a recipe to a trained model. Also the module to launch on several processes:

    torchrun --nproc_per_node 2 -m exgrpo.cli.train --config recipes/rescue.yaml

This module imports nothing heavy, so that help and mistakes in a recipe's form take no time; the work is in `training`.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .environment import require
from .main import UsageError

USAGE = """\
usage: exgrpo train --config RECIPE.yaml [--OPTION VALUE ...]

Train with GRPO and experience replay. A recipe is a YAML mapping of the options below, and may hold a mapping `env` of
environment variables. Options on the command line go over those of the recipe.
On several processes: torchrun --nproc_per_node N -m exgrpo.cli.train --config RECIPE.yaml (or accelerate launch -m ...)
"""


def run(argv: Sequence[str]) -> int:
    """The command; returns the exit code."""
    if {"-h", "--help"} & set(argv):
        from .reference import help_text

        sys.stdout.write(USAGE + "\n" + help_text())
        return 0
    path, rest = split_config(argv)
    recipe = read_recipe(path) if path else {}
    require("trl", "trl", "Training")
    require("datasets", "trl", "Training")
    os.environ.update({name: str(value) for name, value in recipe.pop("env", {}).items()})
    from .training import train

    train(recipe, rest, argv)
    return 0


def split_config(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The value of `--config`, and the arguments without it."""
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
    """The options of a YAML file, as they stand there."""
    import yaml

    if not Path(path).is_file():
        raise UsageError(f"there is no recipe {path!r}.")
    try:
        recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe {path} is not valid YAML: {error}") from error
    if not isinstance(recipe, dict) or not all(isinstance(name, str) for name in recipe):
        raise UsageError(f"the recipe {path} must be a mapping of options, but is a {type(recipe).__name__}.")
    if not isinstance(recipe.get("env", {}), Mapping):
        raise UsageError(f"`env` in the recipe {path} must be a mapping of environment variables.")
    return recipe


if __name__ == "__main__":
    from exgrpo.cli.main import main

    sys.exit(main(["train", *sys.argv[1:]]))
