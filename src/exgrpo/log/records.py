"""Records of a log beside the events: questions, origins, branches, and the state of a planner."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

SAMPLED, FORWARD, UNKNOWN = "sampled", "forward", "none"
"""Where the log-probs of trajectories come from; see `Provenance`."""


def storable(text: str | None) -> str | None:
    r"""Escape lone surrogates as `\\ud800`, so that text can be stored in a log."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True)
class QuestionRecord:
    """A question, for people and for other runs.

    Args:
        key: content hash of the prompt's token ids and of every column that reward functions see.
        dataset_row: its first row.
        prompt: as in the dataset; messages as JSON.
        columns: the other columns, as JSON.
        problem_type: of a column `problem_type`, if there is one.
    """

    key: str
    dataset_row: int | None = None
    prompt: str | None = None
    columns: str | None = None
    problem_type: str | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "columns", "problem_type"):
            object.__setattr__(self, name, storable(getattr(self, name)))


class Questions(Protocol):
    """The questions of a run, numbered as in its buffer."""

    @property
    def keys(self) -> Sequence[str]: ...
    def record(self, question: int) -> QuestionRecord: ...


@dataclass(frozen=True)
class Provenance:
    """Under which circumstances trajectories are made.

    Args:
        model: its name or path.
        architecture: hash of the model's configuration.
        tokenizer: hash of its vocabulary and rules; token ids mean nothing under another.
        template: hash of the chat template.
        rewards: of each reward function its name, version and weight, and which of them decides, above what.
        temperature: of sampling, and of the recorded log-probs.
        num_generations: K.
        questions: hash of all questions in their order.
        versions: of the packages.
        options: of replay and objective.
        embedding: name of the encoder of their texts; empty: none. Vectors of two encoders are never compared.
        source: name of the data that they were imported from; empty: the run's own policy wrote them.
        behaviour_logps: of these, where the log-probs come from: `SAMPLED` with them, a `FORWARD` of the model, or `UNKNOWN`,
            and 0 in their place.
    """

    model: str = ""
    architecture: str = ""
    tokenizer: str = ""
    template: str = ""
    rewards: str = ""
    temperature: float = 1.0
    num_generations: int = 0
    questions: str = ""
    versions: str = ""
    options: str = ""
    embedding: str = ""
    source: str = ""
    behaviour_logps: str = SAMPLED

    def as_json(self) -> str:
        return json.dumps(vars(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Provenance":
        known = json.loads(text)
        return cls(**{name: known[name] for name in cls.__dataclass_fields__ if name in known})

    def differences(self, other: "Provenance") -> list[str]:
        """Name the differences in model, tokenizer, template and reward functions."""
        words = {
            "architecture": "model", "tokenizer": "tokenizer", "template": "chat template", "rewards": "reward functions",
        }  # fmt: skip
        return [word for name, word in words.items() if getattr(self, name) != getattr(other, name)]

    def without_paths(self) -> "Provenance":
        """Return a copy for other machines: the model's and the encoder's names without their paths."""
        return replace(self, model=name_of(self.model), embedding=name_of(self.embedding))

    def source_in_words(self) -> str | None:
        """Describe the source data and the kind of its log-probs; None for a run's own."""
        if not self.source:
            return None
        logps = {
            FORWARD: f"log-probs by a forward of {name_of(self.model) or 'the model'}",
            UNKNOWN: "no behaviour log-probs",
        }
        return f"{self.source} ({logps.get(self.behaviour_logps, 'log-probs as sampled')})"

    def rewards_in_words(self) -> str:
        """Describe the rewards: `math_reward, right above 0.5`; of several functions with their weights."""
        try:
            functions, deciding = json.loads(self.rewards)
            if len(functions) == 1:
                return f"{functions[0]['name']}, right above {deciding['above']:g}"
            names = [f"{function['name']} (weight {function['weight']:g})" for function in functions]
            return f"{', '.join(names)}; right: {deciding['decides']} above {deciding['above']:g}"
        except (ValueError, TypeError, KeyError):
            return " ".join(self.rewards.split())


def name_of(model: str) -> str:
    """Return a model's name without the path on this machine; names on the hub stay as they are."""
    if not re.match(r"[/~.\\]|[A-Za-z]:[/\\]", model):
        return model
    parts = [part for part in re.split(r"[/\\]", model) if part]
    cached = [part.removeprefix("models--").replace("--", "/") for part in parts if part.startswith("models--")]
    number = 2 if parts[-1:] and parts[-1].startswith("checkpoint-") else 1
    return cached[-1] if cached else "/".join(parts[-number:])


@dataclass(frozen=True)
class Position:
    """A place in a log: after the event `seq` of a branch."""

    log: str
    branch: int
    seq: int

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Branch:
    """A run, or a part of one: it sees the events of its parent up to `fork_seq`, and its own."""

    id: int
    parent: int | None
    fork_seq: int | None
    first_seq: int
    first_serial: int
    step: int
    origin: int
    note: str | None
    started: str
    pid: int
    host: str


@dataclass(frozen=True)
class Span:
    """Events of one branch that count: numbers first..last."""

    branch: int
    first: int
    last: int
    first_serial: int
