"""Notation of numbers modulo m: one character each up to m = 11 (ten is `T`), else decimals separated by spaces.

One character a number is one token for the tiny policy, so that a completion has exactly one token a step.
"""

import re

from .base import check

GLYPHS = "0123456789T"


def check_modulus(family: str, modulus: int) -> None:
    """Raise ConfigurationError unless the modulus is in [2, 997]."""
    check(
        isinstance(modulus, int) and 2 <= modulus <= 997,
        f"{family}: modulus must be a whole number in [2, 997], got {modulus!r}",
    )


def compact(modulus: int) -> bool:
    """Return whether numbers modulo `modulus` take one character each."""
    return modulus <= len(GLYPHS)


def characters(modulus: int) -> str:
    """Return the characters that numbers modulo `modulus` are written with, the separator included."""
    return GLYPHS[:modulus] if compact(modulus) else GLYPHS[:10] + " "


def width(modulus: int) -> int:
    """Return the most characters that one number takes, without separator."""
    return 1 if compact(modulus) else len(str(modulus - 1))


def write(value: int, modulus: int) -> str:
    """Write a number in [0, modulus) as text."""
    return GLYPHS[value] if compact(modulus) else str(value)


def read(text: str, modulus: int) -> int | None:
    """Return the number in [0, modulus) that the text writes, or None: no signs, no leading zeros, ASCII only."""
    if compact(modulus):
        value = GLYPHS.find(text) if len(text) == 1 else -1
        return value if 0 <= value < modulus else None
    if not re.fullmatch(r"0|[1-9][0-9]{0,2}", text):
        return None
    return int(text) if int(text) < modulus else None


def last_number(text: str, modulus: int) -> int | None:
    """Return the number that the text ends with, or None where it ends otherwise."""
    text = text.rstrip()
    if compact(modulus):
        return read(text[-1:], modulus)
    match = re.search(r"[0-9]{1,9}$", text[-10:])
    return read(match.group(), modulus) if match else None
