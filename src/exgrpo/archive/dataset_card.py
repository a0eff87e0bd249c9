"""The card of an export: what it is, for people, for the Hub, and for whoever imports it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..experience.columns import COLUMNS
from ..log.records import Provenance

CARD = "README.md"

_PRECISION = {
    "float32": "float32; this export rounded nothing (a run that keeps them in float16 had rounded them before)",
    "float16": (
        "float16: 11 significant bits, so that a log-prob x is off by up to |x| / 2048 (one of -10 by up to 0.004, and the "
        "importance ratio of its token by up to 0.4 %); below 6e-5 by up to 3e-8"
    ),
}

_TEXT = """\
---
pretty_name: {quoted}
tags:
- exgrpo
- reasoning
- grpo
configs:
- config_name: trajectories
  default: true
  data_files:
  - split: train
    path: trajectories/*.parquet
- config_name: questions
  data_files:
  - split: train
    path: questions/*.parquet
exgrpo: {metadata}
---

# {title}

Completions that a model generated while it was trained with reinforcement learning (GRPO) on verifiable questions, with the
log-probs of the policy that generated each token: what [ExGRPO](https://arxiv.org/abs/2510.02245) replays. Written by
`exgrpo experience export`.

- {trajectories:,} trajectories of {with_questions:,} questions that were seen, {outcomes}; {tokens:,} tokens.
- Model: {model}. Tokenizer: {tokenizer}. Chat template: {template} (content hashes).
- Reward functions: {rewards}.
{imported}- The run stood at optimizer step {end_step:,}. Log-probs are in {precision}.

## Columns

`trajectories`, one row a completion, oldest first:

| column | meaning |
| --- | --- |
{columns}{text_row}
`questions`, one row a question:

| column | meaning |
| --- | --- |
| `key` | content hash of the prompt's token ids and of every column that reward functions see |
| `prompt` | as in the dataset; messages as JSON |
| `columns` | the other columns of the dataset, as JSON: the answer is among them |
| `problem_type` | if the dataset had one |
| `dataset_row` | its first row in the dataset |
| `successes`, `scorable` | right and scored completions of its latest fresh group |
| `observed_at` | optimizer step of that group |
| `retired` | solved entirely, and taken out of replay: it has no trajectories here |
| `spread` | population standard deviation of the rewards of its latest fresh group; null if not known |

`tokenizers/` holds tokenizers by their hash, for `tokenizers.Tokenizer.from_file`, where the log kept them.

## Use

```python
from datasets import load_dataset

trajectories = load_dataset("PATH/OF/THIS/FOLDER", split="train")
questions = load_dataset("PATH/OF/THIS/FOLDER", "questions", split="train")
```

Train on from it with `experience_from="PATH/OF/THIS/FOLDER"`, or put it into the log of a run:

```bash
exgrpo experience import OUTPUT_DIR PATH/OF/THIS/FOLDER
```

Questions are matched by `key`, so that it takes the same tokenizer, chat template and dataset; what does not match is
reported and left out.
"""

_TEXT_ROW = "| `completion` | the same as text, special tokens included; never tokenise it again, the ids count |\n"


def card(metadata: Mapping[str, Any], text: bool) -> str:
    """Return the contents of the card.

    Args:
        metadata: `format`, `log`, `end_step`, `logp_dtype`, `origin`, `origins`, `questions`, `trajectories`, `failures`,
            `tokens`.
        text: whether completions are there as text.
    """
    origin = metadata["origins"][str(metadata["origin"])]
    rewards = Provenance(rewards=origin["rewards"]).rewards_in_words()
    title = f"Experience of {_line(origin['model']) or 'a model'}"
    return _TEXT.format(
        title=title,
        quoted=json.dumps(title),
        metadata=json.dumps(metadata, ensure_ascii=True, sort_keys=True),
        trajectories=metadata["trajectories"],
        with_questions=metadata["questions"],
        outcomes=_outcomes(metadata["trajectories"], metadata["failures"]),
        tokens=metadata["tokens"],
        model=_line(origin["model"]) or "unnamed",
        tokenizer=f"`{origin['tokenizer'] or 'unknown'}`",
        template=f"`{origin['template'] or 'unknown'}`",
        rewards=_line(rewards) or "unnamed",
        imported="".join(f"- Imported among them: {_line(words)}.\n" for words in _imported(metadata)),
        end_step=metadata["end_step"],
        precision=_PRECISION[metadata["logp_dtype"]],
        columns="".join(f"| `{c.name}` | {c.meaning} |\n" for c in COLUMNS if c.parquet),
        text_row=_TEXT_ROW if text else "",
    )


def _imported(metadata: Mapping[str, Any]) -> list[str]:
    """Describe the data from which imported trajectories came, and the kind of their log-probs."""
    origins = (Provenance.from_json(json.dumps(origin)) for origin in metadata["origins"].values())
    return [words for origin in origins if (words := origin.source_in_words()) is not None]


def _outcomes(trajectories: int, failures: int) -> str:
    return f"{trajectories - failures:,} right and {failures:,} wrong" if failures else "all right"


def _line(text: str) -> str:
    return " ".join(text.split())


def metadata_of_card(path: Path) -> dict[str, Any] | None:
    """Return the mapping `exgrpo` of a card, one line of JSON; None where there is none that can be read."""
    try:
        head = path.read_text(encoding="utf-8").split("\n---", 1)[0]
        found = re.search(r"^exgrpo: (\{.*\})\s*$", head, re.MULTILINE)
        metadata = json.loads(found[1]) if found else None
    except (OSError, ValueError):
        return None
    return metadata if isinstance(metadata, dict) else None
