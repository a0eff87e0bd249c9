r"""LaTeX as text: one spelling for what looks the same, and the cuts that respect brackets. All of it in bounded time."""

import re
import unicodedata

from .math_answer import MAX_CHARS

MAX_EQUALS = 64
_REPLACED = str.maketrans({
    "−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "×": r"\times ", "·": r"\cdot ", "∙": r"\cdot ",
    "÷": "/", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "±": r"\pm ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ ", "²": "^2", "³": "^3", "≈": r"\approx ", "∅": r"\emptyset ",
    "ℝ": r"\mathbb{R}", "√": r"\sqrt ", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "∶": ":", "：": ":",
    "，": ",", "（": "(", "）": ")", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "’": "'", "′": "'", "€": r"\text{ euro}",
    "£": r"\text{ pound sterling}",
})  # fmt: skip
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))
_COMMAND = r"(?![A-Za-z])"
ROW = "\x05"  # stands for the double backslash between the rows of a matrix
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\(?:\s*\[[0-9.]{1,6}\s*(?:pt|em|ex|mm|cm)\])?", ROW),
        (rf"{ROW}(?=(?:[dt]?frac|sqrt|text|pi|left|right|cdot|times|infty|pm)" + _COMMAND + ")", r"\\"),
        (r"\\!\s*", ""),
        (r"(?<![0-9A-Za-z)\]}])\*\*|\*\*(?![0-9A-Za-z({\\])", ""),  # emphasis, not a power
        (r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits|strut)" + _COMMAND, ""),
        (r"\\\$", r" USD$ "),
        (r"\\begin\{(?:align|aligned|equation|gather)\*?\}|\\end\{(?:align|aligned|equation|gather)\*?\}", ""),
        (r"\\[()\[\]]", ""),
        (r"\{,\}", ","),
        (r"(?<=[0-9])(?:\\,|\\ )(?=[0-9]{3}(?![0-9]))", ","),
        (r"\\(?:,|;|:|>| |quad|qquad|thinspace)" + r"(?![a-z])|~", " "),
        (r"\\[dtc]frac" + _COMMAND, r"\\frac"),
        (r"\\leqslant" + _COMMAND + r"|\\leq" + _COMMAND, r"\\le "),
        (r"\\geqslant" + _COMMAND + r"|\\geq" + _COMMAND, r"\\ge "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\lt" + _COMMAND, "<"),
        (r"\\gt" + _COMMAND, ">"),
        (r"\\neq" + _COMMAND, r"\\ne "),
        (r"\\(?:varnothing|emptyset)" + _COMMAND + r"|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\(?:mathbb|mathbf|mathrm|Bbb)\s*\{?\s*R\s*\}?(?![A-Za-z])", r"(-\\infty,\\infty)"),
        (r"\\(?:mathbb|mathbf|mathit|mathcal|bm|boldsymbol|vec|overrightarrow)\s*\{([^{}]*)\}", r"{\1}"),
        (r"(?:(?<=[0-9\s])|^)\s*infinity\b", r"\\infty "),
        (r"([-+(\[,\s])(?:infinity|inf)\b", r"\1\\infty "),
        (r"\+\s*\\infty" + _COMMAND, r"\\infty "),
        (r"\\%", "%"),
        (r"\^\s*(?:\\circ" + _COMMAND + r"|\{\s*\\circ\s*\})|\\degree" + _COMMAND, r"\\degree "),
        (r"\\(?:text|mbox|textrm|mathrm|textnormal|operatorname)\s*\{\s*,?\s*(?:and|or)\s*\}", " , "),
        (r"(?<=[\s}$)0-9]),?\s*\b(?:and|or)\b(?=[\s$\\(])", " , "),
        (r"(?<=[0-9)}])\s*\b(?:percent|pct)\b|\\text\s*\{\s*(?:percent|\\?%)\s*\}", "%"),
        (r"\\mathrm\s*\{\s*i\s*\}|\\imath" + _COMMAND, "i"),
        (r"\\mathrm\s*\{\s*e\s*\}", "e"),
        (r"\\pmod" + _COMMAND, r"\\mod "),
        (r"\bnp\.(?=[a-z])", ""),
        (r"(?<!\\)\b(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|pi)\b(?=[\s({^0-9]|$)", r"\\\1"),
        (r"(?<=[0-9])\\?(sqrt|pi)\b", r"\\\1"),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"(?<=[0-9])\.(?![0-9.\\])", ""),
        (r"(?<![0-9.])\.(?=[0-9])", "0."),
        (r"\^\s*\{?\s*\\prime\s*\}?", "'"),
    )
)
_BRACES = {r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\lvert": "|", r"\rvert": "|",
           r"\vert": "|", r"\mid": "|", r"\langle": "(", r"\rangle": ")"}  # fmt: skip
