r"""The form of a mathematical answer: what it is made of, as text that two equal answers share. Nothing is computed.

`read(text)` gives a `Form`: a number (exact), a text (words, a choice, a time), an expression (LaTeX with one spelling),
an equation, or a collection of forms: list, tuple or open interval, half-open interval, set, union, matrix. Decoration is
dropped (`$`, `\left`, `\dfrac`, `\text`, trailing periods), a unit is kept beside what it measures, `\pm` is written out.
"""

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from ..number import NOT_UNITS, parse_number
from .latex import AND, OR, ROW, TEXT, brackets, clean, closing, split, squeeze
from .units import known_unit, may_be_dropped, unit_name

MAX_PARTS, MAX_DEPTH = 64, 6
SIGNIFICANT = 6  # digits from which on a decimal may stand for a number that is none
SHORT = 16  # digits of an integer that is read at once
_DIGITS = "0123456789"


@dataclass(frozen=True)
class Form:
    """One answer, or one part of an answer.

    `kind` is "number", "text", "base", "expression", "equation", or that of a collection: "list", "union", a matrix, or its
    two brackets, such as "()" and "[)". `text` is the canonical spelling, `name` what stood before `=`, `letters` the
    variables, `places` the decimal places of a number written with enough digits to stand for one that is no decimal.
    """

    kind: str
    text: str
    number: Fraction | None = None
    parts: tuple["Form", ...] = ()
    unit: str = ""
    name: str = ""
    letters: frozenset[str] = field(default=frozenset())
    places: int = 0

    @property
    def is_collection(self) -> bool:
        return bool(self.parts) and self.kind != "equation"


