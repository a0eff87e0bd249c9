"""Read and write what a checkpoint holds beside the host's files.

`exgrpo.json` says where in the experience log the checkpoint stands, and counts what the host forgets. In the middle of a
generation block, `exgrpo-rank-N.safetensors` of each process holds the batch that is being trained on.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import CheckpointError
from ..replay import Prefix, StepPlan
from .batch import ReplayBatch, ScoredBatch
from .row_stats import RowStats

NAME = "exgrpo.json"
FORMAT = 1
BLOCK_FORMAT = 2

Block = list[dict[str, Tensor | None]]


@dataclass
class CheckpointRecord:
    """Contents of `exgrpo.json`.

    Args:
        micro_step: the host's count of micro-batches, from which it knows when to generate.
        world_size: processes.
        generated_tokens: completion tokens so far.
        steps_of_earlier_calls: optimizer steps before this call of `train()`.
        log: position in the experience log (`log`, `branch`, `seq`); None where nothing is kept.
        in_block: whether there are files of a generation block.
        shape: of a block, as the run's options and processes cut it.
        metrics, loss_not_logged, last_logged_step: what waits for the host's next log.
        counts: of what was stored, replayed and retired.
        alarms: what they have seen, where the host keeps no log that they could read again.
        format: of this file.
    """

    micro_step: int
    world_size: int
    generated_tokens: int
    steps_of_earlier_calls: int
    log: dict[str, Any] | None
    in_block: bool
    shape: list[int]
    metrics: dict[str, list[float]] = field(default_factory=dict)
    loss_not_logged: float = 0.0
    last_logged_step: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    alarms: dict[str, Any] | None = None
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write it whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{NAME}"
        values = asdict(self)
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(values | {"check": _check(values)}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> "CheckpointRecord | None":
        """Read it; None in a checkpoint that was saved without it.

        Raises:
            CheckpointError: they cannot be read, or are of a later version.
        """
        path = folder / NAME
        if not path.is_file():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            version, check = values["format"], values.pop("check", None)
            if version > FORMAT:
                raise CheckpointError(
                    f"{path} has format {version}, this version of exgrpo reads formats up to {FORMAT}. Install a later "
                    f"version of exgrpo."
                )
            if check != _check(values):
                raise ValueError("it is not what was written")
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{path} cannot be read ({error}). Resume from another checkpoint (resume_from_checkpoint=PATH)."
            ) from error


def _check(values: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(values, sort_keys=True).encode(), digest_size=8).hexdigest()


def how_to_take_weights(checkpoint: str) -> str:
    """Explain how a new run starts from the weights of a checkpoint alone: sharded ones must be merged first."""
    folder = Path(checkpoint)
    parts = sorted(folder.glob("pytorch_model_fsdp_*/")) or sorted(folder.glob("zero_to_fp32.py"))
    whole = any(path for name in ("*.safetensors", "*model*.bin") for path in folder.glob(name) if not _is_ours(path))
    if whole or not parts:
        return f"from the checkpoint's weights (model={checkpoint!r})"
    tool = f"python {parts[0]} {folder}" if parts[0].suffix else f"accelerate merge-weights {parts[0]}"
    return (
        f"from the checkpoint's weights (they are sharded: merge them with `{tool} FOLDER`, put the model's configuration and "
        "tokenizer beside them, and set model=FOLDER)"
    )


def _is_ours(path: Path) -> bool:
    return path.name.startswith("exgrpo-")


# The block --------------------------------------------------------------------------------------------------------------


def _block_path(folder: Path, rank: int) -> Path:
    return folder / f"exgrpo-rank-{rank}.safetensors"


def can_be_saved(block: Block) -> bool:
    """Return whether a generation batch consists of tensors alone."""
    return all(value is None or isinstance(value, Tensor) for batch in block for value in batch.values())


@dataclass(frozen=True, eq=False)
class SavedStep:
    """The state of an iteration in a checkpoint.

    Args:
        scored: its batch.
        stats: what is known of the rows of the process.
        finished: whether its completions were stored.
    """

    scored: ScoredBatch
    stats: RowStats
    finished: bool


@dataclass
class SavedBlock:
    """A saved generation batch, and its iteration without the stored trajectories."""

    block: Block
    about: dict[str, Any] | None
    arrays: dict[str, Tensor]


def save_block(folder: Path, rank: int, block: Block, step: SavedStep | None) -> None:
    """Save the generation batch of a process, and what is known of it so far."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for place, batch in enumerate(block):
        for name, value in batch.items():
            if value is not None:
                tensors[f"block/{place}/{name}"] = value.detach().cpu().clone().contiguous()
    about: dict[str, Any] = {"names": list(block[0]), "batches": len(block), "format": BLOCK_FORMAT}
    if step is not None:
        about["generation"], arrays = _packed(step)
        tensors |= {f"generation/{name}": value.contiguous() for name, value in arrays.items()}
    save_file(tensors, _block_path(folder, rank), metadata={"exgrpo": json.dumps(about)})


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open the file of a block, with its metadata; errors inside this context name the file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["exgrpo"])
            if "generation" not in about or about.get("format") == BLOCK_FORMAT:
                yield file, about
                return
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): it holds the batch that was being trained on. Resume from another checkpoint "
            "(resume_from_checkpoint=PATH)."
        ) from error
    raise CheckpointError(
        f"{path} holds a batch in format {about.get('format', 1)}, and this version of exgrpo reads format {BLOCK_FORMAT}: the "
        "checkpoint was saved in the middle of a generation by another version. Resume from a checkpoint between two "
        "generations (resume_from_checkpoint=PATH), or with the version that wrote it."
    )


