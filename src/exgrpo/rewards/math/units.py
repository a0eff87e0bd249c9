"""Units: two spellings of one unit get one name, so that `5 m` is not `5 cm` and `90^\\circ` is `90 degrees`."""

import re

from ..number import NOT_UNITS, SHORT_WORDS, UNIT_LETTERS

_NAMES = {
    "cm": "cm centimeter centimetre", "m": "m meter metre", "km": "km kilometer kilometre", "mm": "mm millimeter millimetre",
    "inch": "inch inches in", "foot": "foot feet ft", "yard": "yard yd", "mile": "mile mi",
    "second": "s second sec", "minute": "minute min", "hour": "h hour hr", "day": "day", "week": "week",
    "month": "month", "year": "year yr",
    "kg": "kg kilogram", "g": "g gram", "mg": "mg milligram", "lb": "lb pound", "oz": "oz ounce",
    "liter": "l liter litre", "ml": "ml milliliter millilitre", "gallon": "gallon",
    "degree": "degree deg", "radian": "radian rad", "percent": "percent pct percentage",
    "cent": "cent", "dollar": "dollar usd buck",
    "euro": "euro", "sterling": "sterling", "mph": "mph", "km/hour": "kph", "am": "am", "pm": "pm", "unit": "unit",
    "J": "joule", "kJ": "kilojoule", "N": "newton", "W": "watt", "kW": "kilowatt", "V": "volt", "A": "ampere amp",
    "K": "kelvin", "Hz": "hertz hz", "Pa": "pascal", "eV": "electronvolt ev", "mol": "mole mol",
}  # fmt: skip
_UNITS = {word: name for name, words in _NAMES.items() for word in words.split()}
_SI = {
    prefix + base: prefix + base
    for prefix in ("", "p", "n", "m", "k", "M", "G", "T")
    for base in ("J", "N", "W", "V", "A", "K", "Pa", "Hz", "eV", "F", "T", "C")
} | {"ms": "ms", "ns": "ns", "nm": "nm", "L": "liter", "mL": "ml", "Mm": "Mm", "Mg": "Mg"}
_BEFORE = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}
_AFTER = {"squared": "2", "cubed": "3", "2": "2", "3": "3"}
_SAME = {"mile/hour": "mph"}
_SCALES = re.compile(r"\b(?:hundred|thousand|million|billion|trillion)\b")


def known_unit(text: str) -> str:
    """Return the name of the well-known unit that `text` says, with its power, such as "cm2"; else an empty string."""
    text = re.sub(r"\b([ap])\.?\s?m\.?(?![a-z])", r"\1m", text.replace("°", "degree "), flags=re.IGNORECASE)
    text = _SCALES.sub(" ", text.replace("squnit", "sq unit").replace("per cent", "percent"))
    text = re.sub(r"([A-Za-z]+)\s*\^\s*\{?\s*-\s*([123])\s*\}?", lambda m: f"/{m[1]}{m[2].replace('1', '')} ", text)
    if re.search(r"-\s*[0-9]|[0-9]{2}|[014-9]", text):
        return ""
    spelled, pending, over, named = "", "", False, False
    for word in re.findall(r"[A-Za-z]+|[23/]", text):
        lower = word.lower()
        if word == "/" or lower == "per":
            over = True
        elif lower in _BEFORE:
            pending = _BEFORE[lower]
        elif lower in _AFTER:
            if not named:
                return ""
            spelled += _AFTER[lower]
        else:
            name = _name(word)
            if not name:
                return ""
            spelled += ("/" if over else " " if named else "") + name + pending
            pending, over, named = "", False, True
    return _SAME.get(spelled, spelled)


def _name(word: str) -> str:
    if word in _SI:
        return _SI[word]
    lower = word if len(word) == 1 else word.lower()
    return _UNITS.get(lower) or (_UNITS.get(lower.removesuffix("s"), "") if len(lower) > 2 else "")


def unit_name(text: str) -> str:
    """Return the name of a unit, known or not: two that differ are not the same."""
    text = re.sub(r"^\s*x\s*10\s*\^\s*\{?\s*-?[0-9]+\s*\}?", "", text)
    known = known_unit(text)
    if known:
        return known
    words = [
        w if len(w) < 4 else w.lower().removesuffix("s")
        for w in re.findall(r"[A-Za-z]+|-?[0-9]+", _SCALES.sub(" ", text))
    ]
    return "?" + " ".join(words) if words else ""


def may_be_dropped(text: str, number: bool) -> bool:
    """Return whether text set after an expression is a unit, or words that say nothing about the value.

    A single letter is one only behind a plain number.
    """
    plain = text.strip().strip(".")
    if re.fullmatch(r"[ap]\.?\s?m", plain.lower()):
        return True
    if re.fullmatch(r"[A-Za-zµμΩ.\s/^{}23-]*", plain) is None or re.search(
        r"(?<!\^)(?<!\^\{)(?<!\^-)(?<!\^\{-)[0-9]", plain.replace(" ", "")
    ):
        return False
    words = re.findall(r"[A-Za-zµμΩ]+", plain)
    if not words or words[0].lower() in ("squared", "cubed") or any(word.lower() in NOT_UNITS for word in words):
        return False
    return all(
        (number and word in UNIT_LETTERS)
        if len(word) == 1
        else len(word) > 2 or word.lower() in SHORT_WORDS or known_unit(word) != ""
        for word in words
    )
