"""Rows without gradient are left out, and nothing else changes: the gradient is the same, and so is a run."""

import random

import numpy as np
import pytest
import torch

from exgrpo.errors import ConfigurationError
from exgrpo.runtime.skip_rows import counted, only, rows_to_compute
from exgrpo.trl.skip_rows import why_not_exact
from tests.support import harness as h

CORRECTIONS = ("shaped", "clip", "truncated", "none", "likelihood")


def script(generation, prompt, member):
    """Of every four questions one is all right, one all wrong, two are mixed; lengths differ."""
    i = int(prompt[1:].split("=")[0])
    right = {0: True, 1: False}.get(i % 4, (member + i + generation) % 3 == 0)
    return f"{'abcdefgh'[member % 8]}{i}$" if right else "z" * (1 + (7 * i + member + generation) % 9) + "$"


def run(folder, skip, steps=1, seed=0, **options):
    args = h.config(
        folder, **{
            "skip_rows": skip, "max_steps": steps, "start_pass_at_1": 0.0, "optim": "sgd", "learning_rate": 0.5,
            "max_grad_norm": 0.0, "retirement": "never", "temperature": 1.0, "seed": seed, **options,
        },
    )  # fmt: skip
    trainer = h.trainer(args, h.questions(24), script=script)
    torch.manual_seed(seed)
    trainer.train()
    return trainer


def difference(a, b) -> float:
    pairs = zip(a.model.parameters(), b.model.parameters(), strict=True)
    return max(float((p.detach() - q.detach()).abs().max()) for p, q in pairs)


def moved(trainer) -> float:
    fresh = h.tiny_model()
    return max(
        float((p.detach() - q.detach()).abs().max())
        for p, q in zip(trainer.model.parameters(), fresh.parameters(), strict=True)
    )


def drawn(seed: int) -> dict:
    """Options of a random run: preset, correction, loss, and how a generation of 32 rows is cut."""
    draw = random.Random(seed)
    preset = draw.choice(
        ["exgrpo", "exgrpo", "rescue", "on-policy", "positive-weight", "headroom-drift", "entropy-guided"]
    )
    rows = draw.choice([4, 8, 16, 32])
    options = {
        "preset": preset, "loss_type": draw.choice(["dr_grpo", "grpo", "dapo"]), "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": 32 // rows, "scale_rewards": draw.choice(["none", "group"]),
        "positive_weight": draw.choice([1.0, 8.0]),
    }  # fmt: skip
    if preset in ("exgrpo", "rescue"):
        options["correction"] = draw.choice(CORRECTIONS)
    if preset == "entropy-guided":
        options |= {"start_epoch": 0.0, "start_size": 0, "replay_probability": 0.7, "entropy_percentile": 80.0}
    if preset == "headroom-drift":
        options |= {"max_drift": 1.0}
    return options


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 24))])
def test_the_gradient_is_the_same(tmp_path, seed):
    """Plain gradient descent with one update a generation: parameters differ by what the gradients do."""
    options = drawn(seed)
    on, off = (run(tmp_path / str(skip), skip, steps=3, **options) for skip in (True, False))
    assert difference(on, off) < 2e-6
    assert moved(off) > 1e-3
    skipped = [row["fresh/rows_skipped"] for row in on.state.log_history if "fresh/rows_skipped" in row]
    if options["preset"] not in ("headroom-drift", "entropy-guided"):  # these store all, and need all log-probs
        assert max(skipped) > 0.2
    assert not any("fresh/rows_skipped" in row for row in off.state.log_history)


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["exgrpo", "rescue", "on-policy"])
def test_twenty_steps_end_alike(tmp_path, preset):
    """Same seed, same completions, Adam: parameters equal to float tolerance, and all that is logged but entropies."""
    options = {"preset": preset, "optim": "adamw_torch", "learning_rate": 1e-3, "trajectory_choice": "newest"}
    on, off = (run(tmp_path / str(skip), skip, steps=20, **options) for skip in (None, False))
    assert difference(on, off) < 2e-4
    rows = [[r for r in t.state.log_history if "loss" in r] for t in (on, off)]
    for a, b in zip(*rows, strict=True):
        for name in ("reward", "completions/mean_length", "clip_ratio/region_mean", "frac_reward_zero_std", "fresh/pass_at_1",
                     "replay/share", "replay/size", "replay/age_mean"):  # fmt: skip
            if name in b:
                assert a[name] == pytest.approx(b[name], abs=2e-4), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    [{}, {"importance_sampling_level": "sequence"}, {"loss_type": "cispo", "epsilon_high": 1.1, "learning_rate": 3.0}],
)
def test_clip_ratios_are_those_of_all_rows(tmp_path, host):
    """Several passes over a generation, a rate at which ratios leave the clip: the host's means over all rows."""
    options = {"num_iterations": 4, "learning_rate": 30.0, "preset": "on-policy", **host}
    on, off = (run(tmp_path / str(skip), skip, steps=4, **options) for skip in (True, False))
    found = []
    for a, b in zip(on.state.log_history, off.state.log_history, strict=True):
        for name in b:
            if "clip_ratio" in name:
                assert a[name] == pytest.approx(b[name], abs=1e-3), name
                found.append(b[name])
    assert max(found) > 0.01


