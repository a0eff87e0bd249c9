r"""Numbers as people and models write them, read exactly: `parse_number` and `find_numbers`.

Understood: signs (also the Unicode minus), thousands separators, decimals, `a/b`, `\frac{a}{b}`, mixed numbers,
`1.5e3`, `1.5 \times 10^3`, `5 million`; around them `$`, `%`, LaTeX delimiters and `\text{}`, `x =`, a trailing period
or unit. A single letter is a variable, unless it is set as text. Digits, fractions and signs of other scripts read as ASCII.
Percent is a unit: `50%` reads as 50, and `sign_of` tells that it was there. Nothing is ever evaluated, and what is longer
than `MAX_CHARS` is not a number.
"""

import re
from fractions import Fraction
from typing import NamedTuple

from .typography import join_groups, plain_characters, undressed

MAX_CHARS = 256  # of one number with its unit; bounds the digits, so big-integer arithmetic stays in microseconds
MAX_EXPONENT = 300

_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_DECIMAL = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)(?:\.[0-9]++)?|\.[0-9]++)"
_SIGNED = rf"[+-]?\s?{_DECIMAL}"
_FRAC = rf"\\frac\s*(?:\{{\s*(?P<fn>{_SIGNED})\s*\}}|(?P<fn1>[0-9]))\s*(?:\{{\s*(?P<fd>{_SIGNED})\s*\}}|(?P<fd1>[0-9]))"
_EXPONENT = r"[+-]?[0-9]{1,3}"
_POWER = rf"(?:[eE](?P<e>{_EXPONENT})|\s*[*x]\s*10\s*\^\s*(?P<p>\{{\s*{_EXPONENT}\s*\}}|{_EXPONENT}))(?![0-9])"
_BODY = (
    rf"(?:(?:(?P<whole>[0-9]++)\s*)?{_FRAC}"
    rf"|(?P<whole2>[0-9]++)\s++(?P<mn>[0-9]++)/(?P<md>[0-9]++)"
    rf"|(?P<num>{_DECIMAL})(?:\s?/\s?(?P<den>{_DECIMAL})|{_POWER})?)"
    rf"(?:\s+(?P<scale>{'|'.join(_SCALES)})\b)?"
)
_FULL = re.compile(rf"(?P<sign>[+-])?\s*{_BODY}(?P<unit>.*)", re.DOTALL)
_TOKEN = re.compile(
    rf"(?<![0-9A-Za-z_^])(?<!\^\{{)(?P<sign>(?<![0-9A-Za-z)\]}}])[+-])?"
    rf"(?:{_BODY}(?![.,]?[0-9]|[eE][+-]?[0-9])|(?P<malformed>[0-9]++(?:[.,][0-9]++)*+))"
)

