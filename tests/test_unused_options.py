"""What is set in vain is told: no more, no less."""

from dataclasses import fields

import pytest

from exgrpo import PRESETS, ObjectiveConfig, ReplayConfig, resolve
from exgrpo.unused_options import without_effect


def idle(preset="exgrpo", **options):
    return without_effect(preset, *resolve(preset, **options))


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_itself_sets_nothing_in_vain(preset):
    assert idle(preset) == []
    replay, objective = resolve(preset)
    base_replay, base_objective = ReplayConfig(), ObjectiveConfig()
    for config, base in ((replay, base_replay), (objective, base_objective)):
        for f in fields(config):
            if getattr(config, f.name) != getattr(base, f.name) and f.name not in ("truncation",):
                assert f.metadata["used_if"](replay, objective), f.name


@pytest.mark.parametrize(
    ("preset", "options", "expected"),
    [
        ("on-policy", dict(correction="truncated", max_age=5), ["max_age", "correction"]),
        ("on-policy", dict(positive_weight=2.0, clip_fresh=False), []),
        ("prompt-replay", dict(admission="all", max_age=3, sigma=1.0, cooldown=2), ["admission", "max_age"]),
        ("rescue", dict(sigma=1.0, replay_share=0.2, max_age=3), ["replay_share", "sigma"]),
        ("rescue", dict(difficulty="window"), ["difficulty"]),
        ("rescue", dict(difficulty="window", difficulty_window=9, retirement="threshold"), []),
        ("quality-tiers", dict(replay_share=0.2), ["replay_share"]),
        ("exgrpo", dict(replay_probability=0.9), ["replay_probability"]),
        ("entropy-guided", dict(replay_share=0.9), ["replay_share"]),
        ("exgrpo", dict(question_choice="uniform", sigma=1.0, mu=0.3), ["mu", "sigma"]),
        ("exgrpo", dict(question_choice="linear", mu=0.3), []),
        ("exgrpo", dict(trajectory_choice="newest", entropy_refresh="exact"), ["entropy_refresh"]),
        ("exgrpo", dict(entropy_refresh="exact", max_entropy_age=3), ["max_entropy_age"]),
        ("exgrpo", dict(shaping_beta=0.2, truncation=3.0), ["truncation"]),
        ("headroom-drift", dict(baseline="fresh", replays_per_group=2), ["replays_per_group", "baseline"]),
        ("exgrpo", dict(question_choice="math.isclose", sigma=1.0), []),  # one's own may read anything
        ("exgrpo", dict(review_share=0.5), ["review_share"]),
        ("exgrpo", dict(review_share=0.5, review_every=10), []),
        ("exgrpo", dict(review_every=10, retirement="never"), ["review_every"]),
        ("exgrpo", dict(retired_in_stream=True, retirement="never"), ["retired_in_stream"]),
        ("exgrpo", dict(retired_in_stream=True), []),
        ("random-replay", dict(difficulty="window", difficulty_window=9), ["difficulty", "difficulty_window"]),
        ("rescue", dict(by_problem_type=True), ["by_problem_type"]),
    ],
)
def test_what_is_set_in_vain(preset, options, expected):
    assert idle(preset, **options) == expected
