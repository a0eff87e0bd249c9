r"""Typography that means nothing in an answer, removed before reading: fonts, colours, sizes, spaces, odd characters.

`plain_characters` writes the digits and signs of Unicode in ASCII, `join_groups` joins the groups of digits that are nothing
else, `undressed` is one pass over the tokens of LaTeX. None of them computes anything; all take linear time.
"""

import re
import unicodedata


class _Characters(dict[int, str]):
    """ASCII, or LaTeX, for characters that differ from it in nothing but their looks."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        digit = unicodedata.decimal(char, None)
        if digit is not None:
            char = str(digit)
        elif "\uff01" <= char <= "\uff5e" or "\U0001d400" <= char <= "\U0001d7ff":  # full width, mathematical alphabets
            char = unicodedata.normalize("NFKC", char)
        self[code] = char
        return char


_SUPER, _SUB = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑₒₓᵢⱼₖₘₙₚₜ"
_RAISED = str.maketrans(_SUPER + _SUB, "0123456789+-()ni" + "0123456789+-()aeoxijkmnpt")
_ASCII = _Characters({
    **{ord(dash): "-" for dash in "−–‐‑‒﹣－"}, ord("⁄"): "/", ord("∕"): "/", ord("、"): ", ", ord("，"): ", ", ord("﹐"): ",",
    ord("。"): ".", ord("．"): ".", ord("｡"): ".", ord("；"): "; ", ord("∶"): ":", ord("："): ":", ord("٪"): "%", ord("٬"): ",",
    ord("٫"): ".", ord("｛"): r"\{", ord("｝"): r"\}", ord("【"): "[",
    **{ord(quote): '"' for quote in "「」『』"},
    ord("】"): "]", ord("〔"): "(", ord("〕"): ")", ord("\u3000"): " ", ord("￥"): "¥", ord("﹪"): "%", ord("＼"): "＼",
    ord("㎝"): " cm", ord("㎜"): " mm", ord("㎞"): " km", ord("㎏"): " kg", ord("℃"): r"^\circ C", ord("℉"): r"^\circ F",
})  # fmt: skip
_VULGAR = re.compile("[¼-¾⅐-⅞↉]")
_STACKED = re.compile(rf"([{_SUPER[:10]}]{{1,20}})[⁄/]([{_SUB[:10]}]{{1,20}})")
_INDICES = re.compile(rf"([{_SUPER}]{{1,20}})|([{_SUB}]{{1,20}})")
_GROUPS = re.compile(
    r"(?<![0-9.])(?<!\{,\})(?:(?<!,)|(?!0))[0-9]{1,3}"
    r"(?:(?:\{,\}|,\\!|\\[, ]|[\u00a0\u2009\u202f])(?:\\!|\s)*[0-9]{3})++(?![0-9])"
)


def plain_characters(text: str) -> str:
    """Rewrite `text` in ASCII where a character is only another look.

    Digits of any script, full-width and CJK signs, raised and lowered digits, fractions in one character.
    """
    if text.isascii():
        return text
    text = _STACKED.sub(lambda m: f"\\frac{{{m[1]}}}{{{m[2]}}}".translate(_RAISED), text)
    text = _VULGAR.sub(_vulgar, text)
    text = _INDICES.sub(lambda m: f"{'^' if m[1] else '_'}{{{m[0].translate(_RAISED)}}}", text)
    return text.translate(_ASCII)


def _vulgar(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    fraction = f"\\frac{{{top}}}{{{bottom}}}"
    return f"{{{fraction}}}" if match.string[: match.start()].endswith("^") else fraction


def join_groups(text: str) -> str:
    r"""Remove what only groups digits: `{,}`, `,\!`, thin spaces before three digits. A plain comma may part."""
    if "\\" not in text and "{" not in text and text.isascii():
        return text
    return _GROUPS.sub(lambda m: re.sub(r"[^0-9]", "", m[0]), text)


# LaTeX --------------------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"\S+")
_SPACES = frozenset(
    _WORD.findall(
        """quad qquad enspace enskip thinspace medspace thickspace nobreakspace space hfill hfil hss , ; : > checkmark
        therefore blacksquare"""
    )
) | {" ", "\n", "\t"}
_SILENT = frozenset(
    _WORD.findall(
        """! / - negthinspace negmedspace negthickspace left right middle big Big bigg Bigg bigl Bigl biggl Biggl bigr Bigr
        biggr Biggr bigm Bigm biggm Biggm displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits strut mathstrut
        nonumber notag allowbreak nobreak relax protect bf bfseries rm rmfamily it itshape sf sffamily tt ttfamily sc scshape
        sl slshape em cal mdseries upshape normalfont boldmath unboldmath tiny scriptsize footnotesize small normalsize large
        Large LARGE huge Huge mathbf mathit mathcal mathsf mathtt mathfrak mathscr mathnormal bm boldsymbol pmb bold vec
        overrightarrow underline uline emph ensuremath mathop mathord mathbin mathrel mathopen mathclose mathpunct mathinner
        smash"""
    )
)
_TEXTS = r"text|mbox|hbox|textbf|textit|textrm|textsf|texttt|textsc|textsl|textup|textnormal|mathrm|operatorname\*?"
_ARGUMENTS = {"frac": 2, "dfrac": 2, "tfrac": 2, "cfrac": 2, "binom": 2, "sqrt": 1}
_MANY = 9  # of a command that is not known: all braces behind it are its own
_DRESSED = re.compile(r"[{}~]|\\[^%$]")
_LATEX = re.compile(
    rf"""
    \\(?P<text>{_TEXTS})\s*\{{(?P<words>[^{{}}\\]*)\}}
    |\\(?P<loose>{_TEXTS})(?![A-Za-z])
    |\\(?:text|f)?color(?P<box>box)?(?![A-Za-z])\s*(?P<model>\[[A-Za-z]{{1,8}}\])?\s*(?:\{{(?P<colour>[^{{}}]{{1,40}})\}})(?(box)(?:\s*\{{[A-Za-z0-9!]{{1,40}}\}}(?=\s*\{{))?)
    |\\[hm](?:space\*?\s*\{{|skip\s*|kern\s*)\s*-?[0-9.]{{1,6}}\s*(?:em|ex|pt|mm|cm|in|mu|sp|pc)\s*(?P<length>\}}?)
    |\\kern\s*-?[0-9.]{{1,6}}\s*(?:em|ex|pt|mm|cm|in|mu)
    |\\(?:left|right)\s*(?P<null>\.)
    |\\(?P<part>begin|end)\s*\{{(?P<kind>[A-Za-z]{{1,16}})\*?\}}(?:\s*(?:\[[lcr]\]|\{{(?:[clr|@!.\s]|\{{\}})*\}}))?
    |\\sqrt\s*(?P<index>\[[^\[\]{{}}]*\])
    |\\(?P<real>mathbf|mathrm|mathbb|Bbb)\s*(?:\{{\s*R\s*\}}|R(?![A-Za-z]))
    |\\(?P<command>[A-Za-z]+|.)
    |(?P<space>[~\s]+)
    |(?P<char>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_KINDS = {"smallmatrix": "matrix", "psmallmatrix": "pmatrix", "bsmallmatrix": "bmatrix", "vsmallmatrix": "vmatrix",
          "array": "matrix"}  # fmt: skip
_LAYOUTS = frozenset(_WORD.findall("align aligned equation gather gathered split math displaymath multline center"))
_COLOUR = re.compile(r"[A-Za-z][A-Za-z0-9!-]*|#?[0-9A-Fa-f]{3,8}")
_UNSEEN = re.compile(
    r"white(?:!.*)?|transparent|none|#?f{3,8}|(?:1(?:\.0*)?|255)(?:\s*,\s*(?:1(?:\.0*)?|255)){0,2}|0(?:\.0*)?(?:\s*,\s*0(?:\.0*)?){3}",
    re.IGNORECASE,
)
_ATOM = re.compile(
    r"\s*(?:[A-Za-z]?|[-+=<>:]|\^\\circ\s?|\\?%|[0-9]+(?:\.[0-9]+)?|\\[dt]?frac\{[^{}]*\}\{[^{}]*\}|\\sqrt\{[^{}]*\})\s*"
)
_BEFORE_INDEX = re.compile(r"\s*[\^_]")
GROUP = "\x06"  # stands for a comma in braces that groups no thousands


class _Group:
    """The content of two braces, while it is read."""

    __slots__ = ("argument", "awaited", "command", "infix", "out")

    def __init__(self, argument: bool = False):
        self.out: list[str] = []
        self.argument = argument  # of a command, or an index: its braces stay
        self.awaited = 0  # how many groups that follow are arguments
        self.command = False  # whether a control word is the last token: a letter needs a space behind it
        self.infix: tuple[str, list[str]] | None = None  # \over or \choose, and what stood before

    def add(self, token: str, command: bool = False) -> None:
        if self.command and token[:1].isalpha():
            self.out.append(" ")
        self.out.append(token)
        self.command = command

    def content(self) -> str:
        text = "".join(self.out)
        if self.infix is None:
            return text
        name, before = self.infix
        top = "".join(before)
        if any(
            re.search(r"[=<>,&]", side) or side.count("(") != side.count(")") or not side.strip()
            for side in (top, text)
        ):
            return f"{top}\\{'over' if name == 'frac' else 'choose'} {text}"
        return f"\\{name}{{{top.strip()}}}{{{text.strip()}}}"


def undressed(text: str) -> str:
    r"""Strip LaTeX that says nothing: fonts, colours, sizes, spaces, layouts, braces around one number or letter.

    Infix `\over` and `\choose` become `\frac` and `\binom`, all environments of matrices `matrix` or what their brackets say.
    What is coloured so that nobody sees it stays as it is, hence nothing that can be read.
    """
    if _DRESSED.search(text) is None:
        return text
    stack = [_Group()]
    for match in _LATEX.finditer(text):
        kind, group = match.lastgroup, stack[-1]
        if kind == "char":
            char = match["char"]
            if char == "{":
                stack.append(_Group(argument=group.awaited > 0))
                group.awaited = max(0, group.awaited - 1)
            elif char == "}":
                if len(stack) == 1:
                    group.add(char)
                else:
                    _close(stack, text[match.end() : match.end() + 2])
            else:
                group.add(char)
                group.awaited = 1 if char in "^_" else group.awaited - 1 if group.awaited in (1, 2) else 0
        elif kind == "space":
            if group.out and group.out[-1] != " ":
                group.out.append(" ")
                group.command = False
        elif kind == "command":
            name = match["command"]
            if name in _SPACES:
                group.out.append(" ")
                group.command = False
            elif name in _SILENT:
                continue
            elif name in ("over", "choose") and group.infix is None:
                group.infix, group.out = ("frac" if name == "over" else "binom", group.out), []
                group.command = False
            else:
                name = "binom" if name in ("tbinom", "dbinom") else name
                word = name[0].isalpha()
                group.add(f"\\{name}", command=word)
                group.awaited = _ARGUMENTS.get(name, _MANY) if word else 0
        elif match["text"] is not None:
            group.add(match[0])
            group.awaited = max(0, group.awaited - 1)
        elif match["part"] is not None:
            if match["kind"] in _LAYOUTS:
                group.out.append(" ")
            else:
                group.add(f"\\{match['part']}{{{_KINDS.get(match['kind'], match['kind'])}}}")
            group.awaited = 0
        elif match["index"] is not None:
            group.add(f"\\sqrt{match['index']}")
            group.awaited = 1
        elif match["real"] is not None:
            group.add(r"\mathbb{R}")
            group.awaited = 0
        elif match["colour"] is not None:
            colour = match["colour"].strip()
            if _UNSEEN.fullmatch(colour) or (match["model"] is None and _COLOUR.fullmatch(colour) is None):
                group.add(match[0])
        elif match["loose"] is None and match["null"] is None:  # a length
            if match["length"] is not None and (match[0].rstrip().endswith("}") != ("{" in match[0])):
                group.add(match[0])
            else:
                group.out.append(" ")
                group.command = False
    while len(stack) > 1:  # left open
        opened = stack.pop()
        stack[-1].add("{" + opened.content())
    return stack[0].content()


def _close(stack: list[_Group], following: str) -> None:
    group = stack.pop()
    content, outer = group.content(), stack[-1]
    if group.argument:
        outer.add(f"{{{content}}}")
    elif content == ",":
        outer.add(GROUP)
    elif (_ATOM.fullmatch(content) or (group.infix and content[:2] in ("\\f", "\\b"))) and not _BEFORE_INDEX.match(
        following
    ):
        outer.add(content.strip())
    else:
        outer.add(f"{{{content}}}")
