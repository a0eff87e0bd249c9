"""What stays the host's: PEFT, model cards, tables, vLLM's way of generating."""

import math
import re

import pytest
import torch
from peft import LoraConfig

from exgrpo.experience.events import Admitted, Replayed
from tests.support import harness as h


def half_right(generation, prompt, member):
    return f"{'abcd'[member]}{re.search(r'q([0-9]+)', prompt).group(1)}$" if member < 2 else "zz$"


def test_peft(tmp_path):
    """LoRA with dropout in its config: dropout is off, only the adapter learns, stored log-probs are the policy's."""
    peft = LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    args = h.config(tmp_path, max_steps=4, start_pass_at_1=0.0, learning_rate=0.0)
    trainer = h.trainer(args, h.questions(24), script=half_right, peft_config=peft)
    trainer.train()
    assert trainer.events.of(Replayed)
    merged = trainer.model.merge_and_unload() if hasattr(trainer.model, "merge_and_unload") else trainer.model
    plain = h.tiny_model()
    plain.load_state_dict(merged.state_dict())
    for event in trainer.events.of(Admitted):
        t = event.trajectory
        logps, _ = h.score_alone(plain, trainer.questions.prompt_ids(t.question), t.completion_ids.tolist())
        torch.testing.assert_close(
            torch.tensor(t.behaviour_logps.copy()), torch.tensor(logps).float(), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("target", [["q_proj", "v_proj"], ["q_proj", "embed_tokens"]])
def test_peft_learns(tmp_path, target):
    peft = LoraConfig(r=4, target_modules=target)
    args = h.config(tmp_path, max_steps=4, start_pass_at_1=0.0, learning_rate=1e-2)
    trainer = h.trainer(args, h.questions(24), script=half_right, peft_config=peft)
    before = {n: p.clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {n for n, p in trainer.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert all("lora" in name for name in moved)


def test_model_card(tmp_path):
    trainer = h.trainer(h.config(tmp_path, max_steps=1), h.questions(16), script=half_right)
    trainer.train()
    trainer.create_model_card(model_name="tiny")
    card = (tmp_path / "README.md").read_text()
    assert "ExGRPO" in card
    assert "2510.02245" in card
    assert "zhan2026exgrpo" in card
    assert "- exgrpo" in card.split("---")[1]


def test_the_completions_table_marks_replayed_rows(tmp_path, capsys):
    import pandas as pd

    args = h.config(
        tmp_path, max_steps=2, start_pass_at_1=0.0, log_completions=True, eval_strategy="steps", eval_steps=1,
        per_device_eval_batch_size=16, max_completion_length=4,
    )  # fmt: skip
    trainer = h.trainer(args, h.questions(24), script=half_right, eval_dataset=h.questions(4))
    trainer.train()
    tables = sorted((tmp_path / "completions").glob("*.parquet"))
    train = pd.read_parquet(tables[-1])
    assert "replayed" in train.columns
    labels = list(trainer._logs["extra"]["replayed"])
    assert len(labels) == len(trainer._logs["prompt"])  # evaluation rows have the column too


class FakeVLLM:
    """Stands where TRL's vLLM backend does: generates for as many rows as a process has, in order, with log-probs."""

    def __init__(self, trainer, script):
        self.trainer, self.script, self.rows, self.groups = trainer, script, [], []

    def sync_weights(self):
        pass

    def generate(self, prompts, images, num_generations, profiler):
        trainer = self.trainer
        self.rows.append(len(prompts))
        self.groups.append(num_generations)
        counter = trainer._iteration.batch.plan.iteration
        ids = [
            h.encode(
                trainer.processing_class, self.script(counter, trainer.processing_class.decode(p), i % num_generations)
            )
            for i, p in enumerate(prompts)
        ]
        return prompts, ids, [[[-1.5] for _ in row] for row in ids], None


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_vllm_generates_what_is_fresh(tmp_path, monkeypatch, mode):
    """vLLM is asked for the fresh rows alone; the others' sampling log-probs are left out by TRL."""
    from trl import GRPOTrainer

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", h._host_generation)
    for preset in ("exgrpo", "rescue"):
        args = h.config(
            tmp_path, max_steps=3, preset=preset, start_pass_at_1=0.0, vllm_importance_sampling_correction=True
        )

        def script(generation, prompt, member):
            return half_right(generation, prompt, member) if generation == 0 else "zz$"

        trainer = h.trainer(args, h.questions(8), model=h.tiny_model())
        trainer.use_vllm, trainer.vllm_mode, trainer._last_loaded_step = True, mode, -1
        trainer.vllm_generation = FakeVLLM(trainer, script)
        trainer.train()
        fresh = 28 if preset == "exgrpo" else 32
        assert trainer.vllm_generation.rows == [32, fresh, fresh]
        apart = 1 if mode == "server" and preset == "exgrpo" else 4  # rows that are no whole groups, each on its own
        assert trainer.vllm_generation.groups == [4, apart, apart]
        assert len(trainer.events.of(Replayed)) == (8 if preset == "exgrpo" else 16)
        for log in trainer.state.log_history[:3]:
            assert math.isfinite(log["sampling/importance_sampling_ratio/mean"])
            assert math.isfinite(log["sampling/sampling_logp_difference/mean"])
            assert math.isfinite(log["loss"])
        assert trainer.generated_tokens == (16 * 3 + 16 * 3) + 2 * fresh * 3
        for event in trainer.events.of(Admitted):  # the trainer's own log-probs, not the engine's -1.5
            assert (abs(event.trajectory.behaviour_logps + 1.5) > 1e-3).any()