def test_a_generation_without_any_gradient_still_runs(tmp_path):
    trainer = h.trainer(
        h.config(tmp_path, max_steps=2, per_device_train_batch_size=8, gradient_accumulation_steps=4),
        h.questions(24), script=lambda generation, prompt, member: "zz$",
    )  # fmt: skip
    trainer.train()
    assert moved(trainer) == 0.0
    assert trainer.state.log_history[0]["fresh/rows_skipped"] == pytest.approx(7 / 8)
    assert trainer.state.log_history[0]["fresh/entropy"] > 0


def test_what_will_be_stored_is_computed(tmp_path):
    """All right and not retired: no gradient, but their log-probs are needed."""
    trainer = run(tmp_path, True, steps=1)
    stored = [trainer.planner.buffer.get(slot) for slot in trainer.planner.buffer.live_slots()]
    assert {t.question % 4 for t in stored} >= {0, 2, 3}
    for t in stored:
        alone = h.score_alone(h.tiny_model(), trainer.questions.prompt_ids(t.question), t.completion_ids.tolist())[0]
        np.testing.assert_allclose(t.behaviour_logps, alone, atol=2e-5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (dict(entropy_coef=0.001), "entropy bonus"),
        (dict(preset="on-policy", loss_type="bnpo"), "bnpo"),
        (dict(preset="on-policy", loss_type="vespo"), "vespo"),
        (dict(preset="on-policy", top_entropy_quantile=0.5), "top_entropy_quantile"),
    ],
)
def test_where_it_is_not_exact_it_is_off_and_asking_for_it_is_refused(tmp_path, options, why):
    assert not h.trainer(h.config(tmp_path / "a", **options), h.questions(24))._skips_rows
    with pytest.raises(ConfigurationError, match=f"skip_rows=True.*{why}"):
        h.trainer(h.config(tmp_path / "b", skip_rows=True, **options), h.questions(24))


def test_a_kl_term_is_a_reason(tmp_path):
    trainer = h.trainer(h.config(tmp_path), h.questions(24))
    assert why_not_exact(trainer) is None
    trainer.args.beta = 0.01
    assert "KL" in why_not_exact(trainer)
    trainer.args.beta = 0.0
    trainer.model.add_module("dropout", torch.nn.Dropout(0.1))
    assert "dropout" in why_not_exact(trainer)


def test_rows_and_columns_that_are_left():
    inputs = {
        "advantages": torch.tensor([0.0, 0.5, 0.0, -0.5]),
        "completion_mask": torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]),
        "completion_ids": torch.arange(16).view(4, 4), "prompt_ids": torch.arange(16).view(4, 4),
        "num_items_in_batch": torch.tensor(11),
    }  # fmt: skip

    def rows_of(given, needed=None, **more):
        return rows_to_compute(given, counted(given, needed), **more)

    rows = rows_of(inputs)
    assert rows.tolist() == [1, 3]
    left = only(inputs, rows)
    assert left["completion_ids"].tolist() == [[4, 5], [12, 13]]
    assert left["prompt_ids"].tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
    assert left["num_items_in_batch"] == 11
    assert rows_of(inputs | {"advantages": torch.ones(4)}) is None
    none = inputs | {"advantages": torch.zeros(4)}
    assert rows_of(none).tolist() == [1]  # the shortest
    assert rows_of(inputs, most=lambda n: n + 1).tolist() == [0, 1, 3]  # another process computes three
    assert rows_of(inputs, most=lambda n: 4) is None
    assert rows_of(none, torch.tensor([True, False, False, False])).tolist() == [0]
