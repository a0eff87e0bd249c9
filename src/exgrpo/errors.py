"""Errors that this package raises on purpose.

Each is also the standard-library error that it replaces, so ``except ValueError`` keeps working::

    ExGRPOError
    ├── ConfigurationError(ValueError)    an option, or a combination of options, that cannot work
    ├── TrajectoryError(ValueError)       a trajectory or group that breaks its invariants
    ├── DatasetError(ValueError)          a dataset without the columns or rows that are needed
    ├── ExperienceLogError(OSError)       an experience log that cannot be opened, written or trusted
    │   ├── LogInUseError                 another process writes it
    │   └── DamagedLogError               it does not hold what was written
    ├── CheckpointError(OSError)          a checkpoint that a run cannot continue from
    ├── HostVersionError(ImportError)     an installed host outside the supported range
    └── MissingExtraError(ImportError)    an optional dependency that is not installed

A message says what was required, what came, in which object, and what to set instead.
"""


class ExGRPOError(Exception):
    """Base of all errors of this package."""


class ConfigurationError(ExGRPOError, ValueError):
    """An option, or a combination of options, cannot work."""


class TrajectoryError(ExGRPOError, ValueError):
    """A trajectory or a group breaks its invariants."""


class DatasetError(ExGRPOError, ValueError):
    """A dataset lacks the columns or the rows that are needed."""


class ExperienceLogError(ExGRPOError, OSError):
    """An experience log cannot be opened, written or trusted."""


class LogInUseError(ExperienceLogError):
    """Another process writes this log."""


class DamagedLogError(ExperienceLogError):
    """The log is damaged: it does not hold what was written into it."""


class CheckpointError(ExGRPOError, OSError):
    """A run cannot continue from this checkpoint."""


class HostVersionError(ExGRPOError, ImportError):
    """The installed host library is outside the supported range."""


class MissingExtraError(ExGRPOError, ImportError):
    """An optional dependency is not installed; the message holds the command that installs it."""

    def __init__(self, package: str, extra: str, purpose: str):
        self._arguments = (package, extra, purpose)
        super().__init__(f"{purpose} needs `{package}`, which is not installed. Run: pip install 'exgrpo[{extra}]'")

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        return type(self), self._arguments