_MATRIX = re.compile(
    r"(?P<scalar>[^,;&\x05<>=]*?)(?:\\cdot\s*|\\times\s*|\*\s*)?"
    r"(?P<opening>\(|\[|\\\{|\\?\|)?\s*\\begin\{(?P<kind>[pbvBV]?matrix)\}(?P<body>.*)\\end\{(?P=kind)\}\s*(?P<closing>\)|\]|\\\}|\\?\|)?",
    re.DOTALL,
)
_ENCLOSED = {("", ""): "", ("(", ")"): "", ("[", "]"): "", (r"\{", r"\}"): "", ("|", "|"): "v", (r"\|", r"\|"): "V"}
_LETTERS = r"\\?[A-Za-z]{1,8}(?:_(?:\w|\{[^{}]{1,12}\}))?'*"
_ARGUMENT = r"\((?:[^()=<>]|\([^()=<>]*\)){1,24}\)"
_NAME = re.compile(
    rf"(\(\s*(?P<first>\\?[A-Za-z]+(?:_\w)?)(?:\s?,\s?(?P<second>\\?[A-Za-z]+(?:_\w)?))+\s*\)|{_LETTERS}(?:\([a-z]\))?"
    rf"|[A-Zf-hp-ry](?:_\w)?'*{_ARGUMENT}|P\([^()<>]{{1,24}}\)|E\[[^\[\]=]{{1,16}}\]"
    rf"|\\(?:gcd|lcm|det|deg|dim|max|min|sup|inf|arg|Pr|operatorname\s*\{{[A-Za-z]+\}}|(?:text|mathrm)\s*\{{(?:gcd|lcm|det|rank|tr|Area|Vol)\}})\s*{_ARGUMENT}"
    r"|\\text\s*\{(?!\s*(?:not|no|never)\b)[A-Za-z\s]{1,32}\}(?:\s*\(?[A-Z]{1,5}\)?)?"
    r"|\\?\|\s*(?:\{?[A-Z]'?\s?[A-Z]'?\}?|[A-Z]'?)\s*\\?\||\\(?:over|under)(?:line|rightarrow)\s*\{[A-Z]'?\s?[A-Z]'?\}|\{[A-Z]{2}\}"
    r"|[mS]?_?\{?\s*(?:\\(?:angle|triangle|measuredangle)\s?)[A-Z_0-9{} ]{1,12}|\[[A-Z]{3,6}\])"
    r"\s*(?:=|\\in(?![A-Za-z]))\s*"
)
_UNIT = re.compile(
    r"(.*?)\s*((?:\\(?:text|mbox|mathrm|textrm|rm|textbf)\s*\{[^{}]*\}\s*(?:\^\s*(?:[23]|\{\s*[23]\s*\}))?\s*[/.]?\s*)+|%|\\degree)$",
    re.DOTALL,
)
_WORDS = re.compile(r"(.*[0-9)}])\s*((?:[A-Za-z]++\.?(?:\s?\^(?:[23]|\{[23]\}))?[\s/]*){1,4})$", re.DOTALL)
_BASE = re.compile(
    r"[(\[{]?(-?[0-9A-F]+)[)\]}]?(?:_(?:([0-9]+)|\{?\(?(?:base)?([0-9]+|[a-z]+)\)?\}?)|,?\(?(?:in)?base\{?([0-9]+|[a-z]+)\}?\)?)"
)
_BASES = dict(
    zip(
        ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "sixteen"),
        map(str, [*range(2, 13), 16]),
        strict=True,
    )
)
_TIME = re.compile(r"[0-9]+(?:\s*:\s*[0-9]+)+")
_RATIO_WORD = re.compile(r"([0-9])\s*(?:to|\\text\s*\{\s*to\s*\})\s*([0-9])")
_REPEATING = re.compile(r"(-?)\s*([0-9]{0,20})\.([0-9]{0,20})\\(?:overline|bar|dot)\s*(?:\{([0-9]{1,20})\}|([0-9]))")
_SPELLED_OUT = re.compile(r"(-?)\s*([0-9]{0,20})\.([0-9]{2,40})\s*\\ldots")
_JOINED = re.compile(
    r"[0-9]+(?:\s*-\s*[0-9]+)+|[0-9]+(?:\s*/\s*[0-9]+){2,}|[0-9]+(?:\s*x\s*[0-9]+)+|\([0-9]{3}\)\s*[0-9]{3}\s*-\s*[0-9]{4}"
)  # dates, scores, ranges, sizes
_PRODUCT = re.compile(
    r"[abcxyz]{2,3}|[b-df-hj-np-tv-xz]{2,4}|(?=[a-z]*x)[b-df-hj-np-tv-z]{2,4}"
    r"|(?=[A-Z]*[a-z])(?=[a-z]*[A-Z])[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{2,3}"
)
_QUIET = re.compile(r"[\s{}\\$\"“”]|(?<![0-9])[.!?](?![0-9])")  # what says nothing in words
_LETTER = re.compile(r"\\[A-Za-z]+|[A-Za-z]")
_FUNCTIONS = frozenset({
    "frac", "sqrt", "pi", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh",
    "tanh", "log", "ln", "exp", "cdot", "times", "infty", "le", "ge", "ne", "pm", "mp", "degree", "binom", "lfloor",
    "rfloor", "lceil", "rceil", "div", "mod", "in", "cup", "cap", "to",
})  # fmt: skip


@lru_cache(maxsize=4096)
def read(text: str) -> Form | None:
    """Return the form of an answer, or None if it cannot be one."""
    if len(text) < SHORT and text.isdigit() and text.isascii():
        return Form("number", str(int(text)), Fraction(int(text)))
    cleaned = clean(text)
    return None if cleaned is None else _read(cleaned, 0)


def _read(text: str, depth: int) -> Form | None:
    text = text.strip().rstrip(".").strip()
    while text[:1] == "{" and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    if not text or depth > MAX_DEPTH:
        return None
    if (whole := TEXT.fullmatch(text)) is not None and any(mark in whole[1] for mark in (",", AND, OR)):
        text = whole[1]
    name = ""
    if (match := _name(text)) is not None and match.end() < len(text) and "=" not in text[match.end() :]:
        name, text = squeeze(match[1]).strip("{}"), text[match.end() :]
    number = parse_number(_for_number(text))
    if number is not None:
        if match is not None and name and "\\in" in match[0]:
            return None  # a number is no set
        unit = unit_name(_unit_of_number(text))
        return Form("number", str(number), number, unit=unit, name=name, places=_places(text))
    form = _collection(text, depth) or _scalar(text)
    if form is not None and name[:1] == "(" and name.count(",") + 1 != len(form.parts):
        return None  # (x, y) = 5
    if form is not None and name in form.letters:  # x = 2x + 3 defines nothing
        return _of("equation", [name, text], depth)
    return None if form is None else _named(form, name)


