"""What recipe A costs, as a share of a GRPO step: the buffer, the sampling, the importance weights.

    python benchmarks/recipe_a.py [--rounds 5] [--stored 100000]

The step is that of `examples/trajectory_buffer_loop.py`: generate, entropies, loss, backward, optimizer. Two shapes, with
random weights: the tiny policy with its batch, and SmolLM2-135M's shape (49,152 words) with 16 rollouts of 48 tokens, small
for a CPU. The buffer is full: every trajectory that is added makes another leave. One thread; CPU time of the process;
medians over rounds.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from machine import save
from torch import Tensor, nn

from exgrpo.recipes import (
    Rollouts,
    TrajectoryBuffer,
    compute_entropy,
    compute_grpo_loss,
    compute_importance_weights,
)  # fmt: skip

PROMPT = 12
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": dict(
        hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        vocab_size=48, max_position_embeddings=256,
    ),
    "smollm2_135m": dict(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49_152, max_position_embeddings=2048, tie_word_embeddings=True,
    ),
}  # fmt: skip
BATCHES = {"tiny": (16, 8, 4), "smollm2_135m": (4, 4, 48)}  # questions, completions of each, tokens of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--stored", type=int, default=100_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {name: measure(name, options.rounds, options.stored) for name in SHAPES}
    command = "python " + " ".join(["benchmarks/recipe_a.py", *sys.argv[1:]])
    print("saved", save("recipe_a", command, {"rounds": options.rounds, "stored": options.stored, "shapes": figures}))


def measure(name: str, rounds: int, stored: int) -> dict[str, Any]:
    """Milliseconds of each part, and its share of a step."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    policy = LlamaForCausalLM(LlamaConfig(**SHAPES[name], dtype=torch.float32, pad_token_id=0, eos_token_id=None))
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-6)
    questions, k, tokens = BATCHES[name]
    words = SHAPES[name]["vocab_size"]
    buffer, filling = filled(stored, tokens, words)
    buffer.snapshot_policy(policy)
    seconds: dict[str, list[float]] = {}

    def timed(part: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        result = work()
        seconds.setdefault(part, []).append(time.process_time() - began)
        return result

    for _ in range(rounds + 1):
        prompts = torch.randint(1, words, (questions, PROMPT)).repeat_interleave(k, 0)
        rollouts, logits = timed("generate", lambda p=prompts: generated(policy, p, tokens))
        entropies = timed("entropies", lambda x=logits: compute_entropy(x))
        rewards = torch.arange(questions * k) % 2 * 1.0
        timed("learn", lambda r=rollouts, y=rewards: learn(optimizer, compute_grpo_loss(r.under(policy), y)))
        timed("buffer", lambda r=rollouts, y=rewards, e=entropies: add(buffer, r, y, e))
        timed("random_sampling", lambda: buffer.sample("random", questions * k, group_size=k))
        sample = timed("biased_sampling", lambda: buffer.sample(size=questions * k, group_size=k))
        replayed = Rollouts.collate(sample.prompts, sample.rollouts, sample.behaviour_logps).under(policy)
        timed("weights_from_stored", lambda r=replayed: compute_importance_weights(None, None, r))
        timed("weights_from_snapshot", lambda r=replayed: compute_importance_weights(buffer.policy_snapshot, None, r))
    ms = {part: round(1e3 * statistics.median(values[1:]), 3) for part, values in seconds.items()}
    step = ms["generate"] + ms["entropies"] + ms["learn"]
    figures = {
        "parameters": sum(p.numel() for p in policy.parameters()),
        "vocabulary": words,
        "rollouts": questions * k,
        "tokens_of_each": tokens,
        "fill_us_per_trajectory": round(1e6 * filling / stored, 1),
        "step_ms": round(step, 1),
        "ms": ms,
        "percent_of_a_step": {part: round(100 * value / step, 3) for part, value in ms.items()},
    }
    print(name, figures, flush=True)
    return figures


def filled(stored: int, tokens: int, words: int) -> tuple[TrajectoryBuffer, float]:
    """A full buffer, eight trajectories a question, and the CPU seconds that filling took."""
    rng = np.random.default_rng(0)
    buffer = TrajectoryBuffer(stored)
    prompts = rng.integers(1, words, (-(-stored // 8), PROMPT))
    rates = rng.random(len(prompts))
    began = time.process_time()
    for i in range(stored):
        question = i // 8
        buffer.add(
            {
                "prompt": prompts[question],
                "rollout": rng.integers(1, words, tokens),
                "reward": float(rng.random() < rates[question]),
                "entropy": rng.random(),
                "behaviour_logps": -rng.random(tokens),
            }
        )
    return buffer, time.process_time() - began


@torch.no_grad()
def generated(policy: nn.Module, prompts: Tensor, tokens: int) -> tuple[Rollouts, Tensor]:
    """Sampled completions with their log-probs, and the logits that they were sampled from, (B, T, V)."""
    answer = policy.generate(  # type: ignore[operator]
        prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    ids, logits = answer.sequences[:, prompts.shape[1] :], torch.stack(answer.logits, 1)
    logps = logits.log_softmax(-1).gather(2, ids[:, :, None])[:, :, 0]
    ones = torch.ones_like
    return Rollouts(prompts, ones(prompts), ids, ones(ids), behaviour_logps=logps), logits


def learn(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def add(buffer: TrajectoryBuffer, rollouts: Rollouts, rewards: Tensor, entropies: Tensor) -> None:
    assert rollouts.behaviour_logps is not None
    for row in range(len(rollouts)):
        buffer.add(
            {
                "prompt": rollouts.prompt_ids[row],
                "rollout": rollouts.completion_ids[row],
                "reward": rewards[row].item(),
                "entropy": entropies[row].item(),
                "behaviour_logps": rollouts.behaviour_logps[row],
            }
        )


if __name__ == "__main__":
    main()
