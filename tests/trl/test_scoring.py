"""What is measured of stored trajectories equals what the sequence scored alone gives."""

import harness as h
import numpy as np
import pytest

from exgrpo.experience import Trajectory
from exgrpo.trl.scoring import measure


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
        found = measure(trainer, [given[i] for i in order])
        return [[s.entropy, s.nll, s.confidence, s.confidence_variance, s.drift] for s in found]

    np.testing.assert_allclose(measured(range(13)), expected, rtol=1e-4, atol=2e-5)
    order = rng.permutation(13)
    np.testing.assert_allclose(measured(order), [expected[i] for i in order], rtol=1e-4, atol=2e-5)


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