def _name(text: str) -> re.Match[str] | None:
    r"""Match the name of what follows: `x =`, `f(2) =`, `|AB| =`, `(r,\theta) =`.

    Names of a pair are put in their usual order.
    """
    if "=" not in text and "\\in" not in text:
        return None
    match = _NAME.match(text)
    if match is None or any(word.lower() in NOT_UNITS for word in re.findall(r"[A-Za-z]{2,}", match[1])):
        return None  # "twice x = 10"
    if match["first"] is None:
        return match
    first, second = match["first"], match["second"]
    exchanged = (first[0] == "\\" and second[0] != "\\") or (len(first) == len(second) == 1 and first > second)
    return None if exchanged else match


def _named(form: Form, name: str) -> Form:
    return replace(form, name=name) if name else form


def _for_number(text: str) -> str:
    return re.sub(r"\\degree", " degrees ", text) if "=" not in text and "\\approx" not in text else ""


def _unit_of_number(text: str) -> str:
    if text.lstrip("-+ ").startswith("$"):
        return "dollars"
    if "%" in text:
        return "percent"
    plain = TEXT.sub(r" \1 ", text.replace("\\degree", " degrees "))
    match = re.search(r"(?<![A-Za-z\\])(?!e[-+]?[0-9])[A-Za-z][-A-Za-z.\s/^0-9{}]*$", plain)
    return "" if match is None else match[0]


def _places(text: str) -> int:
    match = re.fullmatch(r"\D*([0-9,]*)\.([0-9]+)\D*", text)
    return len(match[2]) if match is not None and len((match[1] + match[2]).lstrip("0.,")) >= SIGNIFICANT else 0


def _collection(text: str, depth: int) -> Form | None:
    if "matrix}" in text and (matrix := _MATRIX.fullmatch(text)) is not None:
        return _matrix(matrix, depth)
    text = _EUROPEAN.sub(_with_parentheses, text)
    for separators in (";", AND + OR, ","):
        if any(separator in text for separator in separators):
            pieces = [piece for piece in split(text, separators) if piece.strip()]
            if len(pieces) > 1:
                form = _of("list", pieces if separators == ";" else _commas(pieces), depth)
                return form if OR not in text or form is None else _united(form)
    if "\\cup" in text:
        pieces = split(re.sub(r"\\cup(?![A-Za-z])", "\x02", text), "\x02")
        if len(pieces) > 1:
            return _of("union", pieces, depth)
    kind, inner = brackets(text)
    if kind:
        if kind == "{}" and (builder := _BUILDER.fullmatch(inner)) is not None:
            return _built(builder, depth)
        pieces = _commas(split(inner, AND + OR)) if AND in inner or OR in inner else split(inner, ",;")
        if len(pieces) == 1 and kind != "{}":
            return Form("text", squeeze(text)) if kind != "()" else _read(inner, depth + 1)
        return _of(kind, pieces, depth)
    if text.count("\\pm") == 1:
        signs = [re.sub(r"\\pm(?![A-Za-z])", sign, text).lstrip("+ ") for sign in "+-"]
        return _of("list", signs, depth)
    return _relation(text, depth)


def _with_parentheses(match: re.Match[str]) -> str:
    """Rewrite an interval whose open ends are written as reversed brackets."""
    low, inner, high = match.groups()
    return f"{'[' if low == '[' else '('}{inner}{']' if high == ']' else ')'}"


