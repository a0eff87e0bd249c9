r"""LaTeX as text: one spelling for what looks the same, and the cuts that respect brackets. All of it in bounded time."""

import re
import unicodedata

from ..typography import join_groups, plain_characters, undressed
from .answer import MAX_CHARS

MAX_EQUALS = 64
_REPLACED = str.maketrans({
    "×": r"\times ", "·": r"\cdot ", "∙": r"\cdot ", "⋅": r"\cdot ", "∗": "*", "÷": "/", "≤": r"\le ", "≥": r"\ge ",
    "⩽": r"\le ",
    "⩾": r"\ge ", "≦": r"\le ", "≧": r"\ge ", "≠": r"\ne ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "°": r"^\circ ", "º": r"^\circ ", "≈": r"\approx ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}",
    "’": "'", "′": "'", "€": r"\text{ euro}", "£": r"\text{ pound sterling}", "…": r"\ldots ", "⋯": r"\ldots ", "∠": r"\angle ",
    "△": r"\triangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "“": '"', "”": '"', "⟨": "(",
    "⟩": ")", "〈": "(", "〉": ")", "∣": "|",
    **dict(zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩϕϑ", (rf"\{name} " for name in re.findall(r"\w+",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi chi psi omega "
        "Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega phi vartheta")), strict=True)),
})  # fmt: skip
_ROOT = re.compile(r"([√∛∜])\s*(?:\(([^()]{1,60})\)|([0-9]+(?:\.[0-9]+)?|[A-Za-z])|(?=\{))?")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))
_COMMAND = r"(?![A-Za-z])"
ROW = "\x05"  # stands for the double backslash between the rows of a matrix
AND, OR = "\x07", "\x0e"  # stand for "and" and "or", which part what a comma may not
_ROWS = re.compile(r"\\\\(?:\s*\[[0-9.]{1,6}\s*(?:pt|em|ex|mm|cm)\])?|\\(?:cr|tabularnewline)" + _COMMAND)
_NO_ROW = re.compile(rf"{ROW}(?=(?:[dt]?frac|sqrt|text|pi|left|right|cdot|times|infty|pm){_COMMAND})")


def _compiled(*rewrites: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in rewrites)


