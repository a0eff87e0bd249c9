"""Host warnings that a user of this package can do nothing about."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_host() -> Iterator[None]:
    """Silence warnings that the hosts emit at every start about their own use of their own deprecated names."""
    with warnings.catch_warnings():
        for name in ("gradient_checkpointing", "is_gradient_checkpointing"):
            warnings.filterwarnings("ignore", message=f"`{name}` is deprecated", category=FutureWarning)
        yield
