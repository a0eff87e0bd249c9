"""verl's dataset as questions: what identifies a row, and the token ids of its prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

from ..errors import DatasetError
from .data_format import NOT_CONTENT

MEDIA = ("images", "videos", "audios")


class QuestionRows:
    """Rows of an `RLHFDataset` in the form of a question table.

    `prompt`, `answer` (verl's ground truth), and the rest of `extra_info`, so that a question has the same content as
    under TRL, where these are columns.

    Args:
        dataset: of verl.

    Raises:
        DatasetError: rows with pictures, or without a prompt.
    """

    def __init__(self, dataset: Any):
        self._frame, self._key = dataset.dataframe, dataset.prompt_key
        names = self._frame.column_names
        for name in MEDIA:
            key = getattr(dataset, f"{name[:-1]}_key", name)
            if key in names and any(self._frame[key][: len(self._frame)]):
                raise DatasetError(
                    f"data.train_files have a column {key!r}: trajectories with {name} cannot be stored. Remove the column, or "
                    "set exgrpo.preset=on-policy."
                )
        if self._key not in names:
            raise DatasetError(
                f"data.train_files need a column {self._key!r}, but have {sorted(names)}. Set data.prompt_key."
            )
        self.format = {"type": None}
        self.column_names = list(self[0]) if len(self) else []

    def __len__(self) -> int:
        return len(self._frame)

    def __getitem__(self, place: int | slice | Sequence[int]) -> Any:
        if isinstance(place, int):
            return self._row(self._frame[place])
        columns = self._frame[place]
        rows = [self._row(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
        return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}

    def _row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        extra = {name: value for name, value in (row.get("extra_info") or {}).items() if name not in NOT_CONTENT}
        answer = (row.get("reward_model") or {}).get("ground_truth")
        taken = ("prompt", "answer")
        others = {f"extra_info.{name}" if name in taken else name: value for name, value in extra.items()}
        content = {name: value for name, value in others.items() if value is not None}
        return {"prompt": row[self._key], "answer": answer, **content}


class PromptTokenizer:
    """Turn messages into the token ids that verl's agent loop makes of them.

    Args:
        tokenizer: of verl.
        config: of verl.
        model_type: of the model's configuration, which decides how verl does it.
    """

    def __init__(self, tokenizer: Any, config: Any, model_type: str):
        more = dict(config.data.get("apply_chat_template_kwargs") or {})
        self._builder = create_continuous_token_builder(tokenizer, hf_model_type=model_type, chat_template_kwargs=more)
        self._most = int(config.actor_rollout_ref.rollout.prompt_length)

    def __call__(self, prompts: Sequence[Any]) -> list[list[int]]:
        return [list(self._builder.build_initial_tokens(list(prompt)))[-self._most :] for prompt in prompts]
