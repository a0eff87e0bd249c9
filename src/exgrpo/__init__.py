"""Experience replay for reinforcement learning of reasoning models.

`exgrpo.trl` holds the trainer; `exgrpo.experience`, `exgrpo.replay` and `exgrpo.objective` hold the method.
"""

from importlib.metadata import PackageNotFoundError, version

from .config import ObjectiveConfig, ReplayConfig
from .errors import ExGRPOError
from .presets import PRESETS, resolve

try:
    __version__ = version("exgrpo")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["PRESETS", "ExGRPOError", "ObjectiveConfig", "ReplayConfig", "__version__", "resolve"]
