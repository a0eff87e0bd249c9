"""Options by name: those that are built in, and those that users add. Standard library only.

An option such as `question_choice` names one small function. The function lives in its room, is found through a registry,
and may be the user's own: registered under a name, or given as a dotted path (`my_package.my_module.my_function`), which is
what a recipe file can hold.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from .errors import ConfigurationError

T = TypeVar("T")


def spelled(name: Any, options: Iterable[str]) -> Any:
    """The option that a name means: hyphens and underscores are alike. The name itself where it means none."""
    if not isinstance(name, str):
        return name
    return {option.replace("-", "_"): option for option in options}.get(name.replace("-", "_"), name)


def did_you_mean(name: Any, options: Iterable[str]) -> str:
    """` Did you mean 'rescue'?`, or nothing where no option is near."""
    near = difflib.get_close_matches(
        str(name).replace("_", "-"), plain := {o.replace("_", "-"): o for o in options}, n=1
    )
    return f" Did you mean {plain[near[0]]!r}?" if near else ""


class Registry(Mapping[str, T], Generic[T]):
    """What one option can be.

    Args:
        option: the name of the option, for messages.
        home: the module that registers the built-in ones; imported when one of them is first asked for.
        builtin: their names, so that a configuration can be checked without importing anything.
        wrap: makes an entry out of a function that was given as a dotted path.
        quality: those of the built-in ones that look at the quality of completions.
    """

    def __init__(
        self,
        option: str,
        home: str,
        builtin: tuple[str, ...],
        wrap: Callable[[Any], T] = lambda given: given,
        quality: tuple[str, ...] = (),
    ):
        self.option = option
        self.builtin = builtin
        self._home = home
        self._wrap = wrap
        self._entries: dict[str, T] = {}
        self._quality = set(quality)

    def check(self, name: Any, function: Any = None) -> None:
        """Refuse what cannot be registered: a name that is none (a decorator without its parentheses), and what is not called.

        Raises:
            ConfigurationError: as above.
        """
        if not isinstance(name, str) or not name.isidentifier():
            hint = ' Write the decorator with a name: @register_...("name").' if callable(name) else ""
            raise ConfigurationError(
                f"a {self.option} is registered under a name of letters, digits and underscores, not {name!r}.{hint}"
            )
        if function is not None and not callable(function):
            raise ConfigurationError(f"the {self.option} {name!r} must be a function, but is {function!r}.")

    def register(self, name: str, entry: T, needs_quality: bool = False) -> None:
        """Add an option under a name; `needs_quality`: it looks at the quality of completions, which needs an encoder.

        Raises:
            ConfigurationError: the name is taken, or is none.
        """
        self.check(name)
        if name in self.builtin and name not in self._entries and not self._at_home:
            self._load()
        if name in self._entries:
            raise ConfigurationError(f"there is a {self.option} {name!r} already. Register yours under another name.")
        self._entries[name] = entry
        if needs_quality:
            self._quality.add(name)

    def needs_quality(self, name: str) -> bool:
        """Whether an option looks at the quality of completions: as it was registered, or by an attribute `needs_quality` of a
        function that was not."""
        if name in self.builtin or name in self._entries:
            return name in self._quality
        entry = self[name]
        known = any(self._entries.get(registered) is entry for registered in self._quality)
        parts = (entry, *getattr(entry, "__dict__", {}).values())
        return known or any(bool(getattr(part, "needs_quality", False)) for part in parts)

    @property
    def _at_home(self) -> bool:
        """Whether the home module is being imported now, or has been."""
        return self._home in sys.modules

    def _load(self) -> None:
        importlib.import_module(self._home)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries and name in self.builtin:
            self._load()
        if name in self._entries:
            return self._entries[name]
        if isinstance(name, str) and "." in name:
            return self._entry_of(self._imported(name))
        raise ConfigurationError(
            f"{self.option} {name!r} is none of {', '.join(map(repr, self))}.{did_you_mean(name, self)}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.builtin, *self._entries)))

    def __len__(self) -> int:
        return len({*self.builtin, *self._entries})

    def __contains__(self, name: object) -> bool:
        """Whether a configuration may hold this name; a dotted path is imported to find out."""
        if not isinstance(name, str):
            return False
        return name in self.builtin or name in self._entries or ("." in name and self._imported(name) is not None)

    def _entry_of(self, found: Any) -> T:
        """What was imported as an entry: it may be one, or the function of one that its module registered."""
        self._load()
        for entry in self._entries.values():
            if found is entry or any(found is part for part in getattr(entry, "__dict__", {}).values()):
                return entry
        return found if isinstance(found, self._kinds()) else self._wrap(found)  # type: ignore[return-value]

    def _kinds(self) -> tuple[type, ...]:
        return tuple({type(self._entries[name]) for name in self.builtin if name in self._entries})

    def _imported(self, path: str) -> Any:
        return imported(f"{self.option}={path!r}", path, self._kinds())


def imported(subject: str, path: str, kinds: tuple[type, ...] = (), otherwise: str = "") -> Any:
    """What stands at a dotted path: a function, or an object of one of the `kinds`.

    Args:
        subject: what the path was given for, for messages.
        path: such as `my_package.my_module.mine`.
        kinds: of what is no function and may stand there.
        otherwise: what could be given instead, for messages.

    Raises:
        ConfigurationError: there is nothing of that path, or something else.
    """
    choices = f" {otherwise}" if otherwise else ""
    module_name, _, attribute = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigurationError(f"{subject} is no dotted path, such as 'my_package.my_module.mine'.{choices}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module exists, and one of its own imports is missing
        raise ConfigurationError(
            f"{subject} cannot be imported: there is no module {error.name!r} on the Python path.{choices}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found) and not isinstance(found, kinds):
        came = "has no such attribute" if found is None else f"has it as {type(found).__name__}, not a function"
        raise ConfigurationError(f"{subject} cannot be used: {module_name!r} {came}.{choices}")
    return found
