"""Texts of questions and options as people read them; nothing here is trusted, and nothing is changed but for its length."""

import json
from typing import Any

CUT = 220
"""Characters of a text in a list."""
LONGEST = 60_000
"""Characters of a text on its own page, before one asks for the rest."""


def cut(text: str, most: int) -> str:
    """Return the beginning of a long text."""
    return text if len(text) <= most else text[:most].rstrip() + " …"


def said(prompt: str | None) -> str:
    """Return a prompt as one line for a list: of messages, the user's last."""
    messages = messages_of(prompt)
    users = [text for role, text in messages if role == "user"] or [text for _, text in messages]
    return " ".join(users[-1].split()) if users else ""


def messages_of(prompt: str | None) -> list[tuple[str, str]]:
    """Return a prompt as messages, each its role and text; a plain text is one without a role."""
    try:
        found = json.loads(prompt or "")
        return [
            (str(m["role"]), m["content"] if isinstance(m["content"], str) else json.dumps(m["content"])) for m in found
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        return [("", prompt)] if prompt else []


def columns_of(text: str | None) -> dict[str, str]:
    """Return the other columns of a question, values as texts."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"": text or ""}
    if not isinstance(found, dict):
        return {"": text or ""}
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in found.items()
    }


def gold_of(columns: dict[str, str]) -> str | None:
    """Return the right answer, as far as a column's name identifies it."""
    return next(
        (columns[name] for name in ("answer", "solution", "gold", "ground_truth", "target") if name in columns), None
    )


def value_text(value: Any) -> str:
    """Return an option's value as text."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