_FIRST = _compiled(  # of LaTeX, before it is plain
    (r"\\\$", r" USD$ "),
    (r"\\[()\[\]]", ""),
    (r"\\(?:[dtc]|nice|s|x)frac" + _COMMAND, r"\\frac"),
    (r"\\leqslant" + _COMMAND + r"|\\leq" + _COMMAND, r"\\le "),
    (r"\\geqslant" + _COMMAND + r"|\\geq" + _COMMAND, r"\\ge "),
    (r"\\lt" + _COMMAND, "<"),
    (r"\\gt" + _COMMAND, ">"),
    (r"\\neq" + _COMMAND, r"\\ne "),
    (r"\\(?:varnothing|emptyset)" + _COMMAND + r"|\\\{\s*\\\}", r"\\emptyset "),
    (r"\\(?:mathbb|Bbb)\s*\{?\s*R\s*\}?(?![A-Za-z])", r"(-\\infty,\\infty)"),
    (r"\\mathbb\s*\{([^{}]*)\}", r"{\1}"),
    (r"\\%", "%"),
    (r"\^\s*(?:\\circ" + _COMMAND + r"|\{\s*\\circ\s*\})|\\degree" + _COMMAND, r"\\degree "),
    (
        r",?\s*\\(?:text|mbox|textrm|mathrm|textnormal|operatorname)\s*\{\s*,?\s*and\s*\}|\\(?:land|wedge)" + _COMMAND,
        AND,
    ),
    (r",?\s*\\(?:text|mbox|textrm|mathrm|textnormal|operatorname)\s*\{\s*,?\s*or\s*\}|\\(?:lor|vee)" + _COMMAND, OR),
    (r"\\bigcup" + _COMMAND, r"\\cup "),
    (r"\\text\s*\{\s*(?:percent|\\?%)\s*\}", "%"),
    (r"\\mathrm\s*\{\s*i\s*\}|\\imath" + _COMMAND, "i"),
    (r"\\mathrm\s*\{\s*e\s*\}", "e"),
    (r"\\pmod" + _COMMAND, r"\\mod "),
    (r"\\[cl]?dots[cbmio]?" + _COMMAND, r"\\ldots "),
    (r"\^\s*\{?\s*\\prime\s*\}?", "'"),
)
_REWRITES = _compiled(
    (r"(?<![0-9A-Za-z)\]}])\*\*|\*\*(?!-?[0-9A-Za-z({\\])", ""),  # emphasis, not a power
    (r"\*\*(-?(?:[0-9]+(?:\.[0-9]+)?|[A-Za-z])?)", r"^{\1}"),
    (r"\^(?:\{\})?\s*\(((?:[^()]|\([^()]*\))*)\)", r"^{\1}"),
    (r"(?<=[0-9])\^(?:o(?![A-Za-z0-9])|\{(?:\\(?:text|mathrm)\s*\{)?\s*o\s*\}{1,2})", r"\\degree "),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"(?:(?<=[0-9\s])|^)\s*infinity\b", r"\\infty "),
    (r"([-+(\[,\s])(?:infinity|inf)\b", r"\1\\infty "),
    (r"\+\s*\\infty" + _COMMAND, r"\\infty "),
    (r"(?<=[\s}$)0-9]),?\s*\band\b(?=[\s$\\(])", AND),
    (r"(?<=[\s}$)0-9]),?\s*\bor\b(?=[\s$\\(])", OR),
    (r"(?<=[0-9)}])\s*\b(?:percent|pct)\b", "%"),
    (r"\bnp\.(?=[a-z])", ""),
    (
        r"(?<!\\)\b(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|ln|log|exp|sqrt|pi)(?:\b(?=[\s({^0-9]|$)|(?=_[{0-9]))",
        r"\\\1",
    ),
    (r"(?<=[0-9])\\?(sqrt|pi)\b", r"\\\1"),
    (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
    (r"(\.[0-9]++)\s?\.{3}", r"\1\\ldots "),
    (r"(?<=[0-9])\.(?![0-9.\\])", ""),
    (r"(?<![0-9.])\.(?=[0-9])", "0."),
)
_BRACES = {r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lbrack": "[", r"\rbrack": "]", r"\lvert": "|", r"\rvert": "|",
           r"\vert": "|", r"\mid": "|", r"\langle": "(", r"\rangle": ")"}  # fmt: skip
_REFUSED = re.compile(r"\\[hv]?(?:phantom|space)" + _COMMAND + r"|^[\s$]*[-+]\s*[-+]")  # invisible content, two signs
_CUT_OFF = re.compile(r"[0-9]\s?\.{2,}[\s$]*$")  # 5...
_SIGN_SPACE = re.compile(r"\\[hv]?phantom\s*(?:[-+]|\{\s*[-+]?\s*\})")  # room for a sign, in matrices
_BRACE_COMMAND = re.compile(r"\\(?:[lr]brace|[lr]brack|[lr]?vert|mid|[lr]angle)" + _COMMAND)
_ARGUMENT = re.compile(r"\\frac\s*|\\sqrt\s*|\\binom\s*")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\s*.", re.DOTALL)
TEXT = re.compile(r"\\(?:text|mbox|hbox|text(?:bf|it|rm|sf|tt|sc|sl|up|normal)|mathrm|operatorname\*?)\s*\{([^{}]*)\}")


def clean(text: str) -> str | None:
    """Rewrite `text` in one spelling of LaTeX.

    None if it is too long, empty, or holds characters that no answer has.
    """
    if len(text) > MAX_CHARS:
        return None
    if not text.isascii():
        text = unicodedata.normalize("NFC", text.translate(_INVISIBLE))
        if any(unicodedata.category(c)[0] == "C" and c not in "\n\t\r" for c in text):
            return None
        text = _ROOT.sub(_root, plain_characters(text)).translate(_REPLACED)
    elif not text.isprintable() and any((c < " " and c not in "\n\t\r") or c == "\x7f" for c in text):
        return None
    if "\\" in text or "{" in text or "~" in text:
        text = _BRACE_COMMAND.sub(lambda m: _BRACES[m[0]], _SIGN_SPACE.sub("", text))
        text = undressed(_NO_ROW.sub(r"\\", _ROWS.sub(ROW, join_groups(text))))
        for pattern, replacement in _FIRST:
            text = pattern.sub(replacement, text)
    if _REFUSED.search(text) is not None:
        return None
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.replace(" USD$ ", "\x01").replace("$", " ").replace("\x01", "$")
    if _CUT_OFF.search(text) is not None:
        return None
    text = text.strip().strip('"`').rstrip(".;:,?* \n").lstrip("*:, \n").strip()
    if re.search(r"\\frac\s*[0-9]\s*[0-9][0-9]", text):
        return None  # \frac123 is 1/2 times 3 to TeX, and 1/23 to others
    if text.count("\\approx") > 1 or text.count("=") > MAX_EQUALS:
        return None
    return _joined(_braced_arguments(text)) or None


