r"""The symbolic comparison, with math-verify and numeric evaluation; runs inside the pool.

What gets here is refused unless it is short, shallow and made of a known set of commands: math-verify and the parser below
it never see anything else. They are called with parsed expressions only, never with text to search: the part of math-verify
that hands text to Python's `eval` (plain expressions such as `9**9**9`) is not on this path, nor is `sympify` of a string.
What is parsed is refused again if its value could be longer than `MAX_BITS`, before anything evaluates it.
"""

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

MAX_CHARS, MAX_NESTING, MAX_POWERS, MAX_DIGITS, MAX_BITS = 384, 12, 24, 120, 20_000
MAX_FLOAT_BITS = 2.0**40
MAX_EXPANDED = 40  # the largest exponent of a sum that is handed to simplification
_COMMANDS = frozenset({
    "frac", "sqrt", "pi", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh",
    "tanh", "log", "ln", "exp", "cdot", "binom", "lfloor", "rfloor", "lceil", "rceil", "infty", "alpha", "beta",
    "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota", "kappa", "lambda", "mu",
    "nu", "xi", "rho", "sigma", "tau", "upsilon", "hbar", "Upsilon", "Xi", "phi", "varphi", "chi", "psi", "omega",
    "Delta", "Sigma", "Omega", "Phi", "Psi", "Theta", "Lambda",
})  # fmt: skip
_PLAIN = re.compile(r"[-+0-9A-Za-z\\{}()\[\]_^/!|'. ]*")
_INTEGERS = "ijklmnpqrN"
_POINTS = 3


def symbolic_equal(gold: str, answer: str, equation: bool, strict: bool) -> bool:
    """Return whether two expressions are equal; with `equation`, whether two differences vanish together.

    Numerically: at three points with positive variables and one with variables of both signs, to 20 digits and more. What
    differs at a positive point is unequal, whatever math-verify says; what agrees at all points is equal, and `strict`
    wants `verify(gold, answer)` of math-verify to say so too. Where the points do not tell (they agree for positive values
    only, or a function has no value), math-verify decides about expressions, except in strict mode.
    """
    left, right = parse(gold), parse(answer)
    if left is None or right is None:
        return False
    numeric = _numerically(left, right, equation)
    if numeric is None:
        return not strict and not equation and _by_math_verify(left, right, equation)
    return numeric and (not strict or _by_math_verify(left, right, equation))


def warm_up() -> None:
    """Import what is slow to import, and let the parser build its tables."""
    symbolic_equal(r"\frac{x^2-1}{2}+\sqrt{3}", r"(x-1)(x+1)/2+3^{1/2}", equation=False, strict=True)


def rounds_to(expression: str, decimal: Fraction, places: int) -> bool:
    """Return whether a number, rounded or cut to so many decimal places, is `decimal`."""
    parsed = parse(expression)
    value = None if parsed is None or parsed.free_symbols else _evaluate(parsed, {}, 30)
    if value is None or not hasattr(value, "man_exp"):
        return False
    scaled = Fraction(str(value)) * 10**places if abs(value) < 10**20 else None
    return scaled is not None and decimal * 10**places in (round(scaled), int(scaled))


@lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """Parse LaTeX in the spelling of `form` to a sympy expression; None where it is refused."""
    prepared = prepare(text)
    if prepared is None:
        return None
    import sympy
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    try:
        expression = latex2sympy(
            prepared,
            is_real=None,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - the parser raises bare Exceptions for what it does not understand
        return None
    if (
        not isinstance(expression, sympy.Expr)
        or expression.has(sympy.Derivative, sympy.Integral)
        or _bits(expression) == float("inf")
    ):
        return None
    return expression.subs(sympy.Symbol("i"), sympy.I) if sympy.Symbol("i") in expression.free_symbols else expression


def prepare(text: str) -> str | None:
    """Return what the parser may see, or None."""
    for letter, name in (("I", "Upsilon"), ("E", "Xi")):  # the parser takes these for the imaginary unit and for e
        text = text.replace(letter, f"\\{name} ") if name not in text else text
    if not text or len(text) > MAX_CHARS or _PLAIN.fullmatch(text) is None or "'" in text or _tower(text):
        return None
    if any(command not in _COMMANDS for command in re.findall(r"\\([A-Za-z]+|.)", text)):
        return None
    if not _balanced(text) or text.count("^") > MAX_POWERS:
        return None
    if any(len(digits) > MAX_DIGITS for digits in re.findall(r"[0-9]+", text)) or re.search(r"[0-9]( [0-9]|_)", text):
        return None  # the parser drops the index of a number
    if re.search(r"\\frac\{[^{}]*\}\{[^{}]*\} ?[0-9]", text):
        return None  # 1/2 times 3, or a mixed number the wrong way round
    if re.search(
        r"\\binom\{[^{}]*[0-9]{4}|\\binom\{[^{}]*\}\{[^{}]*[0-9]{4}|\\binom[^{]|\\binom\{[^{}]*[\^!{\\]|!!|![0-9A-Za-z]*!",
        text,
    ):
        return None
    if "[" in text and "\\sqrt[" not in text:
        text = text.replace("[", "(").replace("]", ")")
    text = re.sub(r"([_^])([A-Za-z0-9])", r"\1{\2}", text)
    text = re.sub(r"([0-9]+)\.([0-9]+)", lambda m: f"({int(m[1] + m[2])}/{10 ** len(m[2])})", text)
    return re.sub(r"(?<=[0-9)])(?=\()|(?<=\))(?=\\frac)", r"\\cdot ", text)  # 2(1/3) is no mixed number


def _balanced(text: str) -> bool:
    stack = []
    for char in text:
        if char in "{([":
            stack.append({"{": "}", "(": ")", "[": "]"}[char])
            if len(stack) > MAX_NESTING:
                return False
        elif char in "})]" and (not stack or stack.pop() != char):
            return False
    return not stack


def _tower(text: str) -> bool:
    r"""Return whether a power has a power in its exponent twice, or lacks braces: `2^{3^{4^5}}`, `2^3^4`."""
    if re.search(r"\^[A-Za-z0-9]\^", text):
        return True
    stack: list[bool] = []
    previous = ""
    for char in text:
        if char == "{":
            stack.append(previous == "^")
        elif char == "}" and stack:
            stack.pop()
        elif char == "^" and sum(stack) >= 2:
            return True
        previous = char
    return False


def _bits(expression: Any) -> float:
    """Return an upper bound on the binary digits that evaluating `expression` could make; infinite where too large.

    Without variables the arithmetic may be that of exact integers. With variables it is in floating point, at values below
    32: there only the exponent is long, and an exponent of an exponent must stop somewhere.
    """
    import sympy

    if expression.is_Rational:
        return float(max(abs(expression.p).bit_length(), expression.q.bit_length()))
    if not expression.args:
        return 5.0
    bits = [_bits(argument) for argument in expression.args]
    if isinstance(expression, (sympy.Pow, sympy.exp)):
        exponent = expression.args[-1]
        times = float(min(abs(exponent), 2**64)) if exponent.is_Rational else 2.0 ** min(bits[-1], 64.0)
        total = max(bits[0] if len(bits) > 1 else 2.0, 2.0) * max(times, 1.0)
    elif isinstance(expression, (sympy.factorial, sympy.gamma, sympy.binomial)):
        total = 2.0 ** min(max(bits), 64.0) * 12.0
    else:
        total = sum(bits) + len(bits)
    return total if total <= (MAX_FLOAT_BITS if expression.free_symbols else MAX_BITS) else float("inf")


def _values(symbols: list[Any], point: int) -> dict[Any, Any]:
    """Choose values above 1, below 1, larger ones, and ones of both signs.

    Letters that are mostly integers get integers, with all remainders by 2, 3 and 4.
    """
    import sympy

    values = {}
    for k, symbol in enumerate(symbols):
        if symbol.name in _INTEGERS:
            values[symbol] = sympy.Integer((9, 10, 11, 4)[point] + 3 * k)
        else:
            signed = (7 * k + 9, 6 * k + 13) if k % 2 else (-7 * k - 93, 6 * k + 4)
            pair = ((7 * k + 11, 5 * k + 8), (5 * k + 7, 6 * k + 11), (13 * k + 29, k + 5), signed)[point]
            values[symbol] = sympy.Rational(*pair)
    return values


def _numerically(left: Any, right: Any, equation: bool) -> bool | None:
    """Return True if equal at all points, False if different at a point of positive variables, None where unknown."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=lambda symbol: symbol.name)
    bits = max(_bits(left), _bits(right))
    digits = 30 + int(0.31 * bits) if bits <= MAX_BITS else 60  # the smallest term counts beside the largest
    ratio, sure = None, True
    for point in range(_POINTS + 1 if symbols else 1):
        values = _values(symbols, point)
        a, b = _evaluate(left, values, digits), _evaluate(right, values, digits)
        if a is None or b is None or (equation and 0 in (a, b)):
            sure = False
            continue
        with mpmath_digits(digits):
            if equation:
                ratio = a / b if ratio is None else ratio
                b = b * ratio
            if abs(a - b) > max(abs(a), abs(b), 1) / 10 ** (digits - 10):
                if point < _POINTS or all(symbol.name in _INTEGERS for symbol in symbols):
                    return False
                return None  # equal for positive variables only
    return True if sure else None


def mpmath_digits(digits: int) -> Any:
    import mpmath

    return mpmath.workdps(digits)


def _evaluate(expression: Any, values: dict[Any, Any], digits: int) -> Any:
    import mpmath
    import sympy

    try:
        number = expression.evalf(digits, subs=values) if values else expression.evalf(digits)
        with mpmath_digits(digits):
            value = (
                mpmath.mpmathify(number)
                if number.is_real
                else mpmath.mpc(*map(mpmath.mpmathify, number.as_real_imag()))
            )
            return value if mpmath.isfinite(value) else None
    except (
        TypeError,
        ValueError,
        ArithmeticError,
        AttributeError,
        NotImplementedError,
        RecursionError,
        sympy.SympifyError,
    ):
        return None


def _by_math_verify(left: Any, right: Any, equation: bool) -> bool:
    import sympy
    from math_verify import verify

    logging.getLogger("math_verify.grader").setLevel(
        logging.ERROR
    )  # it warns that its own limit is off: the pool's holds
    for power in left.atoms(sympy.Pow) | right.atoms(sympy.Pow):
        if power.base.is_Add and power.free_symbols and (not power.exp.is_number or abs(power.exp) > MAX_EXPANDED):
            return False
    if equation:
        left, right = sympy.Eq(left, 0, evaluate=False), sympy.Eq(right, 0, evaluate=False)
    return verify(left, right, timeout_seconds=None)
