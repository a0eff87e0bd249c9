"""Under which circumstances a trainer's trajectories are made: what must agree before they are used elsewhere."""

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import nn

from .. import __version__
from ..archive.transfer import Bounds
from ..config import ADMISSIONS
from ..experience.contexts import AdmissionCandidate as Completion
from ..experience.trajectory import FloatArray, Trajectory
from ..log import Origin
from .embedding import TextEncoder
from .questions import columns_read
from .reward_answers import rewards_in

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
"""What a call of a tokenizer may leave behind in it."""


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def describe(trainer: Any, tokenizer: str | None) -> Origin:
    """Of the trajectories that a trainer will store; `tokenizer` as `tokenizer_json` gives it."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    config = {name: value for name, value in model.config.to_dict().items() if name not in VOLATILE}
    options = (
        asdict(args.replay)
        | asdict(args.objective)
        | {"preset": args.preset, "seed": args.seed, "shuffle": trainer.shuffle_dataset}
    )
    packages = {name: version(name) for name in ("torch", "transformers", "trl", "accelerate")}
    return Origin(
        model=getattr(model.config, "_name_or_path", "") or model.config.model_type,
        architecture=_hash(config),
        tokenizer=_hash(tokenizer or sorted(trainer._tokenizer.get_vocab().items())),
        template=_hash(getattr(trainer.processing_class, "chat_template", None)),
        rewards=rewards_of(trainer),
        temperature=float(args.temperature),
        num_generations=trainer.num_generations,
        questions=trainer.questions.digest(),
        versions=json.dumps({"exgrpo": __version__, **packages}),
        options=json.dumps(options, sort_keys=True),
        embedding=embedding_of(trainer),
    )


def embedding_of(trainer: Any) -> str:
    """By what completions are embedded: the model's name, or that of the function; empty where they are not."""
    if trainer.embedder is None:
        return ""
    if trainer.args.embedding_model is not None and isinstance(trainer.embedder, TextEncoder):
        return str(trainer.args.embedding_model)
    return str(getattr(trainer.embedder, "__qualname__", type(trainer.embedder).__qualname__))


def order_of_data(origin: Origin) -> tuple[Any, ...]:
    """What the order of the questions follows from, beside the questions."""
    options = json.loads(origin.options or "{}")
    return options.get("seed"), options.get("shuffle")


def tokenizer_json(trainer: Any) -> str | None:
    """The tokenizer as the `tokenizers` library writes it, without what calls left in it; None for one of another kind."""
    backend = getattr(trainer._tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    rules = {name: value for name, value in json.loads(backend.to_str()).items() if name not in STATE_OF_TOKENIZERS}
    return json.dumps(rules | dict.fromkeys(STATE_OF_TOKENIZERS), sort_keys=True, ensure_ascii=False)


def rewards_of(trainer: Any) -> str:
    """Names, versions and weights of the reward functions, and which decides above what: JSON.

    A reward function may say its version in an attribute `version`; without one, only another name counts as another.
    """
    functions = [
        {"name": name, "version": str(getattr(function, "version", "")), "weight": float(weight)}
        for name, function, weight in zip(
            trainer.reward_func_names, trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True
        )
    ]
    decides = trainer.reward_func_names[trainer._correctness]
    return json.dumps([functions, {"decides": decides, "above": float(trainer.args.correctness_threshold)}])


def reads(trainer: Any) -> frozenset[str] | None:
    """Columns of the data that the run depends on beside the prompt; None where that cannot be told."""
    read = columns_read(trainer.reward_funcs, trainer.train_dataset.column_names)
    typed = {"problem_type"} if trainer.args.by_problem_type else set()
    return None if read is None else read | typed


def vocabulary_of(model: Any) -> int:
    """The size of a model's vocabulary; what its embedding is wrapped in by adapters does not matter."""
    return int(model.config.get_text_config().vocab_size)


def bounds(trainer: Any) -> Bounds:
    """What token ids and rewards of trajectories must fit into."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    config = trainer.args.replay
    rule = ADMISSIONS[config.admission]

    def admits(trajectory: Trajectory) -> bool:
        """As far as can be told of a single one: of its group no more is known than that it was right or not."""
        right = int(trajectory.correct)
        finish, quality = trajectory.finish_reason, trajectory.quality
        return bool(rule(Completion(trajectory.question, trajectory.correct, right, 1, finish, quality, config)))

    return Bounds(vocabulary_of(model), len(trainer.reward_funcs), admits)


def rescorer(trainer: Any) -> Callable[[Sequence[Trajectory]], list[FloatArray | None]]:
    """Scores stored trajectories with the trainer's reward functions, on one process.

    A reward model is not asked here: what needs one gets no reward, and is left out.
    """

    def rescore(trajectories: Sequence[Trajectory]) -> list[FloatArray | None]:
        if any(isinstance(function, nn.Module) for function in trainer.reward_funcs):
            return [None] * len(trajectories)
        rows = trainer.questions.rows([t.question for t in trajectories])
        ids = [t.completion_ids.tolist() for t in trajectories]
        texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
        prompts = [row["prompt"] for row in rows]
        given: dict[str, Any] = {
            name: [row[name] for row in rows]
            for name in rows[0]
            if name not in ("prompt", "completion", "completion_ids")
        }
        given |= {
            "prompts": prompts,
            "completions": [
                text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
                for text, prompt in zip(texts, prompts, strict=True)
            ],
            "completion_ids": ids,
            "trainer_state": trainer.state,
            "log_extra": lambda column, values: None,
            "log_metric": lambda name, value: None,
        }
        columns = [_call(trainer, function, given) for function in trainer.reward_funcs]
        rewards = np.array([[np.nan if r is None else r for r in column] for column in columns], np.float32).T
        rewards[np.isinf(rewards)] = np.nan
        right = rewards[:, trainer._correctness] > trainer.args.correctness_threshold
        return [row if ok else None for row, ok in zip(rewards, right, strict=True)]

    return rescore


def _call(trainer: Any, function: Any, given: dict[str, Any]) -> list[Any]:
    answer = function(**given)
    if inspect.isawaitable(answer):  # in the host's own loop: this thread may be inside one of its own
        answer = asyncio.run_coroutine_threadsafe(_result(answer), trainer.async_loop).result()
    return rewards_in(getattr(function, "__name__", repr(function)), answer, len(given["prompts"]))


async def _result(awaitable: Any) -> Any:
    return await awaitable