def load_block(folder: Path, rank: int, device: torch.device | str = "cpu") -> SavedBlock:
    """Read the generation batch of a process.

    Raises:
        CheckpointError: the file is not there, is damaged, or is of another version.
    """
    with _opened(_block_path(folder, rank)) as (file, about):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    block: Block = []
    for place in range(about["batches"]):
        batch = {name: tensors.get(f"block/{place}/{name}") for name in about["names"]}
        block.append({name: None if value is None else value.to(device) for name, value in batch.items()})
    arrays = {
        name.removeprefix("generation/"): value for name, value in tensors.items() if name.startswith("generation/")
    }
    return SavedBlock(block, about.get("generation"), arrays)


def _packed(step: SavedStep) -> tuple[dict[str, Any], dict[str, Tensor]]:
    scored, batch, plan = step.scored, step.scored.batch, step.scored.batch.plan
    about = {
        "generation": plan.iteration,
        "step": plan.step,
        "refilled": plan.refilled,
        "idle": plan.idle,
        "replays": [[choice.serial for choice in choices] for choices in plan.replays],
        "replayed": plan.replayed.tolist(),
        "added": [choice.serial for choice in plan.added],
        "added_advantages": [choice.advantage for choice in plan.added],
        "counted": [plan.refused, plan.expired, plan.returned, plan.skipped],
        "prefixes": [[group, prefix.choice.serial, prefix.length] for group, prefix in plan.prefixes.items()],
        "num_generations": batch.num_generations,
        "offset": batch.offset,
        "size": batch.size,
        "stored": [[row, choice.serial, stage] for row, (choice, stage) in batch.stored.items()],
        "to_admit": list(scored.to_admit.items()),
        "finished": step.finished,
    }
    lengths = [len(ids) for ids in scored.completion_ids]
    arrays = {
        "questions": torch.as_tensor(np.asarray(plan.questions, np.int64).copy()),
        "rewards": scored.rewards.detach().cpu().clone(),
        "outcomes": torch.as_tensor(scored.outcomes.copy()),
        "advantages": scored.advantages.detach().cpu().clone(),
        "lengths": torch.tensor(lengths, dtype=torch.int64),
        "ids": torch.tensor([token for ids in scored.completion_ids for token in ids], dtype=torch.int64),
    }
    stats = {f"stats/{name}": torch.as_tensor(values.copy()) for name, values in step.stats.arrays().items()}
    return about, arrays | stats


def serials_in(folder: Path, rank: int) -> set[int]:
    """Return the serials of stored trajectories in a process's saved iteration, without reading tensors.

    Raises:
        CheckpointError: as `load_block` does.
    """
    with _opened(_block_path(folder, rank)) as (_, whole):
        about = whole["generation"]
    in_groups = {s for group in about["replays"] for s in group} | {s for _, s, _ in about["stored"]}
    return in_groups | {*about["added"]} | {s for _, s, _ in about.get("prefixes", ())}


def unpacked(saved: SavedBlock, choices: Mapping[int, Any], device: torch.device | str = "cpu") -> SavedStep:
    """Return a saved iteration; `choices` holds its stored trajectories by serial."""
    about, arrays = saved.about, saved.arrays
    assert about is not None
    replays = tuple(tuple(choices[serial] for serial in group) for group in about["replays"])
    added = tuple(choices[serial] for serial in about["added"])
    given = about.get("added_advantages") or [choice.trajectory.advantage for choice in added]
    added = tuple(replace(choice, advantage=advantage) for choice, advantage in zip(added, given, strict=True))
    prefixes = {group: Prefix(choices[serial], length) for group, serial, length in about.get("prefixes", ())}
    plan = StepPlan(
        about["generation"], about["step"], arrays["questions"].numpy(), replays, np.array(about["replayed"], bool), added,
        about["refilled"], about["idle"], *about["counted"],
    )  # fmt: skip
    plan = replace(plan, prefixes=prefixes)
    stored = {row: (choices[serial], stage) for row, serial, stage in about["stored"]}
    laid_out = ReplayBatch.of_plan(plan, about["num_generations"], about["offset"], about["size"])
    batch = replace(laid_out, stored=stored)
    outcomes = arrays["outcomes"].numpy()
    ids = [part.tolist() for part in torch.split(arrays["ids"], arrays["lengths"].tolist())]
    to_admit = {int(row): finish for row, finish in about["to_admit"]}
    scored = ScoredBatch(
        batch, arrays["rewards"].to(device), outcomes, arrays["advantages"].to(device), ids, to_admit, batch.groups(outcomes)
    )  # fmt: skip
    stats = RowStats.of_arrays(
        {name.removeprefix("stats/"): value.numpy() for name, value in arrays.items() if name.startswith("stats/")}
    )
    return SavedStep(scored, stats, about["finished"])