def _united(form: Form) -> Form:
    """Join inequalities of one name to a union of intervals where "or" joins them; leave anything else a list."""
    names = {part.name for part in form.parts}
    if len(names) > 1 or names == {""} or not all(part.kind in _INTERVALS for part in form.parts):
        return form
    parts = tuple(replace(part, name="") for part in form.parts)
    return replace(form, kind="union", text=f"union<{'|'.join(map(_spelling, parts))}>", parts=parts, name=names.pop())


def _built(match: re.Match[str], depth: int) -> Form | None:
    """Return the interval that all real numbers with a property are: `{x | 2 < x}`."""
    form = _read(match["property"], depth + 1)
    if form is None or form.name != match["name"] or form.kind not in (*_INTERVALS, "union"):
        return Form("text", squeeze(match[0]))
    return form


def _commas(pieces: list[str]) -> list[str]:
    """Cut pieces at their commas, but not inside one number: `1,000 and 2,000` are two."""
    return [
        part
        for piece in pieces
        for part in ([piece] if "," not in piece or parse_number(piece) is not None else split(piece, ","))
        if part.strip()
    ]


def _of(kind: str, pieces: list[str], depth: int) -> Form | None:
    if len(pieces) > MAX_PARTS:
        return None
    parts = []
    for piece in pieces:
        form = _read(piece, depth + 1)
        if form is None:
            return None
        flat = form.kind == "list" and kind in ("list", "{}") and "\\pm" in piece  # {1 ± √5, -2}
        parts += list(form.parts) if flat else [form]
    letters = frozenset().union(*(part.letters for part in parts))
    return Form(kind, f"{kind}<{'|'.join(_spelling(part) for part in parts)}>", None, tuple(parts), "", "", letters)


def _spelling(form: Form) -> str:
    spelled = f"{form.name}={form.text}" if form.name else form.text
    return f"{spelled} {form.unit}" if form.unit else spelled


def _matrix(match: re.Match[str], depth: int) -> Form | None:
    """Return a matrix, with the scalar before it multiplied into its cells."""
    scalar, body = match["scalar"].strip(), match["body"]
    if "\\text" in scalar or len(split(scalar[1:], "+-")) > 1 or scalar[1:].endswith(("/", "^", "_")):
        return None  # 1 + 2M is not 3M
    enclosed = _ENCLOSED.get((match["opening"] or "", match["closing"] or ""))
    if (
        enclosed is None
        or "\\begin" in body
        or "\\end" in body
        or (match["kind"] != "matrix" and match["opening"] not in (None, "("))
    ):
        return None
    kind = enclosed or match["kind"][0].removeprefix("m")
    cells = [row.split("&") for row in body.split(ROW) if row.strip()]
    if not cells or len({len(row) for row in cells}) != 1 or len(cells) * len(cells[0]) > MAX_PARTS:
        return None
    form = _of("matrix", [cell for row in cells for cell in row], depth)
    if scalar and form is not None:
        factor = None if kind in ("v", "V") else _read({"-": "-1", "+": "1"}.get(scalar, scalar), depth + 1)
        form = None if factor is None else _scaled(factor, form, depth)
    shape = f"{'determinant' if kind in ('v', 'V') else 'matrix'} {len(cells)}x{len(cells[0])}"
    return None if form is None else replace(form, kind=shape, text=f"{shape} {form.text}")


def _scaled(factor: Form, matrix: Form, depth: int) -> Form | None:
    """Multiply a matrix's cells by a factor; None unless they are numbers and expressions."""
    if any(form.kind not in ("number", "expression") or form.unit or form.name for form in (factor, *matrix.parts)):
        return None
    products = [
        str(factor.number * cell.number)
        if factor.number is not None and cell.number is not None
        else f"({spelled(factor)})\\cdot ({spelled(cell)})"
        for cell in matrix.parts
    ]
    return _of("matrix", products, depth)


def spelled(form: Form) -> str:
    """Return an expression or a number as LaTeX that the parser reads."""
    if form.number is None:
        return form.text
    n, d = form.number.numerator, form.number.denominator
    return str(n) if d == 1 else f"({n}/{d})"


