"""Measure the warm-ups: `python tests/tasks/measure_warm_up.py FAMILY [SEEDS] [KNOB=VALUE ...]`, one JSON line a seed.

Not a test. Eight samples for each of 512 held-out questions at temperature 1; `pass_at_1` is their mean reward,
`pass_at_8` the share of questions with a success, `valid` the share of right completions that are valid, `cut` the
share without an end token.
"""

import json
import sys
import time

from exgrpo.tasks import get_task
from exgrpo.tasks.base import WarmUp
from exgrpo.tasks.tiny_policy import warm_policy


def sample(model, tokenizer, prompts, samples, max_new_tokens, seed=0, batch=1024):
    """`samples` completions (text, finished) for each prompt, prompt by prompt; batches hold prompts of like length."""
    import torch

    torch.manual_seed(seed)
    rows = [prompt for prompt in prompts for _ in range(samples)]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    out = [None] * len(rows)
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        inputs = tokenizer([rows[i] for i in chosen], padding=True, return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            ids = model.generate(
                **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=max_new_tokens
            )
        completions = ids[:, inputs["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        finished = (completions == tokenizer.eos_token_id).any(1).tolist()
        for i, text, ended in zip(chosen, texts, finished, strict=True):
            out[i] = (text, ended)
    return out


def measure(task, model, tokenizer, questions=512, samples=8):
    """The figures of the module docstring, as a dict."""
    data = task.make("eval", questions, seed=0)
    prompts = data["prompt"]
    drawn = sample(model, tokenizer, prompts, samples, task.max_completion_length + 4)
    columns = {name: [v for v in data[name] for _ in range(samples)] for name in data.column_names if name != "prompt"}
    texts = [text for text, _ in drawn]
    repeated = [prompt for prompt in prompts for _ in range(samples)]
    rewards = task.reward_function(prompts=repeated, completions=texts, **columns)
    right = [reward == 1 for reward in rewards]
    valid = [r and task.is_valid(p, t) for r, p, t in zip(right, repeated, texts, strict=True)]
    groups = [right[i : i + samples] for i in range(0, len(right), samples)]
    return {
        "pass_at_1": sum(right) / len(right),
        "pass_at_8": sum(any(group) for group in groups) / len(groups),
        "valid": sum(valid) / max(1, sum(right)),
        "cut": sum(not ended for _, ended in drawn) / len(drawn),
    }


def main(family, seeds="5", *options):
    knobs, warm = {}, {}
    for option in options:
        key, value = option.split("=")
        (warm if key in WarmUp.__dataclass_fields__ else knobs)[key] = json.loads(value)
    task = get_task(family, **knobs)
    warm_up = WarmUp(**{**vars(task.warm_up), **warm})
    for seed in range(int(seeds)):
        start = time.perf_counter()
        model, tokenizer = warm_policy(task, seed, warm_up=warm_up)
        trained = time.perf_counter()
        figures = measure(task, model, tokenizer)
        seconds = {"warm_up_s": round(trained - start, 1), "sampling_s": round(time.perf_counter() - trained, 1)}
        sys.stdout.write(json.dumps({"family": family, "seed": seed, **warm, **knobs, **figures, **seconds}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
