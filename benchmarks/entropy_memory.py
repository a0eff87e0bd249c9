"""Peak memory of scoring candidates' entropies at a large vocabulary, against a forward that materialises all logits.

    python benchmarks/entropy_memory.py [--vocabulary 150000] [--rows 8] [--tokens 256]

Each way runs in a process of its own; the figure is its peak resident memory above that of the loaded model.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import warnings

import torch
from machine import save


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def score(way: str, vocabulary: int, rows: int, tokens: int) -> None:
    """Print the peak memory (MB) that scoring adds, and the mean entropy, which must agree."""
    warnings.filterwarnings("ignore")
    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from exgrpo.experience import Trajectory
    from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer
    from exgrpo.trl.scoring import measure

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<bos>": 1, "<eos>": 2, "q": 3, "<unk>": 4}, "<unk>")),
        pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>",
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocabulary, (rows, tokens), generator=generator)
    if way == "ours":
        with tempfile.TemporaryDirectory() as directory:
            args = ExGRPOConfig(
                directory, per_device_train_batch_size=rows, num_generations=2, use_cpu=True, bf16=False, report_to=[],
                save_strategy="no", disable_tqdm=True,
            )  # fmt: skip
            data = Dataset.from_list([{"prompt": "q", "n": i} for i in range(rows)])
            trainer = ExGRPOTrainer(
                model=model, reward_funcs=lambda completions, **k: [0.0] * len(completions), args=args,
                train_dataset=data, processing_class=tokenizer,
            )  # fmt: skip
            before = peak_mb()
            stored = [
                Trajectory(0, row.numpy(), -torch.ones(len(row)).numpy(), torch.ones(1).numpy(), 0) for row in ids
            ]
            entropies = [scores.entropy for scores in measure(trainer, [([3], one) for one in stored])]
    else:
        before = peak_mb()
        with torch.no_grad():
            whole = torch.cat([torch.full((rows, 1), 3), ids], 1)
            logps = model(input_ids=whole).logits[:, :-1].log_softmax(-1)
            entropies = (-(logps.exp() * logps).sum(-1)).mean(1).tolist()
    print(peak_mb() - before, sum(entropies) / rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vocabulary", type=int, default=150_000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--way", choices=["ours", "all-logits"])
    options = parser.parse_args()
    sizes = (options.vocabulary, options.rows, options.tokens)
    if options.way:
        score(options.way, *sizes)
        return
    names = ("vocabulary", "rows", "tokens")
    figures = dict(zip(names, sizes, strict=True)) | {"logits_mb": 4 * sizes[0] * sizes[1] * sizes[2] / 1e6}
    for way in ("ours", "all-logits"):
        given = [f"--{name}={value}" for name, value in zip(names, sizes, strict=True)]
        command = [sys.executable, __file__, "--way", way, *given]
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        peak, entropy = map(float, run.stdout.split()[-2:])
        figures[way] = {"peak_mb": round(peak), "mean_entropy": entropy}
        print(way, figures[way], flush=True)
    print(
        "saved", save("entropy_memory", "python " + " ".join(["benchmarks/entropy_memory.py", *sys.argv[1:]]), figures)
    )


if __name__ == "__main__":
    main()