_INTERVALS = ("()", "[)", "(]", "[]")
_EUROPEAN = re.compile(r"(?<![\w)\]])([\[\]])([^\[\](){},;]+[,;][^\[\](){},;]+)(\[|(?<!\])\])(?![\w(\[])")
_BUILDER = re.compile(
    r"\s*(?P<name>\\?[A-Za-z]+)\s*(?:\\in\s*\(-\\infty,\\infty\)\s*)?(?:\||:)(?P<property>[^|:]+)", re.DOTALL
)
_RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|\\ne(?![A-Za-z])|<|>|(?<![\\<>!:])=")


def _relation(text: str, depth: int) -> Form | None:
    r"""Read an equation, or an inequality: `x > 2` and `2 < x` become the interval `(2,\infty)` with the name x."""
    operators = _RELATION.findall(text)
    if not operators:
        return None
    sides = [side.strip() for side in _RELATION.split(text)]
    if not all(sides) or len(sides) > 8 or any(side.count("(") != side.count(")") for side in sides):
        return None
    if set(operators) == {"="}:
        return _of("equation", sides, depth)
    flipped = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
    if set(operators) <= {">", r"\ge"}:
        operators, sides = [flipped[o] for o in reversed(operators)], sides[::-1]
    if not set(operators) <= {"<", r"\le"}:
        return None
    variable = re.compile(r"\\?[A-Za-z]+(?:\([a-z]\))?")
    if len(sides) == 3 and variable.fullmatch(sides[1]):
        low, high, name, ends = sides[0], sides[2], sides[1], operators
    elif len(sides) == 2 and variable.fullmatch(sides[0]):
        low, high, name, ends = r"-\infty", sides[1], sides[0], ["<", operators[0]]
    elif len(sides) == 2 and variable.fullmatch(sides[1]):
        low, high, name, ends = sides[0], r"\infty", sides[1], [operators[0], "<"]
    else:
        return None
    kind = ("(" if ends[0] == "<" else "[") + (")" if ends[1] == "<" else "]")
    form = _of(kind, [low, high], depth)
    return None if form is None else _named(form, squeeze(name))


def _scalar(text: str) -> Form | None:
    if ("_" in text or "base" in text) and (
        base := _BASE.fullmatch(re.sub(r"[\s~]|(?<=[0-9]),(?=[0-9]{3})", "", TEXT.sub(r"\1", text)))
    ) is not None:
        sign, digits = ("-" if base[1][0] == "-" else ""), base[1].lstrip("-0") or "0"
        spelled_base = base[2] or base[3] or base[4]
        return Form("base", f"{sign}{digits}_{_BASES.get(spelled_base, spelled_base)}")
    if (repeating := _REPEATING.fullmatch(text)) is not None:
        return _repeating(repeating[1], repeating[2], repeating[3], repeating[4] or repeating[5])
    dotted = _SPELLED_OUT.fullmatch(text) if "\\ldots" in text else None
    if dotted is not None and (period := _period(dotted[3])) is not None:
        return _repeating(dotted[1], dotted[2], *period)
    exact, approximately, rounded = text.partition("\\approx")
    if approximately:
        return _approximated(exact, rounded)
    text = _RATIO_WORD.sub(r"\1:\2", text)
    body, unit = _without_unit(text)
    if (number := parse_number(_for_number(body))) is not None:
        return Form("number", str(number), number, unit=unit_name(unit), places=_places(body))
    if _JOINED.fullmatch(plain := TEXT.sub(r"\1", body).strip()):
        return Form("joined", re.sub(r"\s", "", plain), unit=unit_name(unit))
    if _TIME.fullmatch(body):
        return Form("text", squeeze(body), unit=unit_name(unit))
    words = TEXT.sub(r" \1 ", body if unit else text)
    if (is_prose(words) and not _is_product(body, unit)) or ("\\text" in text and not any(c in _DIGITS for c in text)):
        return Form("text", folded(" ".join(_QUIET.sub(" ", words).split())))
    spelled = squeeze(body)
    letters = frozenset(
        token.lstrip("\\")
        for token in _LETTER.findall(TEXT.sub(r" \1 ", body))
        if token.lstrip("\\") not in _FUNCTIONS and token not in ("e", "i")
    )
    return Form("expression", spelled, unit=unit_name(unit), letters=letters)


