"""Say under which circumstances trajectories are made: what must agree before they are used elsewhere."""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .. import __version__
from ..archive.transfer import Bounds
from ..config import ADMISSIONS, ReplayConfig
from ..experience.contexts import AdmissionCandidate
from ..experience.trajectory import Trajectory
from ..log import Provenance
from .encoder import TextEncoder
from .questions import columns_read

VOLATILE = (
    "_name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "_attn_implementation",
    "architectures",
)
STATE_OF_TOKENIZERS = ("truncation", "padding")
"""State that calls of a tokenizer may leave in it."""


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def provenance_of(
    model: Any,
    tokenizer: Any,
    template: Any,
    *,
    rewards: str,
    temperature: float,
    num_generations: int,
    questions: str,
    versions: Mapping[str, str],
    options: Mapping[str, Any],
    embedding: str,
) -> Provenance:
    """Describe the trajectories that a run will store.

    Args:
        model: with a configuration of `transformers`.
        tokenizer: of the same library.
        template: by which chats become tokens; None without.
        rewards: as `rewards_of` writes them.
        temperature: of sampling.
        num_generations: K.
        questions: digest of the table of questions.
        versions: of the packages that compute.
        options: of the run, by name.
        embedding: as `embedding_of` names it; empty without.
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in VOLATILE}
    return Provenance(
        model=getattr(model.config, "_name_or_path", "") or model.config.model_type,
        architecture=_hash(config),
        tokenizer=_hash(tokenizer_json(tokenizer) or sorted(tokenizer.get_vocab().items())),
        template=_hash(template),
        rewards=rewards,
        temperature=temperature,
        num_generations=num_generations,
        questions=questions,
        versions=json.dumps({"exgrpo": __version__, **versions}),
        options=json.dumps(dict(options), sort_keys=True),
        embedding=embedding,
    )


def embedding_of(embedder: Any, model: str | None) -> str:
    """Name what completions are embedded by: the model, or the function; empty where they are not."""
    if embedder is None:
        return ""
    if model is not None and isinstance(embedder, TextEncoder):
        return str(model)
    return str(getattr(embedder, "__qualname__", type(embedder).__qualname__))


def order_of_data(origin: Provenance) -> tuple[Any, ...]:
    """Return what the order of the questions follows from, beside the questions."""
    options = json.loads(origin.options or "{}")
    return options.get("seed"), options.get("shuffle")


def tokenizer_json(tokenizer: Any) -> str | None:
    """Serialise a tokenizer as the `tokenizers` library does, without state that calls left in it.

    None for one of another kind.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    rules = {name: value for name, value in json.loads(backend.to_str()).items() if name not in STATE_OF_TOKENIZERS}
    return json.dumps(rules | dict.fromkeys(STATE_OF_TOKENIZERS), sort_keys=True, ensure_ascii=False)


def rewards_of(
    functions: Sequence[Any], names: Sequence[str], weights: Sequence[float], decides: int, threshold: float
) -> str:
    """Write names, versions and weights of the reward functions, and which decides above what, as JSON.

    A reward function may say its version in an attribute `version`; without one, only another name counts as another.
    """
    described = [
        {"name": name, "version": str(getattr(function, "version", "")), "weight": float(weight)}
        for name, function, weight in zip(names, functions, weights, strict=True)
    ]
    return json.dumps([described, {"decides": names[decides], "above": float(threshold)}])


def columns_of_run(functions: Sequence[Any], columns: Collection[str], by_type: bool | None) -> frozenset[str] | None:
    """Name the data columns that a run depends on beside the prompt; None where unknown."""
    read = columns_read(functions, columns)
    return None if read is None else read | ({"problem_type"} if by_type else set())


def vocabulary_of(model: Any) -> int:
    """Return the size of a model's vocabulary; what adapters wrap its embedding in does not matter."""
    return int(model.config.get_text_config().vocab_size)


def bounds_of(config: ReplayConfig, vocabulary: int, num_rewards: int) -> Bounds:
    """Return the bounds that token ids and rewards of imported trajectories must satisfy."""
    rule = ADMISSIONS[config.admission]

    def admits(trajectory: Trajectory) -> bool:
        """Return whether the admission rule would take a trajectory of which only its outcome is known."""
        right = int(trajectory.correct)
        finish, quality = trajectory.finish_reason, trajectory.quality
        return bool(
            rule(AdmissionCandidate(trajectory.question, trajectory.correct, right, 1, finish, quality, config))
        )

    return Bounds(vocabulary, num_rewards, admits)
