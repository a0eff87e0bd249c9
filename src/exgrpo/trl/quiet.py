"""What the hosts say that a user of ours can do nothing about."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_host() -> Iterator[None]:
    """Without what the hosts say at every start and nobody can act on: their own use of their own deprecated names."""
    with warnings.catch_warnings():
        for name in ("gradient_checkpointing", "is_gradient_checkpointing"):
            warnings.filterwarnings("ignore", message=f"`{name}` is deprecated", category=FutureWarning)
        yield