_REFUSED = re.compile(r"\\[hv]?(?:phantom|space)" + _COMMAND + r"|^[\s$]*[-+]\s*[-+]")  # invisible content, two signs
_SIGN_SPACE = re.compile(r"\\[hv]?phantom\s*(?:[-+]|\{\s*[-+]?\s*\})")  # room for a sign, in matrices
_BRACE_COMMAND = re.compile(r"\\(?:[lr]brace|[lr]brack|[lr]?vert|mid|[lr]angle)" + _COMMAND)
_ARGUMENT = re.compile(r"\\frac\s*|\\sqrt\s*")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\s*.", re.DOTALL)
TEXT = re.compile(r"\\(?:text|mbox|textbf|textit|textrm|mathrm|textnormal|operatorname)\s*\{([^{}]*)\}")


def clean(text: str) -> str | None:
    """`text` in one spelling of LaTeX; None if it is too long, empty, or holds characters that no answer has."""
    if len(text) > MAX_CHARS:
        return None
    text = unicodedata.normalize("NFC", text.translate(_INVISIBLE)).translate(_REPLACED)
    if any(unicodedata.category(c)[0] == "C" and c not in "\n\t\r" for c in text):
        return None
    text = _SIGN_SPACE.sub("", text)
    if _REFUSED.search(text) is not None:
        return None
    text = _BRACE_COMMAND.sub(lambda m: _BRACES[m[0]], text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.replace(" USD$ ", "\x01").replace("$", " ").replace("\x01", "$")
    text = text.strip().strip('"`').rstrip(".;:,?* \n").lstrip("*:, \n").strip()
    if re.search(r"\\frac\s*[0-9]\s*[0-9][0-9]", text):
        return None  # \frac123 is 1/2 times 3 to TeX, and 1/23 to others
    if text.count("\\approx") > 1 or text.count("=") > MAX_EQUALS:
        return None
    return _braced_arguments(text) or None


def _braced_arguments(text: str) -> str:
    r"""`\frac12`, `\frac\pi 2` and `\sqrt 2` with their braces."""
    if "\\frac" not in text and "\\sqrt" not in text:
        return text
    out, position = [], 0
    while (match := _ARGUMENT.search(text, position)) is not None:
        out += [text[position : match.start()], match[0].strip()]
        position, wanted = match.end(), 2 if match[0].startswith("\\frac") else 1
        if wanted == 1 and text[position : position + 1] == "[":
            continue
        while wanted and position < len(text):
            rest = text[position:]
            token = _TOKEN.match(rest)[0]  # type: ignore[index]
            if token.strip() == "{":
                end = _closing(text, position + len(token) - 1)
                if end is None:
                    return text
                out += ["{", _braced_arguments(text[position + len(token) : end]), "}"]
                position = end + 1
            elif token.strip() in ("}", ")", ",", "\\frac", "\\sqrt", ""):
                break
            else:
                out += ["{", token.strip(), "}"]
                position += len(token)
            wanted -= 1
    return "".join([*out, text[position:]])


def _closing(text: str, start: int) -> int | None:
    depth, i = 0, start
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return i
        i += 1
    return None


def split(text: str, separators: str) -> list[str]:
    """`text` cut at separators outside of all brackets and braces. `[0,1)` counts as a pair, too."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        char = text[i]
        if char == "\\" and i + 1 < len(text):
            depth += (text[i + 1] == "{") - (text[i + 1] == "}")
            i += 2
            continue
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char in separators and depth == 0:
            parts.append(text[start:i])
            start = i + 1
        i += 1
    return [*parts, text[start:]]


def brackets(text: str) -> tuple[str, str]:
    r"""The pair of brackets around all of `text`, as "()", "[)" or "{}", and what is inside; or two empty strings."""
    opening = "\\{" if text.startswith("\\{") else text[0] if text[0] in "([" else ""
    closing = "\\}" if text.endswith("\\}") else text[-1] if text[-1] in ")]" else ""
    if not opening or not closing or (len(opening) == 2) != (len(closing) == 2):
        return "", ""
    depth, i = 0, 0
    while i < len(text):
        if text[i] == "\\" and i + 1 < len(text):
            depth += (text[i + 1] == "{") - (text[i + 1] == "}")
            i += 2
        else:
            depth += (text[i] in "([{") - (text[i] in ")]}")
            i += 1
        if depth == 0:
            break
    if i < len(text) or depth:
        return "", ""
    return (opening + closing).replace("\\", ""), text[len(opening) : len(text) - len(closing)]


def squeeze(text: str) -> str:
    """One spelling of an expression: no space except between digits, no braces around one character."""
    text = TEXT.sub(r"\1", text)
    text = re.sub(r"\\(?:cdot|times)(?![A-Za-z])|\*", r"\\cdot ", text)
    text = re.sub(r"(_\s*[0-9])\s+(?=[0-9])", r"\1", text)
    text = re.sub(r"(?<=[0-9])\s+(?=[0-9])", "\x03", text)
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])", "\\1\x04", text)
    text = re.sub(r"\s+", "", text).replace("\x03", " ").replace("\x04", " ")
    text = re.sub(r"\^(-?[0-9]{2,}|-[0-9A-Za-z])", r"^{\1}", text)
    text = re.sub(r"([_^])\{([A-Za-z0-9])\}(?![0-9])", r"\1\2", text)
    text = (
        re.sub(r"(?<![\w}^])\{([^{}\\]*)\}(?![\w{])", r"\1", text) if not re.search(r"frac|sqrt|binom", text) else text
    )
    return text.removeprefix("+")
