"""The plugin that verl loads by the entry point `verl.plugins`, in every process, while verl itself is being imported.

So this imports nothing: it waits until verl's trainers are there, and registers ours by name. Loaded is ours when it is
made; what is wrong with it is said then, and no other trainer of verl is touched.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TRAINERS = "verl.trainer.ppo.v1"
REFUSED = ("exgrpo_colocate_async", "exgrpo_separate_async", "exgrpo_async")
"""Names that one would try; stored trajectories would be chosen under an older policy than the one that learns from them."""


class _After(importlib.abc.MetaPathFinder):
    """A meta path finder that calls something once a module is imported."""

    def __init__(self, name: str, call: Callable[[], None]):
        self._name, self._call = name, call

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader = None if spec is None else spec.loader
        if loader is None:
            return spec
        inner = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            inner(module)
            self._call()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after(name: str, call: Callable[[], None]) -> None:
    """Call something once a module of this name is imported, or now if it already is."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _After(name, call))


def register() -> None:
    """Register the trainer under `exgrpo`, and a refusal under the names of unsupported ones."""
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY, PPOTrainer, register_trainer

    class Later(PPOTrainer):  # type: ignore[misc]  # a class of the host
        """Stands for the trainer until one is made."""

        def __new__(cls, config: Any) -> Any:
            from .trainer import ExGRPOTrainer

            return ExGRPOTrainer(config)

    class Asynchronous(PPOTrainer):  # type: ignore[misc]
        """A placeholder for unsupported trainers."""

        def __new__(cls, config: Any) -> Any:
            from ..errors import ConfigurationError

            raise ConfigurationError(
                f"trainer.v1.trainer_mode={config.trainer.v1.trainer_mode}: replay is supported under verl's synchronous "
                "trainer only. In the others stored completions would be chosen under an older policy, and be deleted on "
                "resuming. Set trainer.v1.trainer_mode=exgrpo."
            )

    if "exgrpo" not in TRAINER_REGISTRY:
        register_trainer("exgrpo")(Later)
        for name in REFUSED:
            register_trainer(name)(Asynchronous)


after(TRAINERS, register)
