"""Units: two spellings of one unit get one name, so that `5 m` is not `5 cm` and `90^\\circ` is `90 degrees`."""

import re

_NAMES = {
    "cm": "cm centimeter centimetre", "m": "m meter metre", "km": "km kilometer kilometre", "mm": "mm millimeter millimetre",
    "inch": "inch inches in", "foot": "foot feet ft", "yard": "yard yd", "mile": "mile mi",
    "second": "s second sec", "minute": "minute min", "hour": "h hour hr", "day": "day", "week": "week",
    "month": "month", "year": "year yr",
    "kg": "kg kilogram", "g": "g gram", "mg": "mg milligram", "lb": "lb pound", "oz": "oz ounce",
    "liter": "l liter litre", "ml": "ml milliliter millilitre", "gallon": "gallon",
    "degree": "degree deg", "radian": "radian rad", "percent": "percent", "cent": "cent", "dollar": "dollar usd buck",
    "euro": "euro", "sterling": "sterling", "mph": "mph", "am": "am", "pm": "pm",
}  # fmt: skip
_UNITS = {word: name for name, words in _NAMES.items() for word in words.split()}
_POWERS = {"square": "2", "sq": "2", "squared": "2", "cubic": "3", "cu": "3", "cubed": "3"}


def known_unit(text: str) -> str:
    """The name of the unit that `text` says, with its power, such as "cm2"; empty if it is none of the well-known ones."""
    text = re.sub(r"\b([ap])\.?\s?m\.?(?![a-z])", r"\1m", text.lower().replace("°", "degree "))
    power, names = "", []
    for word in re.findall(r"[a-z]+|[23](?![0-9])", text):
        if word in ("2", "3"):
            power = word
        elif word in _POWERS:
            power = _POWERS[word]
        else:
            singular = word if word in _UNITS else word.removesuffix("s")
            if singular not in _UNITS:
                return ""
            names.append(_UNITS[singular])
    return "/".join(names) + power if names else ""
