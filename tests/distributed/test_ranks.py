"""Two ranks under gloo: the same experience on each, and the same as one rank's; nothing hangs."""

from pathlib import Path

import numpy as np
import pytest

from tests.support.launch import launch_all
from tests.support.runs import COMMON, SAVING, difference, without_tokens

pytestmark = pytest.mark.slow


def launch(output: Path, world: int, **options) -> list[dict]:
    """One run; what each rank says of it."""
    return [results[0] for results in launch_all(output, world, [options])]


BOTH = {
    "exgrpo": ({"preset": "exgrpo"}, {"per_device_train_batch_size": 32}, {"per_device_train_batch_size": 16}),
    "rescue": ({"preset": "rescue"}, {"per_device_train_batch_size": 32}, {"per_device_train_batch_size": 16}),
    # groups of 8 over 12 rows a rank: the second group straddles the ranks
    "straddling": (
        {"preset": "exgrpo", "num_generations": 8, "entropy_refresh": "exact"},
        {"per_device_train_batch_size": 24},
        {"per_device_train_batch_size": 12},
    ),
    "rescue, straddling": (
        {"preset": "rescue", "num_generations": 8, "trajectory_choice": "lowest_entropy", "questions": 12},
        {"per_device_train_batch_size": 24},
        {"per_device_train_batch_size": 12},
    ),
    "added, in more micro-batches than there are": (
        {
            "mixing": "added",
            "replay_share": 0.25,
            "question_choice": "uniform",
            "trajectory_choice": "random",
            "admission": "all",
            "max_drift": 0.0,
        },
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    ),
    "whole groups by the coin": (
        {
            "mixing": "coin",
            "replay_probability": 0.7,
            "replays_per_group": 4,
            "admission": "all",
            "baseline": "split",
            "trajectory_choice": "newest",
            "cooldown": 1,
            "difficulty": "window",
        },
        {"per_device_train_batch_size": 32},
        {"per_device_train_batch_size": 16},
    ),
    "quality": (
        {"preset": "quality-tiers", "min_quality": 0.1, "retirement": "solved", "max_uses": 3},
        {"per_device_train_batch_size": 32},
        {"per_device_train_batch_size": 16},
    ),
    # groups of 8 over 12 rows a rank: one that begins inside a stored success straddles the ranks
    "prefixes, straddling": (
        {
            "mixing": "prefix",
            "question_choice": "uniform",
            "trajectory_choice": "random",
            "prefix_length": "controlled",
            "admit_prefixed": True,
            "num_generations": 8,
            "skip_rows": False,  # of a batch without any variance other rows would be computed, for the entropy
        },
        {"per_device_train_batch_size": 24},
        {"per_device_train_batch_size": 12},
    ),
    "questions left out, added beyond a batch": (
        {
            "mixing": "added",
            "replay_share": 1.5,
            "advantage": "current",
            "question_choice": "uniform",
            "trajectory_choice": "random",
            "age_decay": 3.0,
            "skip": "zero_variance",
            "skip_explore": 0.3,
        },
        {"per_device_train_batch_size": 32},
        {"per_device_train_batch_size": 16},
    ),
    "dapo, accumulated": (
        {"preset": "exgrpo", "loss_type": "dapo"},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
    ),
}
SAMPLED = {preset: {"preset": preset, "per_device_train_batch_size": 16} for preset in ("exgrpo", "rescue")}


@pytest.fixture(scope="module")
def on_both(tmp_path_factory):
    """Of each case what one rank says, and what two say; real sampling on two only."""
    folder = tmp_path_factory.mktemp("both")
    scripted = {"scripted": True, **COMMON}
    [single] = launch_all(folder / "one", 1, [{**scripted, **options, **one} for options, one, _ in BOTH.values()])
    jobs = [{**scripted, **options, **two} for options, _, two in BOTH.values()]
    jobs += [{"scripted": False, **COMMON, **options} for options in SAMPLED.values()]
    first, second = launch_all(folder / "two", 2, jobs)
    names = [*BOTH, *(f"sampled {name}" for name in SAMPLED)]
    return {
        name: (a, b, c) for name, a, b, c in zip(names, [*single, *[None] * len(SAMPLED)], first, second, strict=True)
    }


