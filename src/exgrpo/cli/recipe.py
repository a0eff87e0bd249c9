"""The values of a recipe, as the options that they are for take them: converted where they can mean one thing only."""

import enum
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, NoReturn

from ..spelling import did_you_mean, spelled
from ..yaml_file import with_numbers
from .main import UsageError

WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a mapping",
}
EITHER = ("resume_from_checkpoint",)  # a text to the host's annotation, and true or false to its trainer


def read_values(recipe: Mapping[str, Any], dataclasses: Iterable[type]) -> dict[str, Any]:
    """Return the recipe's values by option; raise UsageError, naming the option, for one of the wrong type."""
    hints = {name: hint for cls in dataclasses for name, hint in typing.get_type_hints(cls).items()}
    optional = {f.name for cls in dataclasses for f in fields(cls) if f.default is None and f.default is not MISSING}
    return {
        name: _Option(name, hints[name], name in optional).read(value) if name in hints else value
        for name, value in recipe.items()
    }


class _Option:
    """One option: what it may be, and how a value becomes that."""

    def __init__(self, name: str, hint: Any, optional: bool):
        self.name, self.parts = name, list(_parts(hint))
        self.kinds = {typing.get_origin(part) or part for part in self.parts}
        self.optional = optional or type(None) in self.kinds

    def read(self, value: Any) -> Any:
        if value is None:
            return None if self.optional else self._refuse(value, " Give one, or remove the line.")
        if isinstance(value, bool):
            return self._boolean(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list):
            return self._list(value)
        if list in self.kinds and not (str in self.kinds and isinstance(value, str)):
            return self._list([value])
        return self._scalar(value)

    def _boolean(self, value: bool) -> bool:
        if bool in self.kinds or typing.Literal in self.kinds or self.name in EITHER:
            return value
        if self._takes_text():
            word = "yes" if value else "no"
            return self._refuse(value, f" YAML reads {word} without quotes so. Quote it: {self.name}: '{word}'.")
        return self._refuse(value)

    def _mapping(self, value: Mapping[str, Any]) -> Any:
        if self.name == "optim_args":  # one text to the host
            return ",".join(f"{key}={item}" for key, item in with_numbers(value).items())
        known = {int, float, bool, str, list, type(None)}
        return with_numbers(value) if self.kinds - known - {typing.Literal} else self._refuse(value)

    def _list(self, value: list[Any]) -> list[Any]:
        elements = [typing.get_args(part) for part in self.parts if typing.get_origin(part) is list or part is list]
        if not elements:
            self._refuse(value)
        if not elements[0]:
            return value
        one = _Option(self.name, elements[0][0], False)
        return [one.read(item) for item in value]

    def _scalar(self, value: Any) -> Any:
        number = _number(value)
        if float in self.kinds and number is not None:
            return number
        if int in self.kinds and number is not None:
            return int(number) if number == int(number) else self._refuse(value)
        if bool in self.kinds and (isinstance(value, str) or value in (0, 1)):
            return value if isinstance(value, str) else bool(value)
        if enums := [kind for kind in self.kinds if isinstance(kind, type) and issubclass(kind, enum.Enum)]:
            return self._choice(value, [str(member.value) for kind in enums for member in kind])
        text = isinstance(value, str) or dict not in self.kinds  # a mapping may be written as JSON
        return str(value) if text and self._takes_text() else self._refuse(value)

    def _choice(self, value: Any, choices: list[str]) -> str:
        found = spelled(value, choices)
        if found not in choices:
            near = did_you_mean(value, choices)
            raise UsageError(f"{self.name} in the recipe is {value!r}.{near} Choices: {', '.join(choices)}.")
        return str(found)

    def _takes_text(self) -> bool:
        enums = any(isinstance(kind, type) and issubclass(kind, enum.Enum) for kind in self.kinds)
        return enums or str in self.kinds

    def _refuse(self, value: Any, advice: str = "") -> NoReturn:
        required = " or ".join(word for kind, word in WORDS.items() if kind in self.kinds) or "another value"
        came = "empty (null)" if value is None else repr(value)
        raise UsageError(f"{self.name} in the recipe must be {required}, but is {came}.{advice}")


def _parts(hint: Any) -> Iterable[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def _number(value: Any) -> int | float | None:
    """Read a number, also one written as text: 1e-5 and 1e3 are texts to YAML."""
    if isinstance(value, int | float):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(value) if value.strip().lstrip("+-").isdecimal() else number
