"""Options by name: the rules that are built in, and those that users add. Standard library only.

An option such as `question_choice` names one small function, a *rule*. A rule lives in its room and is found here, by the
name under which it was registered or by a dotted path (`my_package.my_module.my_rule`), which is what a recipe can hold.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .errors import ConfigurationError
from .spelling import did_you_mean

OPTIONS: dict[str, "Registry"] = {}
"""Every option that names a rule."""


@dataclass(frozen=True)
class Rule:
    """One value of an option: a function, and what is known of it (`per_question`, `measured`, ...)."""

    function: Callable[..., Any]
    traits: Mapping[str, Any]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class Registry(Mapping[str, Rule]):
    """The possible values of one option.

    Args:
        option: the name of the option.
        homes: for each built-in rule the module that registers it, imported when the rule is first asked for.
        traits: what may be said of a rule, with defaults. A function that was not registered has them as attributes.
        quality: built-in rules that look at the quality of completions; known before anything is imported.
        open_to_users: whether users may add rules.
    """

    def __init__(
        self,
        option: str,
        homes: Mapping[str, str],
        traits: Mapping[str, Any] | None = None,
        quality: tuple[str, ...] = (),
        open_to_users: bool = True,
    ):
        self.option = option
        self.homes = homes
        self.builtin = tuple(homes)
        self.traits = {"needs_quality": False, **(traits or {})}
        self._quality = quality
        self._rules: dict[str, Rule] = {}
        self.open_to_users = open_to_users
        if open_to_users:
            OPTIONS[option] = self

    def register(self, name: str, function: Callable[..., Any], **traits: Any) -> None:
        """Add a rule.

        Raises:
            ConfigurationError: the name is taken or is no name, the function is none, or there is no such trait.
        """
        if not isinstance(name, str) or not name.isidentifier():
            hint = ' Write the decorator with a name: @register_...("name").' if callable(name) else ""
            raise ConfigurationError(
                f"a {self.option} is registered under a name of letters, digits and underscores, not {name!r}.{hint}"
            )
        if not callable(function):
            raise ConfigurationError(f"the {self.option} {name!r} must be a function, but is {function!r}.")
        if unknown := traits.keys() - self.traits.keys():
            raise ConfigurationError(
                f"a {self.option} has no {min(unknown)!r}; it has {', '.join(sorted(self.traits))}."
            )
        taken = name in self._rules or self.homes.get(name, function.__module__) != function.__module__
        if taken:
            raise ConfigurationError(f"there is a {self.option} {name!r} already. Register yours under another name.")
        self._rules[name] = Rule(function, self.traits | {"needs_quality": name in self._quality} | traits)

    def needs_quality(self, name: str) -> bool:
        """Return whether a rule uses the quality of completions; imports no built-in rule."""
        return name in self._quality if name in self.homes else bool(self[name].traits["needs_quality"])

    def __getitem__(self, name: str) -> Rule:
        if name not in self._rules and name in self.homes:
            importlib.import_module(self.homes[name])
        if name in self._rules:
            return self._rules[name]
        if not is_dotted_path(name):
            raise ConfigurationError(
                f"{self.option} {name!r} is none of {', '.join(map(repr, self))}.{did_you_mean(name, self)}"
            )
        function = imported(f"{self.option}={name!r}", name)
        for rule in self._rules.values():  # importing its module may have registered it
            if function in (rule, rule.function):
                return rule
        return Rule(function, {trait: getattr(function, trait, value) for trait, value in self.traits.items()})

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.homes, *self._rules)))

    def __len__(self) -> int:
        return len({*self.homes, *self._rules})

    def __contains__(self, name: object) -> bool:
        """Return whether a configuration may hold this name; dotted paths are resolved later, by `resolve_rules`."""
        known = isinstance(name, str) and (name in self.homes or name in self._rules)
        return known or (self.open_to_users and is_dotted_path(name))


def register(option: str, name: str, function: Any = None, **traits: Any) -> Any:
    """Make a function a value of an option; called plainly, or as a decorator without the function.

    Args:
        option: such as `question_choice`.
        name: letters, digits and underscores.
        function: the rule; what it gets and answers with, the page "Replay" says for each option.
        traits: what is known of it, such as `needs_quality=True`.

    Returns:
        The function, or a decorator.

    Raises:
        ConfigurationError: as `Registry.register`; or there is no such option.
    """
    if option not in OPTIONS:
        raise ConfigurationError(f"no rule can be registered for {option!r}. Options with rules: {', '.join(OPTIONS)}.")
    if function is None and isinstance(name, str):
        return partial(_registered, option, name, traits)
    return _registered(option, name, traits, function)


def _registered(option: str, name: str, traits: Mapping[str, Any], function: Any) -> Any:
    OPTIONS[option].register(name, function, **traits)
    return function


register_question_sampler = partial(register, "question_choice")
register_trajectory_choice = partial(register, "trajectory_choice")
register_schedule = partial(register, "schedule")
register_admission = partial(register, "admission")
register_retirement = partial(register, "retirement")
register_eviction = partial(register, "eviction")
register_correction = partial(register, "correction")
register_baseline = partial(register, "baseline")


def resolve_rules(*configs: object) -> None:
    """Find every rule that configurations name, so that one that is not there is said at the start.

    Raises:
        ConfigurationError: there is nothing at a dotted path, or no function.
    """
    for config in configs:
        for option, registry in OPTIONS.items():
            if hasattr(config, option):
                registry[getattr(config, option)]


def is_dotted_path(name: object) -> bool:
    """Return whether a name has the form `package.module.attribute`."""
    return isinstance(name, str) and "." in name and all(part.isidentifier() for part in name.split("."))


def imported(subject: str, path: str, otherwise: str = "") -> Any:
    """Import the function at a dotted path.

    Args:
        subject: what the path was given for, for messages.
        path: such as `my_package.my_module.mine`.
        otherwise: what could be given instead, for messages.

    Raises:
        ConfigurationError: there is nothing of that path, or something else.
    """
    choices = f" {otherwise}" if otherwise else ""
    if not is_dotted_path(path):
        raise ConfigurationError(f"{subject} is not a dotted path, such as 'my_package.my_module.mine'.{choices}")
    module_name, _, attribute = path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the user's module exists, and one of its own imports is missing
        raise ConfigurationError(
            f"{subject} cannot be imported: there is no module {error.name!r} on the Python path.{choices}"
        ) from error
    found = getattr(module, attribute, None)
    if not callable(found):
        came = "has no such attribute" if found is None else f"has it as {type(found).__name__}, not a function"
        raise ConfigurationError(f"{subject} cannot be used: {module_name!r} {came}.{choices}")
    return found