@pytest.mark.parametrize("name", BOTH)
def test_two_ranks_do_what_one_does(on_both, name):
    """Scripted completions, one optimizer step a generation: the same events, the same parameters to float tolerance."""
    single, first, second = on_both[name]
    assert first["fingerprint"] == second["fingerprint"]
    assert first["parameters"] == second["parameters"]
    assert first["events"] == single["events"]
    assert without_tokens(first["events"]) == second["events"]
    assert any(event[0] == "replayed" for event in single["events"])
    assert any(event[0] == "retired" for event in single["events"])
    assert first["generated_tokens"] == single["generated_tokens"]
    for a, b in zip(single["behaviour"], first["behaviour"], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-4)
    assert difference(single["parameters"], first["parameters"]) < 2e-4
    for a, b in zip(single["logs"], first["logs"], strict=True):
        others = {"fresh/rows_skipped"}  # all processes compute as many rows as the one with the most
        assert a.keys() - others == b.keys() - others
        for name, value in a.items():
            if name not in others:
                assert value == pytest.approx(b[name], abs=1e-3, nan_ok=True), name


@pytest.mark.parametrize("preset", SAMPLED)
def test_real_sampling_leaves_both_ranks_alike(on_both, preset):
    _, first, second = on_both[f"sampled {preset}"]
    assert first["fingerprint"] == second["fingerprint"]
    assert first["parameters"] == second["parameters"]
    assert without_tokens(first["events"]) == second["events"]
    assert any(event[0] == "admitted" for event in first["events"])


def test_rows_left_out_on_two_ranks_change_nothing(tmp_path):
    """One rank may compute one row of a micro-batch and the other all of its own."""
    options = {
        **COMMON, "scripted": True, "retirement": "never", "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2,
        "trajectory_choice": "newest",
    }  # fmt: skip
    results, _ = launch_all(tmp_path / "two", 2, [{**options, "skip_rows": skip} for skip in (True, False)])
    on, off = results
    kinds = ("observed", "admitted", "replayed", "retired")
    on_events, off_events = ([e for e in result["events"] if e[0] in kinds] for result in results)
    assert on_events == off_events
    assert difference(on["parameters"], off["parameters"]) < 2e-4
    skipped = [row["fresh/rows_skipped"] for row in on["logs"] if "fresh/rows_skipped" in row]
    assert max(skipped) > 0.1


def test_a_rank_with_nothing_to_generate_does_not_hang(tmp_path):
    """K = 2 with one row a rank, everything replayed: the second rank holds only stored trajectories [FAULTS 28]."""
    options = {**COMMON, "num_generations": 2, "per_device_train_batch_size": 1, "replay_share": 1.0, "max_steps": 12}
    first, second = launch(
        tmp_path / "two", 2, scripted=True, count_calls=True, questions=4, retirement="never", **options
    )
    assert without_tokens(first["events"]) == second["events"]
    replays = sum(event[0] == "replayed" for event in first["events"])
    assert replays >= 3
    calls = [len((tmp_path / "two" / f"calls-{rank}.txt").read_text().split()) for rank in (0, 1)]
    assert calls == [12, 12 - replays]


# Resuming ---------------------------------------------------------------------------------------------------------------

