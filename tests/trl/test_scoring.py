"""Entropies of stored trajectories equal those of the sequence scored alone."""

import harness as h
import numpy as np
import pytest

from exgrpo.trl.scoring import mean_entropies


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
    expected = [np.mean(h.score_alone(plain, *item, temperature)[1]) for item in items]
    np.testing.assert_allclose(mean_entropies(trainer, items), expected, atol=2e-5)
    order = rng.permutation(13)
    np.testing.assert_allclose(
        mean_entropies(trainer, [items[i] for i in order]), [expected[i] for i in order], atol=2e-5
    )


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
