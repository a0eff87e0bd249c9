"""Read and write what a checkpoint holds beside the host's files.

`exgrpo.json` says where in the experience log the checkpoint stands, and counts what the host forgets. In the middle of a
generation block, `exgrpo-rank-N.safetensors` of each process holds the batch that is being learned from.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import CheckpointError
from ..replay.plan import StepPlan
from .batch import Generation

NAME = "exgrpo.json"
FORMAT = 1

Block = list[dict[str, Tensor | None]]


@dataclass
class CheckpointFacts:
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
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".{NAME}"
        values = asdict(self)
        with open(beside, "w", encoding="utf-8") as file:
            json.dump(values | {"check": _check(values)}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, folder / NAME)

    @classmethod
    def read(cls, folder: Path) -> "CheckpointFacts | None":
        """None in a checkpoint that was saved without them.

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
                    f"{path} has format {version}, this exgrpo reads formats up to {FORMAT}. Install a later exgrpo."
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


# The block --------------------------------------------------------------------------------------------------------------


def _block_path(folder: Path, rank: int) -> Path:
    return folder / f"exgrpo-rank-{rank}.safetensors"


def can_be_saved(block: Block) -> bool:
    """Whether a generation batch consists of tensors alone."""
    return all(value is None or isinstance(value, Tensor) for batch in block for value in batch.values())


def save_block(folder: Path, rank: int, block: Block, generation: Generation | None) -> None:
    """Write the generation batch of a process, and what is known of it so far."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for place, batch in enumerate(block):
        for name, value in batch.items():
            if value is not None:
                tensors[f"block/{place}/{name}"] = value.detach().cpu().clone().contiguous()
    about: dict[str, Any] = {"names": list(block[0]), "batches": len(block)}
    if generation is not None:
        about["generation"], arrays = _packed(generation)
        tensors |= {f"generation/{name}": value for name, value in arrays.items()}
    save_file(tensors, _block_path(folder, rank), metadata={"exgrpo": json.dumps(about)})


@dataclass
class SavedBlock:
    """A generation batch as it was saved; `generation` still without its stored trajectories."""

    block: Block
    about: dict[str, Any] | None
    arrays: dict[str, Tensor]


def load_block(folder: Path, rank: int, device: torch.device | str = "cpu") -> SavedBlock:
    """Read the generation batch of a process.

    Raises:
        CheckpointError: the file is not there, or is damaged.
    """
    path = _block_path(folder, rank)
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["exgrpo"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}): it holds the batch that was being learned from. Resume from another checkpoint "
            "(resume_from_checkpoint=PATH)."
        ) from error
    block: Block = []
    for place in range(about["batches"]):
        batch = {name: tensors.get(f"block/{place}/{name}") for name in about["names"]}
        block.append({name: None if value is None else value.to(device) for name, value in batch.items()})
    arrays = {
        name.removeprefix("generation/"): value for name, value in tensors.items() if name.startswith("generation/")
    }
    return SavedBlock(block, about.get("generation"), arrays)


def _packed(generation: Generation) -> tuple[dict[str, Any], dict[str, Tensor]]:
    plan = generation.plan
    about = {
        "generation": plan.generation,
        "step": plan.step,
        "refilled": plan.refilled,
        "idle": plan.idle,
        "replays": [[choice.serial for choice in choices] for choices in plan.replays],
        "replayed": plan.replayed.tolist(),
        "added": [choice.serial for choice in plan.added],
        "counted": [plan.refused, plan.expired, plan.returned],
        "num_generations": generation.num_generations,
        "offset": generation.offset,
        "size": generation.size,
        "stored": [[row, choice.serial, kind] for row, (choice, kind) in generation.stored.items()],
        "wanted": list(generation.wanted.items()),
        "logps": list(generation.logps),
        "entropies": [[row, *value] for row, value in generation.entropies.items()],
        "scores": [[row, *value] for row, value in generation.scores.items()],
        "ratios": [[row, *value] for row, value in generation.ratios.items()],
        "fillers": sorted(generation.fillers),
        "admitted": generation.admitted,
    }
    arrays = {"questions": torch.as_tensor(np.asarray(plan.questions, np.int64).copy())}
    for name in ("rewards", "outcomes", "advantages"):
        value = getattr(generation, name)
        if value is not None:
            arrays[name] = torch.as_tensor(value).detach().cpu().clone()
    for row, logps in generation.logps.items():
        arrays[f"logps/{row}"] = torch.as_tensor(logps.copy())
    for row, ids in enumerate(generation.completion_ids):
        arrays[f"ids/{row}"] = torch.tensor(ids, dtype=torch.int64)
    return about, arrays


def serials_of(saved: SavedBlock) -> list[int]:
    """Stored trajectories that a saved generation holds."""
    assert saved.about is not None
    about = saved.about
    return sorted(
        {*(s for group in about["replays"] for s in group), *(s for _, s, _ in about["stored"]), *about["added"]}
    )


def unpacked(saved: SavedBlock, choices: Mapping[int, Any], device: torch.device | str = "cpu") -> Generation:
    """A saved generation; `choices` holds its stored trajectories by serial."""
    about, arrays = saved.about, saved.arrays
    assert about is not None
    replays = tuple(tuple(choices[serial] for serial in group) for group in about["replays"])
    added = tuple(choices[serial] for serial in about["added"])
    plan = StepPlan(
        about["generation"], about["step"], arrays["questions"].numpy(), replays, np.array(about["replayed"], bool), added,
        about["refilled"], about["idle"], *about["counted"],
    )  # fmt: skip
    generation = Generation(plan, about["num_generations"], [], about["offset"], about["size"])
    generation.stored = {row: (choices[serial], kind) for row, serial, kind in about["stored"]}
    generation.rewards = arrays["rewards"].to(device) if "rewards" in arrays else None
    generation.outcomes = arrays["outcomes"].numpy() if "outcomes" in arrays else None
    generation.advantages = arrays["advantages"].to(device) if "advantages" in arrays else None
    generation.completion_ids = [arrays[f"ids/{row}"].tolist() for row in range(about["size"])]
    generation.wanted = {int(row): finish for row, finish in about["wanted"]}
    generation.logps = {row: arrays[f"logps/{row}"].numpy() for row in about["logps"]}
    generation.entropies = {row: (mean, tokens, step) for row, mean, tokens, step in about["entropies"]}
    generation.scores = {row: (nll, mean, variance, drift) for row, nll, mean, variance, drift in about["scores"]}
    generation.ratios = {
        row: (mean, total, squares, n, capped) for row, mean, total, squares, n, capped in about["ratios"]
    }
    generation.fillers = set(about["fillers"])
    generation.admitted = about["admitted"]
    return generation
