"""verl's layout of data: what `exgrpo data to-verl` writes and the trainer reads."""

from collections.abc import Iterator, Mapping
from typing import Any

NOT_CONTENT = ("index", "split", "tools_kwargs", "interaction_kwargs", "need_tools_kwargs")
"""Keys of `extra_info` that say where a row stands or how it is rolled out, not what the question is."""


def verl_rows(
    rows: Iterator[Mapping[str, Any]], data_source: str, ability: str, split: str
) -> Iterator[dict[str, Any]]:
    """Yield rows in verl's layout; a prompt that is text becomes the message of a user.

    Args:
        rows: with `prompt`, `answer`, and what else a reward function reads.
        data_source: name of the data, by which verl groups its validation.
        ability: of what kind they are.
        split: named in `extra_info`.
    """
    for index, row in enumerate(rows):
        prompt = row["prompt"]
        others = {name: value for name, value in row.items() if name not in ("prompt", "answer")}
        yield {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
            "ability": ability,
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {"split": split, "index": index, **others},
        }
