"""What is measured of stored trajectories equals what the sequence scored alone gives."""

import numpy as np
import pytest
import torch
from transformers import (
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    XGLMConfig,
    XGLMForCausalLM,
)

from exgrpo.experience import Trajectory
from exgrpo.trl.scoring import measure
from tests.support import harness as h


@pytest.mark.parametrize("learned_positions", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_score_equals_the_score_alone(tmp_path, learned_positions, batch, temperature):
    """Whatever the padding, batch size, order and prompt length [FAULTS 2, 35]."""
    model = h.tiny_model(5, learned_positions)
    args = h.config(
        tmp_path,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=8,
        num_generations=8,
        temperature=temperature,
        replay_share=1.0,
    )
    trainer = h.trainer(args, h.questions(8), model=model)
    rng = np.random.default_rng(0)
    items = [
        (rng.integers(4, 40, rng.integers(1, 30)).tolist(), rng.integers(2, 40, rng.integers(1, 20)).tolist())
        for _ in range(13)
    ]
    plain = h.tiny_model(5, learned_positions)
    behaviour = [-rng.random(len(completion)) for _, completion in items]
    expected = []
    for (prompt, completion), then in zip(items, behaviour, strict=True):
        logps, entropies = (np.array(values) for values in h.score_alone(plain, prompt, completion, temperature))
        p = np.exp(logps)
        expected.append([entropies.mean(), -logps.mean(), p.mean(), p.var(), ((logps - then) ** 2).mean()])
    given = [
        (prompt, Trajectory(0, np.array(completion), then, np.array([1.0]), 0))
        for (prompt, completion), then in zip(items, behaviour, strict=True)
    ]

    def measured(order):
        found = measure(trainer, [given[i] for i in order], trainer.comm)
        return [[s.entropy, s.nll, s.confidence, s.confidence_variance, s.drift] for s in found]

    np.testing.assert_allclose(measured(range(13)), expected, rtol=1e-4, atol=2e-5)
    order = rng.permutation(13)
    np.testing.assert_allclose(measured(order), [expected[i] for i in order], rtol=1e-4, atol=2e-5)


def model_of(kind: str):
    """A tiny model, and whether padding before a prompt shifts its positions."""
    common = dict(vocab_size=48, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(3)
    if kind == "openai-gpt":
        config = OpenAIGPTConfig(n_positions=64, n_embd=32, n_layer=2, n_head=2, initializer_range=0.2, resid_pdrop=0.0,
                                 embd_pdrop=0.0, attn_pdrop=0.0, **common)  # fmt: skip
        return OpenAIGPTLMHeadModel(config), True
    if kind in ("xglm", "opt"):
        kinds = {"xglm": (XGLMConfig, XGLMForCausalLM), "opt": (OPTConfig, OPTForCausalLM)}
        sizes = {
            "xglm": dict(d_model=32, num_layers=2, attention_heads=2),
            "opt": dict(hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=2),
        }
        config = kinds[kind][0](max_position_embeddings=64, ffn_dim=64, init_std=0.2, dropout=0.0, attention_dropout=0.0,
                                activation_dropout=0.0, layerdrop=0.0, **sizes[kind], **common)  # fmt: skip
        return kinds[kind][1](config), kind == "xglm"
    return h.tiny_model(3, kind == "gpt2"), kind == "gpt2"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["openai-gpt", "xglm", "opt", "gpt2", "llama"])
def test_stored_log_probs_are_those_of_the_sequence_alone(tmp_path, kind):
    """Whatever padding stands before a prompt, and however a model counts it: asked at start, not told by a name."""
    model, shifts = model_of(kind)
    args = h.config(tmp_path, max_steps=1, learning_rate=0.0, start_pass_at_1=0.0)
    trainer = h.trainer(
        args, h.questions(16, width=9), model=model,
        script=lambda generation, prompt, member: f"a{prompt[1 : prompt.index('=')]}$" if member < 1 else "zz$",
    )  # fmt: skip
    assert trainer._has_absolute_positions == shifts
    trainer.train()
    buffer = trainer.planner.buffer
    stored = [buffer.get(int(slot)) for slot in buffer.live_slots()]
    assert len(stored) == 8
    for trajectory in stored:
        prompt = trainer.questions.prompt_ids(trajectory.question)
        alone, _ = h.score_alone(model.eval(), prompt, trajectory.completion_ids.tolist())
        np.testing.assert_allclose(trajectory.behaviour_logps, alone, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("refresh", ["lazy", "exact"])
def test_the_trainer_replays_the_lowest_entropy(tmp_path, refresh):
    """Of what it may compare: all candidates (exact), or those whose cached entropies are lowest (lazy)."""

    def script(generation, prompt, member):
        return f"{'abcd'[member]}{prompt[1:-1]}$" if generation == 0 and member < 3 else "zz$"

    args = h.config(
        tmp_path, max_steps=2, start_pass_at_1=0.0, replay_share=1.0, entropy_refresh=refresh, learning_rate=0.0,
        retirement="never",
    )  # fmt: skip
    trainer = h.trainer(args, h.questions(8), script=script)
    trainer.train()
    buffer, plain = trainer.planner.buffer, h.tiny_model()
    for question in range(8):
        slots = buffer.slots_of(question)
        alone = {
            int(buffer.column("serial")[s]): np.mean(
                h.score_alone(plain, trainer.questions.prompt_ids(question), buffer.get(s).completion_ids.tolist())[1]
            )
            for s in slots
        }
        [serial] = [e.serial for e in trainer.events if type(e).__name__ == "Replayed" and e.question == question]
        assert serial == min(alone, key=alone.get)
    measured = [e for e in trainer.events if type(e).__name__ == "Measured"]
    # 8 from the training forward of the replayed rows; 24 more where every candidate is measured at every draw
    assert len(measured) == (8 if refresh == "lazy" else 32)