def _root(match: re.Match[str]) -> str:
    radicand = match[2] or match[3]
    return _ROOTS[match[1]] + (f"{{{radicand}}}" if radicand else " ")


_GROUPED = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})++(?![0-9])")
_FACTOR = re.compile(
    r"\s*(?:\\(?:pi|sqrt|frac|binom|cdot|times|alpha|beta|theta|lambda|mu|omega)(?![A-Za-z])|[A-Za-z](?![A-Za-z]))"
)
_ENDS = re.compile(r"\s*(?:$|[<>=]|\\[lg]e(?![A-Za-z]))")
_BOUND = re.compile(r"(?:[<>]|\\[lg]e)\s*[-+]?\s*$")


def _joined(text: str) -> str:
    r"""Remove the commas that group digits.

    Before a factor (`20,000\pi`), in braces (`\frac{20,000}{3}`), before zeros that begin no number (`5,000+x`), and in
    a bound (`x > 1,250`). Between brackets a comma separates.
    """
    if "," not in text or _GROUPED.search(text) is None:
        return text
    return _GROUPED.sub(lambda m: m[0].replace(",", "") if _groups(text, m) else m[0], text)


def _groups(text: str, match: re.Match[str]) -> bool:
    inside = _innermost(text[: match.start()])
    if inside == "{":
        return True
    if inside or text[match.end() : match.end() + 1] in (",", "."):
        return False
    if _FACTOR.match(text, match.end()) or ",0" in match[0]:
        return True
    return _BOUND.search(text, 0, match.start()) is not None and _ENDS.match(text, match.end()) is not None


def _innermost(text: str) -> str:
    """Return the last open bracket at the end of `text`; none if it is that of an index, whose commas separate."""
    stack, i = [], 0
    while i < len(text):
        if text[i] == "\\":
            if text[i + 1 : i + 2] == "{":
                stack.append("set")
            elif text[i + 1 : i + 2] == "}" and stack:
                stack.pop()
            i += 2
            continue
        if text[i] in "([{":
            stack.append("index" if text[i] == "{" and text[:i].rstrip().endswith("_") else text[i])
        elif text[i] in ")]}" and stack:
            stack.pop()
        i += 1
    return stack[-1] if stack else ""


def _braced_arguments(text: str) -> str:
    r"""Add braces in `\frac12`, `\frac\pi 2`, `\binom n2` and `\sqrt 2`."""
    if "\\frac" not in text and "\\sqrt" not in text and "\\binom" not in text:
        return text
    out, position = [], 0
    while (match := _ARGUMENT.search(text, position)) is not None:
        out += [text[position : match.start()], match[0].strip()]
        position, wanted = match.end(), 1 if match[0].startswith("\\sqrt") else 2
        if wanted == 1 and text[position : position + 1] == "[":
            continue
        while wanted and position < len(text):
            rest = text[position:]
            token = _TOKEN.match(rest)[0]  # type: ignore[index]
            if token.strip() == "{":
                end = closing(text, position + len(token) - 1)
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


def closing(text: str, start: int) -> int | None:
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
    """Cut `text` at separators outside of all brackets and braces. `[0,1)` counts as a pair, too."""
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
    r"""Return the pair around all of `text`, as "()", "[)" or "{}", and the inside; or two empty strings."""
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
    """Rewrite an expression in one spelling: no space except between digits, no braces around one character."""
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
