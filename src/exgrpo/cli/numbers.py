"""Numbers on the command line: readers for argparse that say what a number must be."""

import argparse
import math
from collections.abc import Callable


def at_least(low: int) -> Callable[[str], int]:
    """Make a reader of integers that are not below `low`."""

    def integer(text: str) -> int:
        if (value := int(text)) < low:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {low}, but is {text!r}")
        return value

    return integer


def between(low: float, high: float = math.inf) -> Callable[[str], float]:
    """Make a reader of finite numbers in [low, high]."""

    def number(text: str) -> float:
        if not (low <= (value := float(text)) <= high and math.isfinite(value)):
            wanted = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"must be a number {wanted}, but is {text!r}")
        return value

    return number