_TEXT = "\x1f"  # stands before what LaTeX sets as text
_DECORATION = r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle|\\?\$|[€£¥`]|\\[()\[\]]"
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\!\s*", ""),
        (rf"(?<=[0-9])(?:{_DECORATION})++(?=[0-9])", " ; "),  # "$5$$6$" is two numbers, not 56
        (_DECORATION, ""),
        (r"(?<![0-9A-Za-z)])\*\*|\*\*(?![0-9A-Za-z(])", ""),  # emphasis, not a power
        (r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}", rf" {_TEXT}\1 "),
        (r"\\(?:textbf|textit|mathbf|mathit|operatorname)\s*\{([^{}]*)\}", r" \1 "),
        (r"\\[dtc]frac", r"\\frac"),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree|°", " degrees "),
        (r"\\%", "%"),
        (r"\\(?:times|cdot)(?![a-z])|[×·]", "*"),
        (r"\\approx|≈", "≈"),
        (r"\\[,;: ]|~|[\u00a0\u2009\u202f]", " "),
        (r"\b(?:negative|minus)\s+(?=[0-9])", "-"),
    )
)

SHORT_WORDS = frozenset({
    "cm", "mm", "km", "nm", "ft", "yd", "mi", "sq", "kg", "mg", "lb", "oz", "ml", "dl", "hr", "ms", "hz", "ev", "kj", "kw",
    "am", "pm", "of", "in", "by", "at", "on", "an", "a", "st", "nd", "rd", "th",
})  # fmt: skip
_ATTACHED = SHORT_WORDS | {"min", "sec", "mph", "kph", "hrs", "lbs", "deg", "mol"}
_COUNTS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty", "forty", "fifty", "sixty",
    "seventy", "eighty", "ninety", "hundred", "thousand", "million", "billion", "trillion", "dozen", "score", "gross",
]  # fmt: skip
_PARTS = [
    "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth", "thirteenth",
    "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth", "thirtieth", "fortieth",
    "fiftieth", "sixtieth", "seventieth", "eightieth", "ninetieth", "hundredth", "thousandth", "millionth", "billionth",
    "quarter",
]  # fmt: skip
NUMBER_WORDS = frozenset(
    [*_COUNTS, *_PARTS, *(word + "s" for word in [*_COUNTS, *_PARTS]), "sixes", "doz", "halfs", "half", "halves"]
)
NOT_UNITS = NUMBER_WORDS | frozenset({
    "or", "and", "to", "through", "not", "but", "versus", "vs", "times", "plus", "minus", "over", "mod", "modulo", "half",
    "halves", "pi", "sqrt", "log", "exp", "sin", "cos", "tan", "cot", "root", "first", "negative", "divided", "multiplied",
    "raised", "choose", "factorial", "added", "subtracted", "increased", "decreased", "doubled", "tripled", "halved",
    "twice", "thrice", "double", "triple", "reciprocal", "inverse", "below", "above", "under", "less", "than", "more",
    "fewer", "greater", "least", "most", "between", "approximately", "about", "roughly", "around", "nearly", "almost",
    "maybe", "perhaps", "possibly", "probably", "likely", "might", "may", "could", "should", "either", "neither", "nor",
    "both", "therefore", "thus", "hence", "so", "because", "since", "which", "that", "if", "then", "else", "when",
    "whenever", "unless", "otherwise", "except", "without", "while", "for", "is", "are", "was", "were", "be", "isn",
    "instead", "rather", "actually", "wrong", "incorrect", "false", "no", "never", "none", "nothing", "also", "wait",
    "sorry", "i", "we", "it", "alternatively", "equals", "equal", "ish",
})  # fmt: skip
# what makes another number of the one before it
NOT_COUNTED = (NUMBER_WORDS - {"hundred", "thousand", "million", "billion", "trillion"}) | frozenset({
    "below", "choose", "cubed", "divided", "factorial", "minus", "mod", "multiplied", "negative", "pi", "plus", "point",
    "root", "sqrt", "squared", "times",
})  # fmt: skip
_POWERS = frozenset({"squared", "cubed"})  # of the unit before them
UNIT_LETTERS = frozenset("mgshlLNJWVAKCFTµμΩ")
_WORD = r"[A-Za-zµμΩ]+(?:\s?\^(?:-?[0-9]|\{-?[0-9]\})|[²³])?"
_NAME = re.compile(r"[\sA-Za-z\\]{1,40}(?:_\w|_\{\w+\})?'?(?:\([a-z0-9]\))?\s*")
_SUM = re.compile(r"(?:[-+0-9.*/()%=\s]|,[0-9]{3}(?![0-9])|\\frac|[{}])+")
_UNIT = re.compile(rf"{_WORD}(?:[\s/*.-]+{_WORD})*[.)]?")


class Signed(NamedTuple):
    """A number, or None, and "percent" or "degree" if a sign follows it."""

    value: Fraction | None
    sign: str = ""

    def equals(self, other: "Signed") -> bool:
        """Return whether two numbers are equal, treating a sign that only one of them has as a matter of form."""
        if self.value is None or self.value != other.value:
            return False
        if self.sign and other.sign:
            return self.sign == other.sign
        return self.sign == other.sign or may_lack_sign(self.value, self.sign or other.sign)


NONE = Signed(None)
_SIGN = re.compile(r"(?P<percent>%|\b(?:per\s?cent(?:age)?|pct)\b)|\bdeg(?:ree)?s?\b")


def sign_of(text: str) -> str:
    """Return the sign after a number in a cleaned text: "percent", "degree" or none."""
    match = _SIGN.search(text)
    return "" if match is None else "percent" if match["percent"] else "degree"


def may_lack_sign(value: Fraction, sign: str) -> bool:
    """Return whether a number may stand for itself with a sign: 25 for 25%.

    And 22.5, which is no angle in radians, for 22.5 degrees. 0.25 is not 0.25%, and 1.5 not 1.5 degrees.
    """
    return value.denominator == 1 or (sign == "degree" and abs(value) > 7)


def clean(text: str) -> str:
    """Rewrite the typographic variants of numbers in `text` one way.

    At most a few `MAX_CHARS` should be passed.
    """
    return _rewritten(join_groups(plain_characters(text)))


def _rewritten(text: str) -> str:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def parse_number(text: str) -> Fraction | None:
    """Return the one number that `text` consists of; None if it is anything else, such as an expression."""
    return parse_signed(text)[0]


def parse_signed(text: str) -> Signed:
    """Return the one number that `text` consists of, and the sign after it."""
    if len(text) > MAX_CHARS:
        return NONE
    text = _rewritten(undressed(join_groups(plain_characters(text))))
    return Signed(_parse(_unwrap(text)), sign_of(text))


def _parse(text: str) -> Fraction | None:
    exact, approximately, rounded = text.partition("≈")
    if approximately:
        if not exact.strip(_SURROUNDING):
            return _parse(_unwrap(rounded))
        value, other = _parse(_unwrap(exact)), _parse(_unwrap(rounded))
        if value is None or other is None:
            return None
        scale = 10 ** len("".join(re.findall(r"\.([0-9]*)", rounded)[:1]))
        return value if other * scale in (round(value * scale), int(value * scale)) else None
    left, equals, right = text.rpartition("=")
    if not equals:
        match = _FULL.fullmatch(text)
        return _value(match) if match is not None and is_unit(match["unit"]) else None
    if _NAME.fullmatch(left) is None and _SUM.fullmatch(left) is None:
        return None  # "5x - 7y = 0" is not 0, and "x = 4, x = 5" is not 5
    value = _parse(_unwrap(right))
    return value if _parse(_unwrap(left)) in (None, value) else None  # "0.5 = 50%" would be two answers


def find_numbers(text: str) -> list[tuple[int, int, Fraction | None]]:
    """Return (start, end, value) of the numbers in a short, cleaned text.

    The value is None where it is out of bounds.
    """
    return [
        (
            match.start(),
            match.end(),
            _value(match) if match["malformed"] is None and match.end() - match.start() <= MAX_CHARS else None,
        )
        for match in _TOKEN.finditer(text)
    ]


def is_unit(text: str) -> bool:
    r"""Return whether nothing or a unit follows a number, after a space or none; `x` and `\pi` are factors."""
    attached, as_text = text[:1].isalpha(), _TEXT in text
    text = text.replace(_TEXT, "").strip()
    if text.startswith("%"):
        text, attached = text[1:].strip(), False
    if not text or text == ".":
        return True
    if _UNIT.fullmatch(text) is None:
        return False
    spelled = re.findall(r"[A-Za-zµμΩ]+", text)
    words = [word.lower() for word in spelled]
    if any(word in NOT_UNITS for word in words) or words[0] in _POWERS:
        return False
    is_time = re.fullmatch(r"[ap]\.?\s?m\.?", text.lower()) is not None
    if as_text and not is_time and not all(len(word) > 1 or word in UNIT_LETTERS for word in spelled):
        return False
    if attached:
        return (len(words[0]) > 3 or words[0] in _ATTACHED - {"a"}) and _are_words(words[1:], as_text or "/" in text)
    return words[0] != "a" and _are_words(words[:1], as_text) and _are_words(words[1:], as_text or "/" in text)


def _are_words(words: list[str], as_text: bool) -> bool:
    return as_text or all(len(word) > 2 or word in SHORT_WORDS for word in words)


_SURROUNDING = " \t\r\n" + _TEXT


def _unwrap(text: str) -> str:
    """Strip surrounding space, closing punctuation, emphasis, and one pair of quotes, braces or parentheses."""
    text = text.strip(_SURROUNDING).rstrip(".,;:?*_" + _SURROUNDING).lstrip("*_:" + _SURROUNDING)
    for opening, closing in ("{}", "()", '""', "''"):
        if len(text) > 1 and text[0] == opening and text[-1] == closing:
            inner = text[1:-1].strip(_SURROUNDING)
            return text if opening == "(" and "," in inner else inner  # (2,251) is a pair
    return text


def _value(match: re.Match[str]) -> Fraction | None:
    group = match.groupdict()
    if group["num"] is not None:
        value: Fraction | None = _fraction(group["num"])
        if group["den"] is not None:
            value = _divide(_fraction(group["num"]), _fraction(group["den"]))
        exponent = int((group["e"] or group["p"] or "0").strip("{} "))
        if abs(exponent) > MAX_EXPONENT:
            return None
        if value is not None and exponent:
            value *= Fraction(10) ** exponent
    elif group["md"] is not None:
        value = _mixed(group["whole2"], _divide(Fraction(int(group["mn"])), Fraction(int(group["md"]))))
    else:
        part = _divide(_fraction(group["fn"] or group["fn1"]), _fraction(group["fd"] or group["fd1"]))
        value = _mixed(group["whole"], part)
    if value is None:
        return None
    if group["scale"]:
        value *= _SCALES[group["scale"]]
    return -value if group["sign"] == "-" else value


def _fraction(text: str) -> Fraction:
    return Fraction(re.sub(r"[,\s]", "", text))


def _divide(numerator: Fraction, denominator: Fraction) -> Fraction | None:
    return numerator / denominator if denominator else None


def _mixed(whole: str | None, part: Fraction | None) -> Fraction | None:
    if whole is None or part is None:
        return part
    return int(whole) + part if 0 <= part < 1 else None
