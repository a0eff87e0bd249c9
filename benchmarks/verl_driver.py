"""What replay costs verl's driver a step, with simulated rows: no model, no Ray, a transfer queue in memory.

    python benchmarks/verl_driver.py --rows 512 --tokens 8192     (in the environment of `make test-verl`)

Measured are the processor seconds of the driver in each phase of a step, with half of the questions replayed. Reading and
writing the queue is a copy here; under Ray it is a transfer beside it, of the columns that are named in the result.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from tests.verl.local import MemoryQueue, configuration  # noqa: E402
from tests.verl.support import overrides, save_questions  # noqa: E402
from transfer_queue import KVBatchMeta  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402
from verl.trainer.ppo.utils import create_rl_dataset  # noqa: E402

from exgrpo.verl.options import VerlOptions  # noqa: E402
from exgrpo.verl.run import Run  # noqa: E402

K = 8


def simulate(rows: int, tokens: int, steps: int) -> dict[str, dict[str, float]]:
    """Run steps of a plan with random completions of a given length; return seconds of each phase, median over steps."""
    questions, rng = rows // K, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        queue = MemoryQueue()
        queue.install(patch)
        save_questions(Path(folder) / "questions.parquet", 8 * questions)
        config = configuration(
            overrides(
                Path(folder) / "run", data__train_batch_size=questions, actor_rollout_ref__rollout__n=K,
                actor_rollout_ref__actor__ppo_mini_batch_size=questions, data__max_response_length=tokens,
                exgrpo__entropy_refresh="stored", actor_rollout_ref__actor__loss_scale_factor=tokens,
            )
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
        dataset = create_rl_dataset(
            config.data.train_files, config.data, tokenizer, None, is_train=True, max_samples=-1
        )
        given = {"start_pass_at_1": 0.0, "entropy_refresh": "stored"}
        run = Run(config, VerlOptions.of(given), tokenizer, SimpleNamespace())
        run.read_questions(dataset)
        run.open(None, 0)
        times: dict[str, list[float]] = {}

        def timed(name, call, *args):
            began = time.process_time()
            answer = call(*args)
            times.setdefault(name, []).append(time.process_time() - began)
            return answer

        for step in range(steps):
            timed("plan", run.plan, step, 0.0)
            places, rollouts = run.next_questions(questions)
            run.layout.uids = [f"u{step}x{place}" for place in range(questions)]
            batch = rolled_out(queue, run, rollouts, tokens, rng, dataset, places)
            batch = timed("score", run.score, batch, {}, dataset)
            put_log_probs(queue, batch, rng)
            timed("record", run.record, batch, {})
            timed("credit", run.credit, batch)
            keys = timed("choose", run.keys_with_gradient, batch, K)
            timed("weigh", run.write_weights, batch.select_keys(keys), config.actor_rollout_ref)
            queue.kv_clear(batch.keys, "train")
        run.close(True)
    return {name: round(float(np.median(values[1:])), 4) for name, values in times.items()}


def rolled_out(queue, run, rollouts, tokens, rng, dataset, places):
    keys, tags = [], []
    for group, (n, place) in enumerate(zip(rollouts, places, strict=True)):
        question = int(run.step.batch.plan.questions[group])
        prompt = torch.tensor(run.questions.prompt_ids(question))
        for session in range(n):
            key = f"{run.layout.uids[group]}_{session}_0"
            ids = torch.as_tensor(rng.integers(4, 40, tokens))
            scores = torch.zeros(tokens)
            scores[-1] = float(rng.random() < 0.5)
            whole = torch.cat([prompt, ids])
            queue.fields["train"][key] = {
                "prompts": prompt, "responses": ids, "input_ids": whole, "position_ids": torch.arange(len(whole)),
                "response_mask": torch.ones(tokens, dtype=torch.long), "loss_mask": torch.ones(tokens, dtype=torch.long),
                "rm_scores": scores, "rollout_log_probs": torch.zeros(tokens), "uid": run.layout.uids[group],
                "extra_fields": {}, "session_id": session, "reward_model": dataset.dataframe[place]["reward_model"],
            }  # fmt: skip
            keys.append(key)
            tags.append({"seq_len": len(whole)})
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")


def put_log_probs(queue, batch, rng):
    rows = [queue.fields["train"][key] for key in batch.keys]
    values = [torch.as_tensor(-rng.random(len(row["responses"]), np.float32)) for row in rows]
    jagged = torch.nested.as_nested_tensor(values, layout=torch.jagged)
    queue.kv_batch_put(batch.keys, "train", TensorDict({"old_log_probs": jagged, "entropy": -jagged}, [len(rows)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {rows: simulate(rows, args.tokens, args.steps) for rows in args.rows}
    result = {
        "tokens": args.tokens,
        "steps": args.steps,
        "columns_read": [
            "prompts",
            "responses",
            "response_mask",
            "rm_scores",
            "extra_fields",
            "old_log_probs",
            "entropy",
        ],
        "seconds": {str(rows): {**phases, "all": round(sum(phases.values()), 4)} for rows, phases in found.items()},
    }
    path = ROOT / "benchmarks" / "results" / "verl_driver.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["seconds"], indent=2))


if __name__ == "__main__":
    main()
