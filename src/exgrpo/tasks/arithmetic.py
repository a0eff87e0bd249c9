"""The value of an arithmetic expression that a model wrote: a recursive-descent parser over exact fractions.

Model text is hostile input: nothing here evaluates it as code, and every cost is bounded before it is paid. With at
most `MAX_LENGTH` characters, `MAX_NUMBERS` numbers of `MAX_DIGITS` digits and `MAX_DEPTH` nested parentheses no value
has many more than MAX_NUMBERS * MAX_DIGITS digits above or below the line. No powers, signs, names or calls.

    sum     = product {("+" | "-") product}
    product = factor {("*" | "/") factor}
    factor  = digits | "(" sum ")"
"""

from fractions import Fraction

MAX_LENGTH = 256
MAX_NUMBERS = 32
MAX_DIGITS = 9
MAX_DEPTH = 16
DIGITS = frozenset("0123456789")


class ExpressionError(ValueError):
    """The text is no expression of this grammar, exceeds a limit, or divides by zero."""


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """Return the exact value of the expression, and the numbers that it uses in the order of the text.

    Raises ExpressionError; costs at most some tens of microseconds a character up to MAX_LENGTH, whatever comes.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    parser = _Parser(text.replace(" ", ""))
    value = parser.sum(0)
    if parser.here is not None:
        raise ExpressionError(f"unexpected {parser.here!r}")
    return value, parser.numbers


class _Parser:
    """A position in a text, and the numbers met so far."""

    def __init__(self, text: str):
        self.text, self.position, self.numbers = text, 0, list[int]()

    @property
    def here(self) -> str | None:
        """The character at the position, None at the end."""
        return self.text[self.position] if self.position < len(self.text) else None

    def take(self) -> str | None:
        """Return the character at the position, and move on."""
        character = self.here
        self.position += 1
        return character

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.here in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value += sign * self.product(depth)
        return value

    def product(self, depth: int) -> Fraction:
        value = self.factor(depth)
        while self.here in ("*", "/"):
            if self.take() == "*":
                value *= self.factor(depth)
                continue
            divisor = self.factor(depth)
            if not divisor:
                raise ExpressionError("division by zero")
            value /= divisor
        return value

    def factor(self, depth: int) -> Fraction:
        if self.here != "(":
            return Fraction(self.number())
        if depth >= MAX_DEPTH:
            raise ExpressionError(f"more than {MAX_DEPTH} nested parentheses")
        self.take()
        value = self.sum(depth + 1)
        if self.take() != ")":
            raise ExpressionError("a parenthesis is not closed")
        return value

    def number(self) -> int:
        start = self.position
        while self.here in DIGITS:
            self.take()
        digits = self.text[start : self.position]
        if not 1 <= len(digits) <= MAX_DIGITS or len(self.numbers) >= MAX_NUMBERS:
            raise ExpressionError("a number is missing or too long" if self.numbers else "no number")
        self.numbers.append(int(digits))
        return self.numbers[-1]