RESUMED = {
    "exgrpo": (3, {"preset": "exgrpo", "per_device_train_batch_size": 16}),
    "rescue over an epoch": (5, {"preset": "rescue", "per_device_train_batch_size": 16, "questions": 20}),
    "mid block": (
        3, {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 1},
    ),
    "mid block, straddling": (4, {"per_device_train_batch_size": 12, "num_generations": 8, "num_iterations": 3}),
    "quality, mid block": (
        3,
        {
            "preset": "quality-tiers", "min_quality": 0.1, "per_device_train_batch_size": 8, "steps_per_generation": 2,
            "gradient_accumulation_steps": 1,
        },
    ),
    "added, mid block": (
        5,
        {
            "preset": "headroom-drift", "max_drift": 0.5, "per_device_train_batch_size": 8, "steps_per_generation": 2,
            "gradient_accumulation_steps": 1,
        },
    ),
    "prefixes, mid block": (
        5,
        {
            "mixing": "prefix", "question_choice": "uniform", "prefix_length": "controlled", "retirement": "never",
            "per_device_train_batch_size": 8, "steps_per_generation": 2, "gradient_accumulation_steps": 1,
        },
    ),
    "questions left out, on-policy": (
        5, {"preset": "on-policy", "skip": "zero_variance", "per_device_train_batch_size": 16, "questions": 20},
    ),
    "on-policy, mid block, over an epoch": (
        5, {"preset": "on-policy", "per_device_train_batch_size": 16, "questions": 20, "num_iterations": 2},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    """Of each case and rank a whole run and one that resumed from a checkpoint of it."""
    folder = tmp_path_factory.mktemp("resumed")
    jobs = []
    for number, (at, options) in enumerate(RESUMED.values()):
        run = str(folder / f"run-{number}")
        jobs += [{**SAVING, **options, "run": run}]
        jobs += [{**SAVING, **options, "run": run, "resume": f"{run}/checkpoint-{at}"}]
    ranks = launch_all(folder / "out", 2, jobs)
    return {
        name: [(results[2 * i], results[2 * i + 1]) for results in ranks] for i, name in enumerate(RESUMED)
    }  # fmt: skip


@pytest.mark.parametrize("name", RESUMED)
def test_two_ranks_resume_bit_equal(resumed, name):
    for whole, again in resumed[name]:
        for what in ("fingerprint", "parameters", "optimizer", "generated_tokens", "rng", "step"):
            assert whole[what] == again[what], what
    (_, first), (_, second) = resumed[name]
    assert first["fingerprint"] == second["fingerprint"]
    assert first["parameters"] == second["parameters"]


CHANGED = {
    "two to one": (2, 1, {"preset": "exgrpo"}),
    "one to two": (1, 2, {"preset": "exgrpo"}),
    "two to one, mid block": (2, 1, {"preset": "exgrpo", "num_iterations": 3}),
    "one to two, mid block": (1, 2, {"preset": "rescue", "num_iterations": 3}),
}


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Of each case a run that stopped and went on with as many ranks, and one that went on with another number."""
    folder = tmp_path_factory.mktemp("changed")
    sizes = {1: {"per_device_train_batch_size": 32}, 2: {"per_device_train_batch_size": 16}}
    first, other = {1: {}, 2: {}}, {1: {}, 2: {}}
    for number, (name, (before, after, options)) in enumerate(CHANGED.items()):
        run = str(folder / f"run-{number}")
        of_run = {**SAVING, **options, "run": run}
        resume = {"resume": f"{run}/checkpoint-4"}
        first[before][name] = [of_run | sizes[before], of_run | sizes[before] | resume | {"stop": 4}]
        other[after][name] = of_run | sizes[after] | resume
    same, different = {}, {}
    for world in (1, 2):
        ranks = launch_all(folder / f"first-{world}", world, [job for pair in first[world].values() for job in pair])
        same |= {name: [results[2 * i + 1] for results in ranks] for i, name in enumerate(first[world])}
    for world in (1, 2):
        ranks = launch_all(folder / f"other-{world}", world, list(other[world].values()))
        different |= {name: [results[i] for results in ranks] for i, name in enumerate(other[world])}
    return {name: (same[name], different[name]) for name in CHANGED}


@pytest.mark.parametrize("name", CHANGED)
def test_another_number_of_ranks_has_the_same_experience(changed, name):
    """The experience at the checkpoint is the same on as many ranks as there are now, and training goes on."""
    same, other = changed[name]
    begins = [result["experience_at_start"] for result in (*same, *other)]
    assert len(begins[0]["trajectories"]) > 5
    if "mid block" not in name:
        assert all(begin == begins[0] for begin in begins)
    else:  # the successes of the batch under way were stored, nothing else changed
        stored, size = begins[-1]["trajectories"], len(begins[0]["trajectories"])
        assert all(begin == begins[-1] for begin in begins[len(same) :])
        assert stored[:size] == begins[0]["trajectories"]
        assert begins[-1]["accuracies"] == begins[0]["accuracies"]
    assert all(result["step"] == 8 for result in other)
    assert len({result["fingerprint"] for result in other}) == 1


def test_an_error_of_the_log_reaches_every_rank(tmp_path):
    """A log that cannot be opened, on the main process, is an error on all: none waits for the others."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experience.db").write_bytes(b"no database" * 1000)
    with pytest.raises(AssertionError, match=r"experience\.db is damaged"):
        launch(tmp_path / "out", 2, run=str(tmp_path / "run"), per_device_train_batch_size=16, **SAVING)
