"""Exchange between a trainer and its verifiers beside the rewards."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from trl import GRPOTrainer

from ..rewards.completion import answer_texts, opens_thinking

logger = logging.getLogger(__name__)

TAIL = 512  # tokens of a prompt in which a thought may have begun


def begun_thoughts(tokenizer: Any, prompts: Sequence[Any], prompt_ids: Sequence[Sequence[int]]) -> list[bool]:
    """Return for each prompt whether its tokens begin a thought without ending it, as some chat templates do.

    Tokens are read as completions are, without special ones. Where a tokenizer takes completions apart by a template of
    its own, thoughts are no part of their text.
    """
    if getattr(tokenizer, "response_template", None) is not None:
        return [False] * len(prompts)
    known: dict[tuple[int, ...], bool] = {}
    for ids in prompt_ids:
        tail = tuple(ids[-TAIL:])
        if tail not in known:
            known[tail] = opens_thinking(tokenizer.decode(list(tail), skip_special_tokens=True))
    return [known[tuple(ids[-TAIL:])] for ids in prompt_ids]


class UnansweredReport:
    """Count fresh completions in which the verifier can find no answer; warn at once when that is all of them.

    Only a reward function that says where it looks is asked: see `looks_for`. Of several the one that decides what is right,
    or else the first.
    """

    def __init__(self, functions: Sequence[Any], names: Sequence[str], decides: int):
        order = [decides, *(i for i in range(len(functions)) if i != decides)]
        self._index = next((i for i in order if hasattr(functions[i], "finds")), None)
        self._function = None if self._index is None else functions[self._index]
        self._name = "" if self._index is None else names[self._index]
        self._said = False

    def __call__(
        self, trainer: GRPOTrainer, prompts: Any, completions: Any, completion_ids: Any, stored: set[int]
    ) -> float | None:
        """Return the share without an answer, the same on every process; None where unknown.

        stored: local rows that are not fresh.
        """
        if self._function is None:
            return None
        rows = [row for row in range(len(completions)) if row not in stored]
        texts = answer_texts(prompts, completions)
        answered = sum(bool(self._function.finds(texts[row])) for row in rows)
        cut = sum(not completion_ids[row] or completion_ids[row][-1] not in trainer.eos_token_ids for row in rows)
        counts = torch.tensor([[len(rows), answered, cut]], device=trainer.accelerator.device)
        fresh, answered, cut = trainer.accelerator.gather(counts).sum(0).tolist()
        if not fresh:
            return None
        if not answered and not self._said and trainer.accelerator.is_main_process:
            logger.warning(
                "0 of %d completions of the generation at step %d have an answer where %s looks: %s. %d of them were cut at "
                "max_completion_length=%s. All count as wrong: ask for such a form in the prompt, or choose a reward function "
                "that reads what the model writes%s.",
                fresh,
                trainer.state.global_step,
                self._name,
                self._function.where,
                cut,
                trainer.max_completion_length,
                f" (the first one ends with {_end_of(completions[rows[0]])})" if rows else "",
            )
        self._said = not answered
        return float(1 - answered / fresh)


def _end_of(completion: Any) -> str:
    text = completion if isinstance(completion, str) else str(completion[-1].get("content")) if completion else ""
    return repr(text[-80:])