def _repeating(sign: str, whole: str, fixed: str, period: str) -> Form:
    n = len(fixed)
    part = Fraction(int(fixed or "0")) + Fraction(int(period), 10 ** len(period) - 1)
    number = (int(whole or "0") + part / 10**n) * (-1 if sign else 1)
    return Form("number", str(number), number)


def _period(digits: str) -> tuple[str, str] | None:
    """Return the digits before the period and the shortest period of `0.1666...`.

    The period must be there three times, or twice and with four digits in all.
    """
    for length in range(1, len(digits) // 2 + 1):
        period, count = digits[-length:], 1
        while digits[: len(digits) - count * length].endswith(period):
            count += 1
        if count >= 3 or (count == 2 and 2 * length >= 4):
            return digits[: len(digits) - count * length], period
    return None


def _approximated(exact: str, rounded: str) -> Form | None:
    r"""Return what stands before `\approx`, unless it does not round or cut to the number after it."""
    form, other = _read(exact, MAX_DEPTH), _read(rounded, MAX_DEPTH)
    if form is None or form.number is None:
        return form or other
    if other is None or other.number is None:
        return None
    scale = 10 ** len(rounded.partition(".")[2].rstrip())
    return form if other.number * scale in (round(form.number * scale), int(form.number * scale)) else None


def is_prose(text: str) -> bool:
    r"""Return whether `text` is words rather than a product of variables.

    Letters only, or a word of four letters or more.
    """
    plain = re.sub(r"\\[A-Za-z]+", " ", text)
    return re.fullmatch(r"[\s(]*[A-Za-z]{2,}[\s).]*", text) is not None or re.search(r"[A-Za-z]{4,}", plain) is not None


def _is_product(text: str, unit: str) -> bool:
    """Return whether letters alone are a product, `xy` or `mgR`, and not a word, a unit or the name of a segment."""
    return not unit and _PRODUCT.fullmatch(text) is not None and known_unit(text) == ""


def folded(text: str) -> str:
    """Lower the case of words; keep it for what may name a thing: `x`, `AB`."""
    return re.sub(
        r"[A-Za-z]+",
        lambda m: m[0].lower() if m[0][1:].islower() or len(m[0]) > 3 or m[0] in ("YES", "NO") else m[0],
        text,
    )


def _without_unit(text: str) -> tuple[str, str]:
    if text.startswith("$"):
        return text[1:].strip(), "dollars"
    if text.startswith("-$"):
        return "-" + text[2:].strip(), "dollars"
    if text.endswith("$"):
        return text[:-1].strip(), "dollars"
    if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])", text):
        return re.sub(r"\\degree\s*", r"\\cdot\\frac{\\pi}{180}", text), ""
    match = _UNIT.fullmatch(text)
    if match is not None and any(c.isalnum() for c in match[1]) and not match[1].rstrip().endswith(("_", "^")):
        unit = TEXT.sub(r" \1 ", match[2].replace("\\degree", "degrees").replace("%", "percent"))
        unit = re.sub(r"\\[a-z]+\s*\{|\}(?!\})", " ", unit) if "\\" in unit else unit
        if may_be_dropped(re.sub(r"\s+\^", "^", unit), parse_number(_for_number(match[1])) is not None):
            return match[1], unit
        return text, ""
    match = _WORDS.fullmatch(text)
    if match is not None and match[2].lower().startswith(("squared", "cubed")):
        return text, ""
    if match is not None and (_is_am_or_pm(match[2]) or all(map(_is_unit_word, re.findall(r"[A-Za-z]+", match[2])))):
        return match[1], match[2]
    return text, ""


def _is_am_or_pm(text: str) -> bool:
    return re.fullmatch(r"[AaPp]\.?\s?[Mm]\.?\s*", text) is not None


def _is_unit_word(word: str) -> bool:
    return word.lower() not in NOT_UNITS and (len(word) > 3 or (len(word) > 1 and known_unit(word) != ""))
