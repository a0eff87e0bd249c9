"""Completions from a model in this process, by transformers.

A batch does not depend on which completions are already done.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigurationError
from .generation import batches_of, begins_thought, generate, prompt_token_ids
from .policy import undisturbed
from .sampling import Sampling, as_text
from .store import Answer, Key, StoredQuestion


class LocalModel:
    """A folder, a name on the hub, or a checkpoint of a run; with a LoRA adapter where the folder is one.

    Args:
        name: see above.
        dtype: of the weights; `auto` is as they are stored.
        batch_size: completions generated at once; part of what decides them.
    """

    def __init__(self, name: str, dtype: str = "auto", batch_size: int = 64):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if name.startswith((".", "~", "/")) and not Path(name).expanduser().is_dir():
            raise ConfigurationError(f"There is no model folder {name!r}.")
        path = str(Path(name).expanduser()) if name.startswith("~") else name
        self.tokenizer: Any = AutoTokenizer.from_pretrained(path)
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        self.model.to(_device())
        self.batch_size = batch_size

    def prompt_ids(self, prompts: Sequence[Any]) -> list[list[int]]:
        """Tokenise each prompt: messages through the chat template, or as plain text where the model has none."""
        chats = self.tokenizer.chat_template is not None
        texts = [prompt if chats or isinstance(prompt, str) else as_text(prompt) for prompt in prompts]
        return prompt_token_ids(self.tokenizer, texts)

    def begins_thought(self, prompt: Any) -> bool:
        """Return whether a prompt ends in a thought that it, or the chat template, began."""
        return begins_thought(self.tokenizer, prompt, self.prompt_ids([prompt])[0])

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide its completions."""
        return {
            "batch_size": self.batch_size,
            "chat_template": self.tokenizer.chat_template,
            "dtype": str(self.model.dtype).removeprefix("torch."),
        }

    def answers(
        self, questions: Sequence[StoredQuestion], sampling: Sampling, done: set[Key]
    ) -> Iterator[list[Answer]]:
        """Yield the completions that are not done, a batch at a time.

        Batches are cut from all of them, each with a seed of its own: what a batch gives is the same whatever was done before.
        """
        prompts = self.prompt_ids([question.prompt for question in questions])
        keys = [(i, sample) for i in range(len(questions)) for sample in range(sampling.num_samples)]
        for number, batch in enumerate(batches_of([len(prompts[i]) for i, _ in keys], self.batch_size)):
            rows = [keys[place] for place in batch]
            wanted = [(questions[i].id, sample) for i, sample in rows]
            if done.issuperset(wanted):
                continue
            with undisturbed(self.model, sampling.seed + number):
                completions = generate(
                    self.model,
                    self.tokenizer,
                    [prompts[i] for i, _ in rows],
                    max_new_tokens=sampling.max_tokens,
                    batch_size=len(rows),
                    temperature=sampling.temperature or None,
                    top_p=sampling.top_p,
                )
            yield [
                Answer(*key, completion.text, len(completion.ids), "stop" if completion.finished else "length")
                for key, completion in zip(wanted, completions, strict=True)
                if key not in done
            ]


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
