"""YAML files that users write: recipes and studies."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigurationError

EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML file; refuse duplicate names in a mapping, of which YAML would keep the last.

    `what` names the file's role in messages.

    `what` names the file's role in messages.

    Raises:
        ConfigurationError: the file cannot be read, or is not YAML.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            names = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ConfigurationError(f"{what} {path}: {twice[0]!r} occurs twice in one mapping.")
            return node

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{what} {path} is not YAML: {error}") from error


def with_numbers(value: Any) -> Any:
    """Convert numbers such as 8e-4, which YAML 1.1 takes for text; in mappings and lists too."""
    if isinstance(value, Mapping):
        return {key: with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and EXPONENT.fullmatch(value.strip()) else value
