r"""Answers that a completion marks as such: by a `\boxed{...}`, or by an `<answer>` element.

All that are marked must be right, so listing candidates earns nothing. A mark that holds nothing, or only dots, quotes the
instruction: it is no answer where another one holds something. A mark that the text around it denies is a refusal.
"""

import re
from typing import NamedTuple

from .completion import box_spans
from .math.units import known_unit

BEFORE, AFTER = 96, 128  # characters around a mark that may deny it
MAX_MARKS = 64  # in all; a text with more states none

_TAG = re.compile(r"<answer>(?![`'\"]|\s{1,8}tags?\b)|</answer>", re.IGNORECASE)
_PLACEHOLDER = re.compile(
    r"(?:[\s.…_?~$*`'\"{}]|\\[\s,;:!_]|\\(?:[lcv]?dots[bcim]?|text|textbf|mathrm|q?quad|square|Box)(?![A-Za-z]))*\Z"
)
_LABEL = re.compile(r"(?:\\[a-z]+|</?answer>|\W)*[A-Za-z]+(?:</answer>|\W)*\Z")

# What surrounds a mark is read without typography.
_TYPOGRAPHY = re.compile(r"\\(?:text\w*|math\w*|mbox|displaystyle|q?quad|[()\[\],;:! ])|[$*_`{}()\[\]\"“”]|</?answer>")
_HINTS = frozenset({
    "no", "not", "nor", "neither", "never", "cannot", "cant", "isnt", "wasnt", "than", "instead", "anything", "far",
    "opposite", "rule", "rules", "ruled", "reject", "rejects", "rejected", "rejecting", "discard", "discards",
    "discarded", "eliminated", "excluded", "wrong", "incorrect", "false", "untrue", "invalid", "mistake", "mistaken",
    "error", "nonsense", "too", "doubt", "deny", "wait", "nope", "hm", "hmm", "hmmm", "oops", "sorry", "scratch",
    "correction", "just", "hardly", "scarcely", "means", "but", "though", "or", "and", "vs", "versus", "ne", "neq", "if",
    "suppose", "assume", "assuming",
})  # fmt: skip
_WORD = re.compile(r"[a-z]+")
_SENTENCE_ENDS = (". ", ".\n", "! ", "!\n", "? ", "?\n", "\n\n")
_LINE_END = re.compile(r"\n(?![ \t]*(?:\$\$|\\\]|[a-z]))")  # a sentence may go on after a formula
_NO = r"(?:(?:not|never)\b|n['’]t\b)"
_ADVERBS = (
    r"(?:\s+(?:actually|really|clearly|obviously|definitely|certainly|surely|simply|just|also|quite|possibly|necessarily"
    r"|at\s+all|in\s+fact))*"
)
_ANSWER = (
    r"(?:(?:final|right|correct|actual|true|valid|real|intended|required|desired|expected|proper)\s+)*"
    r"(?:answers?|solution|result|choice|option)\b"
)
_DENIED_BEFORE = re.compile(
    rf"""(?:
    (?: {_NO} | \b(?:cannot|neither|nor|no\s+longer|anything\s+but|far\s+from|opposite\s+of) )
      (?:\s+(?:be|been|equals?|equal\s+to|give|gives|yield|only|exactly))?{_ADVERBS}
      (?:\s+(?:(?:the|my|our)\s+)?{_ANSWER}\s*:?)?
    | \brather\s+than | (?<!none\s)\bother\s+than | \b(?:instead\s+of|ruled?\s+out|rejects?|rejecting|discards?)
    | \b(?:wrong|incorrect|false)\s+{_ANSWER}(?:\s+(?:is|was|would\s+be))?\s*:?
    | \b{_ANSWER}\s*(?:is\s*)?(?:\\neq?\b|≠)
    | (?:{_NO}\s+(?:true|correct|right|the\s+case)|\b(?:false|wrong|incorrect|untrue))\s+(?:that|to\s+say)\b[^.!?\n]*
    | \bI\s+(?:doubt|deny)\b[^.!?\n]*
    | \bI\s+(?:(?:do|can|could|would)\s*(?:not|n['’]t)|cannot)\s+(?:think|believe|say|agree|accept)\b(?:(?!\bso\b)[^.!?,;:\n])*
    | \b(?:if|suppose|assume|assuming)\b(?:\s+that)?(?:\s+(?:the|our|my))?(?:\s+{_ANSWER})?(?:\s+(?:is|was|were|equals?))?
    )\s*\Z""",
    re.IGNORECASE | re.VERBOSE,
)
_BE = r"(?:is|was|are|were|does|do|did|can|could|would|should|must|may|might|will|has|seems?|looks?)"
_SUBJECT = (
    r"[\s,.;:!–—-]*(?:\b(?:but|though|although|and|however|so)\b[\s,]*)?"
    r"(?:\b(?:which|that|this|it|they|those)(?:['’]s)?\b)?"
)
_NOT = rf"(?:(?:{_BE}{_ADVERBS}\s*)?(?:{_NO}|\b(?:cannot|by\s+no\s+means|hardly|scarcely)\b)|\b(?:isn|wasn|can)t\b)"
_NOT_AT_ALL = rf"{_NOT}{_ADVERBS}(?:\s+(?:to\s+)?(?:be|been|seem|look|like)\b)*{_ADVERBS}"
_DENIED_AFTER = re.compile(
    rf"""{_SUBJECT}\s*(?:
    {_NOT_AT_ALL}\s+(?:(?:the|my|our|your)\s+)?(?:{_ANSWER}|it\b|what\s+(?:we|I|you|is|was)\b)
    | (?:{_BE}\b{_ADVERBS}\s+)?(?:(?:the|an?)\s+)?(?:wrong|incorrect|false|invalid)\s+{_ANSWER}
    | {_BE}\s+(?:be\s+)?{_ADVERBS}\s*(?:rejected|discarded|ruled\s+out|excluded|eliminated)\b
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_WRONG_AFTER = re.compile(
    rf"""{_SUBJECT}\s*(?:
    (?:\b(?:is|was|are|must\s+be|would\s+be|has\s+to\s+be|seems|looks)\b)?{_ADVERBS}
      \s*\b(?:wrong|incorrect|false|invalid|mistaken|a\s+mistake|an\s+error|nonsense|too\s+(?:big|large|small|high|low))\b
    | {_NOT_AT_ALL}\s+(?:right|correct|true|valid)\b
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_RETRACTED = re.compile(
    r"""[\s.!?,;:–—…-]*(?:
    \b(?:wait|no|nope|hm+|oops|sorry|scratch\s+that|just\s+kidding|correction)\b\s*(?:[,.!?:;…–—-]|\Z|\b(?:that|this|it|i|let|wait|no)\b)
    | \b(?:but|though)\s+(?:let\s+me|i\s+(?:need|should|want|have)\s+to|i\s+am\s+not|i['’]m\s+not)\b[^.!?\n]*\Z
    | \b(?:but|though)\s+(?:it|that|this)\s*(?:is|was|does|are)\s*(?:not|n['’]t)\s*[.!;]
    | \b(?:or|and|but)[\s,]*\Z
    )""",
    re.IGNORECASE | re.VERBOSE,
)
# On a later line, behind the last mark: only what leaves no doubt
_CORRECTED = re.compile(
    r"""[\s$.)\]*_\\]{0,12}(?:correction\b|scratch\s+that|i\s+made\s+an?\s+(?:mistake|error)
    |(?:wait|no|oops|sorry|actually|hmm+)\b[^\n]{0,48}?\b(?:mistake|error|wrong|incorrect|not\s+right|should(?:\s+have)?\s+be)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_SPACE = r"(?:[ \t~]|\\[,;:! ]|\\left\s*(?=\())*"  # in a formula
_OPERATION = r"\\(?:sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pm|mp|cdot|times|div|neg|lnot|overline|bar|lfloor|lceil)"
_ATTACHED_BEFORE = re.compile(
    rf"""(?:
    [0-9^/+] | (?<!-)-(?:\\[,;:!]|\\left\s*)*\(? | ~~ | \\(?:[bx]?cancel|sout)\s*\{{ | <(?:s|del|strike)>\s*
    | [=$({{]\s?-{_SPACE}\(?{_SPACE} | \$[^$\n]*[0-9)}}]\s*-{_SPACE}
    | [0-9A-Za-z)}}]\s*\+{_SPACE} | [0-9)}}]\s*(?<!\*)\*{_SPACE} | \b(?:minus|negative)\s+
    | {_OPERATION}{_SPACE}(?:\[[^\[\]]*\]\s*)?[{{(]?{_SPACE} | \\[dt]?frac\s*(?:\{{[^{{}}]*\}}\s*)?\{{\s* | [\^_]\s*\{{\s*
    | [(\[{{]\s*-?[0-9][0-9.]*\s*,\s*
    )\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_BEFORE = frozenset("0123456789^/+-~{>([*,!:;\\}")  # what may end one of these, but for letters and space
_ATTACHED_AFTER = re.compile(
    r"""[\^_] | [0-9] | [A-Za-z](?![A-Za-z]) | \s*[/+]\s*[0-9\\] | [ \t]*-[ \t]*[0-9] | :[0-9]
    | (?:[ \t~]|\\[,;:! ])*\\(?:cdot|times|div|pi|sqrt|[dt]?frac|pm|mp)(?![A-Za-z])""",
    re.VERBOSE,
)
# What stands behind a box and belongs to it: a sign, a scale or a unit
_BEHIND = re.compile(
    r"""(?:[ \t~$]|\\[,;:! )])*(?:
    (?P<sign>\\?%|\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})|\\degree(?![A-Za-z])|°)
    | (?P<word>percent|per\ cent|hundred|thousand|million|billion|trillion|dozen)\b
    | \\(?:text|mathrm|textrm|mbox|textbf|rm)\s*\{(?P<text>[^{}]{1,40})\}(?P<power>\^\s*\{?[23]\}?)?
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_SCALE = re.compile(r"\s*(?:percent|per cent|hundred|thousand|million|billion|trillion|dozen|[kMB])\b")
# Another answer beside a box: ", 73", " or B"
_BESIDE = re.compile(
    r"""(?:[ \t$]|\\[\])])*(?:,[ \t]*(?:(?:or|and)\b)?|;|\b(?:or|and)\b)[ \t]*(?:\\\(|\$|\*\*)?[ \t]*(?P<other>
    [-+]?(?:[0-9][0-9.,]*[0-9]|[0-9])(?:/[0-9]+)?(?:[ \t]?\\?%)? | [-+]?\\[dt]?frac\{[0-9]+\}\{[0-9]+\}
    | \(?[A-J]\)?(?![A-Za-z0-9])
    )(?:\\[)\]}]|[ \t$)\]}.!*])*(?:\n|\Z|[,;]|\b(?:or|and)\b)""",
    re.VERBOSE,
)
_NOTHING_BEHIND = frozenset(["", ".", ",", "\n", ")", "?", "*"])
_ENDS_OF_NUMBERS = frozenset("0123456789})%")


class Mark(NamedTuple):
    """The content of a box or of an `<answer>` element, without the space around it."""

    content: str
    is_element: bool


def marks(text: str) -> list[Mark] | None:
    r"""Return the different answers that `text` marks, in order; empty if it marks none.

    None if there can be no answer: a box or an element was left open, which was cut; all are empty; or one is denied, or
    a part of something else (`-\boxed{2}`). An element left open is overlooked where boxes are there, which are whole.
    """
    boxed = box_spans(text)
    if boxed is None:
        return None
    elements, is_cut = _elements(text)
    if len(boxed) + len(elements) > MAX_MARKS:
        return None
    if elements:
        elements = [e for e in elements if not any(b[2] <= e[0] and e[1] <= b[3] for b in boxed)]
        boxed = [b for b in boxed if not any(e[2] <= b[0] and b[1] <= e[3] for e in elements)]
    if not boxed and not elements:
        return None if is_cut else []
    spans = [(*b, False) for b in boxed] + [(*e, True) for e in elements]
    if len(spans) > 1:
        spans.sort()
    found: dict[Mark, None] = {}
    for start, end, first, last, is_element in spans:
        content = text[first:last].strip()
        if content[:1] == "<":
            content = _untagged(content)
        if (not content[:1].isalnum() and _PLACEHOLDER.match(content)) or (
            is_element and content.casefold() in ("and", "or")
        ):
            continue
        if not is_element and text[end : end + 1] not in _NOTHING_BEHIND:
            content, end = _with_what_belongs(text, content, end)
        if is_denied(text, start, end) or _is_attached(text, start, end):
            return None
        found[Mark(content, is_element)] = None
        beside = _BESIDE.match(text, end) if end < len(text) else None
        if beside is not None and beside["other"].strip("()").isalpha() == bool(_LABEL.match(text, start, end)):
            found[Mark(beside["other"], False)] = None
    last = spans[-1][1]
    if last < len(text) and _CORRECTED.match(text, last):
        return None
    return [*found] or None


def after_hashes(text: str, limit: int) -> str:
    """Return the text after the last `####` that has any, on its line or the next.

    At most one more than `limit` characters.
    """
    end = len(text)
    while (start := text.rfind("####", 0, end)) >= 0:
        stated = text[start + 4 : min(end, start + limit + 5)].lstrip("# \t\r\n").partition("\n")[0].rstrip("# \t\r")
        if stated and not _PLACEHOLDER.match(stated):
            return stated
        end = start
    return ""


def elements(text: str) -> list[str] | None:
    """Return the distinct contents of all non-empty `<answer>` elements; None if one is left open, or all are empty."""
    found, is_cut = _elements(text)
    held = dict.fromkeys(text[first:last].strip() for _, _, first, last in found)
    contents = [content for content in held if not _PLACEHOLDER.match(content)]
    return None if is_cut or (found and not contents) else contents


def _elements(text: str) -> tuple[list[tuple[int, int, int, int]], bool]:
    """Return where they stand, as `box_spans` does, and whether one is left open."""
    if "<" not in text:
        return [], False
    found, opened = [], None
    for tag in _TAG.finditer(text):
        if tag.group()[1] != "/":
            opened = tag
        elif opened is not None:
            found.append((opened.start(), tag.end(), opened.end(), tag.start()))
            opened = None
    return found, opened is not None


def _untagged(content: str) -> str:
    if content[:8].casefold() == "<answer>" and content[-9:].casefold() == "</answer>":
        return content[8:-9].strip()
    return content


def is_denied(text: str, start: int, end: int) -> bool:
    """Return whether the words around `text[start:end]` take it back: "is not the answer", "Wait, no"."""
    before = text[max(0, start - BEFORE) : start]
    before = before[max(map(before.rfind, _SENTENCE_ENDS)) + 1 :]
    if _may_deny(before) and _DENIED_BEFORE.search(_TYPOGRAPHY.sub(" ", before).rstrip()):
        return True
    if end == len(text):
        return False
    line = _LINE_END.split(text[end : end + AFTER], maxsplit=1)[0]
    if not _may_deny(line):
        return False
    is_last = not text[end + len(line) :].strip()
    after = _TYPOGRAPHY.sub(" ", line) + ("" if is_last else " .")
    if _DENIED_AFTER.match(after) or _RETRACTED.match(after):
        return True
    if _WRONG_AFTER.match(after) is None:
        return False
    return end - start > AFTER or _LABEL.match(text, start, end) is None  # "(C) is wrong" may be what was asked for


def _with_what_belongs(text: str, content: str, end: int) -> tuple[str, int]:
    r"""Return a number with the sign, scale or unit that follows its box, and where they end: `\boxed{5}\%`."""
    behind = _BEHIND.match(text, end) if content[-1:] in _ENDS_OF_NUMBERS else None
    if behind is None:
        return content, end
    if (words := behind["text"]) is None:
        return f"{content}{behind['sign'] or ' ' + behind['word']}", behind.end()
    if known_unit(words) or _SCALE.match(words):
        return f"{content}\\text{{{words}}}{behind['power'] or ''}", behind.end()
    return content, end


def _is_attached(text: str, start: int, end: int) -> bool:
    """Return whether `text[start:end]` is a part of something else, or struck out."""
    before = text[max(0, start - 32) : start]
    last = before.rstrip(" \t")[-1:]
    if last.isalpha():
        may_be = "\\" in before or "minus" in before or "negative" in before
    else:
        may_be = last in _BEFORE
    if may_be and _ATTACHED_BEFORE.search(before):
        return True
    after = _ATTACHED_AFTER.match(text, end) if end < len(text) else None
    return after is not None and not (after.group()[:2] == " -" and _LABEL.match(text, start, end))  # "C - 5 km"


def _may_deny(words: str) -> bool:
    """Return whether words deserve a closer look."""
    if not words.strip(" .$*\n"):
        return False
    words = words.lower()
    return not _HINTS.isdisjoint(_WORD.findall(words)) or any(mark in words for mark in ("n't", "n’t", "≠"))
