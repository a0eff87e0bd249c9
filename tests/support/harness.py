"""A trainer that runs for real, but generates what a script says.

The host's generation is the only thing replaced (`GRPOTrainer._generate_single_turn`): everything of ours, and everything
else of the host's, runs as it is. A script is a function of (generation, prompt, member) that answers with a completion.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Callable

import torch
from datasets import Dataset

from exgrpo.experience.events import Event
from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer
from exgrpo.trl.generation import rows_to_generate
from tests.support.policies import tiny_model, tiny_tokenizer
from trl import GRPOConfig, GRPOTrainer

Script = Callable[[int, str, int], str]


def right_reward(prompts, completions, right, **kwargs):
    """1 where the completion (up to its end) is one of the right ones, None for `?`, else 0."""
    texts = [c if isinstance(c, str) else c[-1]["content"] for c in completions]
    return [None if "?" in text else float(text in str(r).split("|")) for text, r in zip(texts, right, strict=True)]


def questions(n: int, width: int = 1) -> Dataset:
    """n questions `q<i>=`, to which `a<i>`, `b<i>`, ... are right."""
    rows = [
        {"prompt": f"q{i}=" + "x" * (i % width), "right": "|".join(f"{c}{i}" for c in "abcdefgh")} for i in range(n)
    ]
    return Dataset.from_list(rows)


def config(tmp_path, cls=ExGRPOConfig, **options):
    """8 questions a generation of 4 completions each, one micro-batch, unless said otherwise."""
    defaults = dict(
        output_dir=str(tmp_path), per_device_train_batch_size=32, num_generations=4, max_completion_length=12,
        learning_rate=1e-3, max_steps=4, logging_steps=1, report_to=[], use_cpu=True, bf16=False,
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, seed=7, lr_scheduler_type="constant",
    )  # fmt: skip
    if cls is ExGRPOConfig:
        defaults |= dict(replay_metrics="all")
    if cls is ExGRPOConfig and options.get("preset", "exgrpo") == "exgrpo" and options.get("start_pass_at_1") != 0:
        defaults["start_completions"] = 1  # the gate is judged by the latest generation alone
    if cls is GRPOConfig:
        defaults |= dict(loss_type="dr_grpo", scale_rewards="none", disable_dropout=True)
    return cls(**{**defaults, **options})


class Recorder(list):
    """A listener that keeps every event."""

    def __call__(self, event: Event) -> None:
        self.extend(event.each())

    def of(self, kind: type) -> list:
        return [event for event in self if isinstance(event, kind)]


def trainer(args, dataset, model=None, tokenizer=None, reward=right_reward, script=None, cls=ExGRPOTrainer, **more):
    """A trainer; its events go to `trainer.events`."""
    made = cls(
        model=model if model is not None else tiny_model(),
        reward_funcs=reward,
        args=args,
        train_dataset=dataset,
        processing_class=tokenizer or tiny_tokenizer(),
        **more,
    )
    made.events = Recorder()
    if getattr(made, "experience", None) is not None:
        made.experience.listeners.append(made.events)
    if script is not None:
        made.script = script
    return made


def encode(tokenizer, text: str) -> list[int]:
    """Ids of a scripted completion; `$` at its end is the end token, without it the completion was cut."""
    ids = tokenizer(text.removesuffix("$"), add_special_tokens=False)["input_ids"]
    return [*ids, tokenizer.eos_token_id] if text.endswith("$") else ids


def scripted_generation(self, prompt_ids, *args, **kwargs):
    """In place of the host's `_generate_single_turn`: the script of the trainer, if it has one."""
    script = getattr(self, "script", None)
    if script is None or not self.model.training:
        return _host_generation(self, prompt_ids, *args, **kwargs)
    tokenizer, generation = self.processing_class, getattr(self, "_iteration", None)
    if generation is None:  # no replay: rows are the host's
        offset, counter = self.accelerator.process_index * len(prompt_ids), self._step // self.args.steps_per_generation
        rows = range(offset, offset + len(prompt_ids))
    else:
        batch = generation.batch
        counter, rows = batch.plan.iteration, [batch.offset + row for row in range(batch.size)]
        if batch.stored:
            rows = [batch.offset + row for row in rows_to_generate(self, batch, self.comm.world_size)]
    completions = [
        encode(tokenizer, script(counter, tokenizer.decode(ids), row % self.num_generations))
        for row, ids in zip(rows, prompt_ids, strict=True)
    ]
    return completions, None


_host_generation = GRPOTrainer._generate_single_turn


@torch.no_grad()
def score_alone(model, prompt_ids, completion_ids, temperature=1.0):
    """Log-probs and entropies (nats) of one completion: one sequence, no padding, log_softmax over the vocabulary.

    Answers with two lists of length T.
    """
    ids = torch.tensor([[*prompt_ids, *completion_ids]])
    logits = model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1].double() / temperature
    logps = torch.log_softmax(logits, -1)
    entropies = -(logps.exp() * logps).sum(-1)
    return logps.gather(1, ids[0, len(prompt_ids) :, None])[:, 0].tolist(), entropies.tolist()
