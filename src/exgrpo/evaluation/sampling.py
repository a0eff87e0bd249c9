"""Sampling settings, and prompts for models without a chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import ConfigurationError


@dataclass(frozen=True)
class Sampling:
    """Sampling settings.

    Args:
        num_samples: completions of each question.
        temperature: 0 is greedy decoding.
        top_p: draw from the likeliest tokens that make up this probability.
        max_tokens: most tokens of a completion.
        seed: of the draws.
    """

    num_samples: int = 1
    temperature: float = 0.6
    top_p: float = 1.0
    max_tokens: int = 8192
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_samples < 1 or self.max_tokens < 1:
            raise ConfigurationError("num_samples and max_tokens must be at least 1.")
        if self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigurationError(
                f"temperature must be at least 0 and top_p in (0, 1], but they are {self.temperature} and {self.top_p}."
            )
        if self.temperature == 0 and self.num_samples > 1:
            raise ConfigurationError(
                f"At temperature 0 all {self.num_samples} samples of a question are the same. Set --temperature, or "
                "--num_samples 1."
            )


def as_text(messages: Sequence[Mapping[str, str]]) -> str:
    """Join messages for a model without a chat template: the user's, then the system prompt's instruction."""
    said = [message["content"] for message in messages if message["role"] != "system"]
    instructions = [message["content"] for message in messages if message["role"] == "system"]
    return "\n\n".join([*said, *instructions]) + ("\n" if instructions else "")
