r"""The place of a completion's final answer: `final_answers`. Pure text, linear time, nothing is computed.

It is looked for after `</think>`, in this order; the first that is there decides:

1. the `\boxed{...}` and the `<answer>` elements: all of them, each of which must then be right (see `marks`);
2. what follows the last `####` (the form of GSM8K) that anything follows, to the end of the line;
3. what follows the last "answer is" or "answer:", to the end of the sentence; nothing on its line may take it back;
4. what follows the last `=` of the last line, if it ends the text;
5. the whole text, if it is one short line.

The last two are guesses, and `strict` does without them.
"""

import re

from ..marks import after_hashes, is_denied, marks
from ..number import parse_number

MAX_CHARS = 512  # of one answer; longer ones are not read
MAX_BOXES = 4  # with different contents

_ANSWER_IS = re.compile(
    r"\banswer\W{0,3}(?:\s?is\b|[:=])[\s:*]{0,8}|^[#* ]{0,6}(?:final )?answer[* ]{0,4}$\s{0,8}", re.IGNORECASE | re.M
)
_OPENING = re.compile(
    r"(?:(?:thus|therefore|so|as follows|given by|equal to|simply|just|exactly|approximately|about|indeed|clearly|then)\b"
    r"[\s:,]*)+",
    re.IGNORECASE,
)
_PROSE = re.compile(r"[,;]?\s+(?:because|since|as(?!\s+[0-9])|which|where)\b")
_NOT = re.compile(r"not\b", re.IGNORECASE)
_LISTS = re.compile(
    r"[,;|]|\b(?:or|and)\b|\\text\s*\{\s*(?:or|and)|\\(?:lor|vee|land|wedge)(?![A-Za-z])|[0-9)}]\s*[\s/]\s*[A-Za-z](?:_\w)?\s*\Z"
)
_SUPPOSED = re.compile(r"\b(?:not|never|if|unless|suppose|assume|assuming)\b|n['’]t\b", re.IGNORECASE)
_WORD = re.compile(r"(?<![\\A-Za-z{])[A-Za-z]{3,}")
_DOUBT = re.compile(
    r"\b(?:wait|hmm+|no|actually|sorry|i\s+mean|instead|rather|wrong|incorrect|correction|maybe|perhaps|possibly"
    r"|alternatively|(?:may|might|could)\s+(?:also\s+)?be|not\s+sure|or\s+(?:two|three|four|five|six|seven|eight|nine|ten|[0-9]+))\b",
    re.IGNORECASE,
)
_STOPS, _FACTORS = ".!?", "0123456789)}"


def final_answers(text: str, strict: bool = False) -> list[str]:
    """Return the answers that `text` commits itself to, all of which must be right; empty if none can be read."""
    introduced = _introduced(text)
    return introduced if introduced is not None else [] if strict else _at_the_end(text)


def _introduced(text: str) -> list[str] | None:
    """Return the answers found by the first three rules; None if they do not apply."""
    found = marks(text)
    if found != []:
        if found and len(found) == 1 and not found[0].is_element:
            return [found[0].content] if len(found[0].content) <= MAX_CHARS else []
        contents: dict[str, None] = {}
        for mark in found or ():
            inner = _introduced(mark.content) if mark.is_element else None
            if inner == []:
                return []
            contents.update(dict.fromkeys([mark.content] if inner is None else inner))
        return [*contents] if len(contents) <= MAX_BOXES and all(0 < len(c) <= MAX_CHARS for c in contents) else []
    stated = after_hashes(text, MAX_CHARS)
    if 0 < len(stated) <= MAX_CHARS and (parse_number(stated) is not None or _WORD.search(stated) is None):
        return [stated]  # otherwise it was a heading
    last = None
    for match in _ANSWER_IS.finditer(text):
        last = match
    if last is None:
        return None
    return [] if is_denied(text, last.end(), last.end()) else _stated(text[last.end() :])


def _stated(text: str) -> list[str]:
    text = text.lstrip()
    if (opening := _OPENING.match(text)) is not None:
        text = text[opening.end() :]
    end = sentence_end(text[: MAX_CHARS + 2])
    if end > MAX_CHARS:
        return []
    clause = text[:end].strip()
    if _NOT.match(clause):
        return []
    prose = _PROSE.search(clause)
    clause = clause[: prose.start()] if prose else clause
    if _DOUBT.search(text[len(clause) :].partition("\n")[0]):  # on the line, a later sentence included
        return []
    return [clause] if clause else []


def sentence_end(text: str) -> int:
    """Return where the first sentence of `text` ends.

    At `.` before a space, or a line break, outside of braces and formulas.
    """
    depth, formula, i = 0, False, 0
    while i < len(text):
        char = text[i]
        if char == "\\":
            following = text[i + 1 : i + 2]
            depth = max(0, depth + (following in ("(", "[", "{")) - (following in (")", "]", "}")))
            i += 2
            continue
        if char == "$":
            formula = not formula
            if text[i + 1 : i + 2] == "$":
                i += 1
        elif char in "{}":
            depth = max(0, depth + (1 if char == "{" else -1))
        elif (
            depth == 0
            and not formula
            and (
                char == "\n"
                or (
                    char in _STOPS
                    and not (char == "!" and i and text[i - 1] in _FACTORS and text[i - 2 : i] != "\\)")
                    and (i + 1 == len(text) or text[i + 1].isspace() or text[i + 1] in "*\"'")
                )
            )
        ):
            return i
        i += 1
    if formula or depth:  # a formula left open: as plain text
        stop = re.search(r"\n|[.!?](?=\s|$)", text)
        return stop.start() if stop else len(text)
    return len(text)


def _at_the_end(text: str) -> list[str]:
    stripped = text.strip()
    line = stripped[max(stripped.rfind("\n") + 1, len(stripped) - MAX_CHARS - 1) :].strip()
    if not line or len(line) > MAX_CHARS:
        return []
    if line == stripped and "=" not in line:
        return [line]
    head, equals, tail = line.rpartition("=")
    if not equals or head.endswith(("\\", "<", ">", "!", ":")):
        return []
    tail = tail.strip()
    between = head.partition("=")[2]
    if not tail or sentence_end(tail.rstrip(".!? ") + ". ") != len(tail.rstrip(".!? ")) or _LISTS.search(between):
        return []
    if _SUPPOSED.search(head):
        return []
    return [tail]
