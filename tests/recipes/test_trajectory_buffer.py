"""Recipe A: what its buffer holds and draws, and the loop of the example."""

import math
import re
import runpy
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.errors import ConfigurationError, TrajectoryError
from exgrpo.recipes import DifficultyBucketer, TrajectoryBuffer, trajectory_buffer
from exgrpo.recipes.entropy_guided import STRATEGIES

EXAMPLE = Path(__file__).parents[2] / "examples" / "trajectory_buffer_loop.py"


def put(buffer, prompt="q", rollout="r", reward=1.0, entropy=0.5, **more):
    return buffer.add({"prompt": prompt, "rollout": rollout, "reward": reward, "entropy": entropy, **more})


def buffer_of(rates: dict, entropies=lambda i: i / 100, **options) -> TrajectoryBuffer:
    """Ten trajectories of each question, so many of them right, named and measured in the order in which they come."""
    buffer = TrajectoryBuffer(**options)
    for i in range(10):
        for prompt, right in rates.items():
            put(buffer, prompt, f"{prompt}-{i}", float(i < right), entropies(len(buffer)))
    return buffer


# In and out -------------------------------------------------------------------------------------------------------------


def test_what_is_added_comes_back_as_it_was():
    buffer = TrajectoryBuffer()
    text = "The mean\n of 3 and 5 <|im_end|> 😀\udcff"
    assert put(buffer, "What?", text, 0.25, 1.5)
    ids = torch.tensor([7, 0, 123_456], dtype=torch.int64)
    logps = torch.tensor([-0.5, -91.0, 0.0], dtype=torch.bfloat16)
    assert put(buffer, torch.tensor([1, 2]), ids, torch.tensor(1.0), np.float32(0.75), behaviour_logps=logps)
    assert put(buffer, [1, 2], [4], 0)
    assert len(buffer) == 3
    sample = buffer.sample("random", 9)
    assert len(sample) == len(sample.prompts) == 3
    rows = {str(rollout): i for i, rollout in enumerate(sample.rollouts)}
    t, a, b = rows[text], rows["[     7      0 123456]"], rows["[4]"]
    assert sample.prompts[t] == "What?"
    assert torch.equal(sample.prompts[a], torch.tensor([1, 2]))
    assert (sample.rewards[t], sample.entropies[t], sample.rates[t], sample.is_correct[t]) == (0.25, 1.5, 0, False)
    assert (sample.rewards[a], sample.entropies[a], sample.rates[a], sample.is_correct[a]) == (1, 0.75, 0.5, True)
    assert sample.behaviour_logps[a].tolist() == [-0.5, -91, 0]
    assert sample.behaviour_logps[t] is sample.behaviour_logps[b] is None
    assert sample.questions[a] == sample.questions[b] != sample.questions[t]
    assert sample["rewards"] is sample.rewards
    with pytest.raises(KeyError, match="prompts, rollouts, rewards"):
        sample["answers"]


def test_a_sample_is_a_mapping_of_columns():
    sample = buffer_of({"q": 5}).sample("random", 4)
    names = {"prompts", "rollouts", "rewards", "is_correct", "entropies", "rates", "questions", "behaviour_logps"}
    assert isinstance(sample, Mapping)
    assert set(sample) == set(sample.keys()) == set(dict(sample)) == set({**sample}) == names
    assert (len(sample), len(sample.keys()), len(sample.items()), "rewards" in sample) == (4, 8, 8, True)
    assert sample.get("rewards") is dict(sample.items())["rewards"] is sample.rewards
    assert sample.get("answers") is None
    assert sample == sample != buffer_of({"q": 5}).sample("random", 4)


def test_what_is_stored_is_the_buffer_s_own():
    """Neither what was added nor what was drawn changes it; what was drawn may be written to."""
    buffer, batch, ids, logps = TrajectoryBuffer(), torch.ones(4, 2, dtype=torch.long), [3, 4], np.array([-1.0, -1.0])
    put(buffer, batch[0], ids, behaviour_logps=logps)
    batch.zero_()
    ids[0], logps[:] = 9, -9
    for _ in range(2):
        sample = buffer.sample("random", 1)
        assert sample.prompts[0].tolist() == [1, 1]
        assert sample.rollouts[0].tolist() == [3, 4]
        assert sample.behaviour_logps[0].tolist() == [-1, -1]
        sample.rollouts[0][:] = sample.behaviour_logps[0][:] = 0
        assert torch.from_numpy(sample.rollouts[0]).tolist() == [0, 0]
    assert sample.prompts[0].untyped_storage().nbytes() == 16, "not the whole batch"


def test_what_counts_as_correct():
    buffer = TrajectoryBuffer()
    for reward, more in ((0.5, {}), (0.51, {}), (0.0, {"is_correct": True}), (1.0, {"is_correct": np.False_})):
        put(buffer, "q", f"{reward}", reward, **more)
    sample = buffer.sample("random", 9)
    found = dict(zip(sample.rollouts, sample.is_correct.tolist(), strict=True))
    assert found == {"0.5": False, "0.51": True, "0.0": True, "1.0": False}
    assert buffer.difficulty.rate("q") == 0.5


def test_what_cannot_be_scored_is_neither_stored_nor_counted():
    buffer = TrajectoryBuffer()
    assert not put(buffer, reward=None)
    assert not put(buffer, reward=math.nan)
    assert (len(buffer), len(buffer.difficulty)) == (0, 0)


def test_a_rollout_that_comes_twice_is_stored_twice():
    buffer = TrajectoryBuffer()
    assert [put(buffer), put(buffer), put(buffer, rollout=[1]), put(buffer, rollout=[1])] == [True] * 4
    assert Counter(map(str, buffer.sample("random", 9).rollouts)) == {"r": 2, "[1]": 2}


def test_a_replayed_one_that_is_added_again_is_known():
    buffer = TrajectoryBuffer()
    put(buffer, "q", "text", 0.0)
    put(buffer, "q", [1, 2], 0.0)
    for rollout in buffer.sample("random", 9).rollouts:
        assert not put(buffer, "q", rollout, 1.0)
    assert (len(buffer), buffer.difficulty.rate("q")) == (2, 0)
    assert put(buffer, "q", "text", 1.0), "generated once more"


def test_the_oldest_leaves_first():
    buffer = TrajectoryBuffer(max_size=4, max_per_question=3)
    for prompt, rollout in (("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("a", "5"), ("b", "6"), ("b", "7")):
        put(buffer, prompt, rollout)
    assert len(buffer) == 4
    assert sorted(buffer.sample("random", 9).rollouts) == ["4", "5", "6", "7"]


def test_clear():
    buffer = buffer_of({"q": 5})
    buffer.policy_snapshot = "old"
    first = buffer.sample("random", 4).rollouts
    buffer.clear()
    assert (len(buffer), buffer.policy_snapshot, buffer.tier("q")) == (0, None, None)
    assert not len(buffer.sample("random", 4))
    for i in range(10):
        put(buffer, "q", f"q-{i}", float(i < 5), i / 100)
    assert buffer.sample("random", 4, seed=(0, 0)).rollouts == first


@pytest.mark.parametrize(
    ("change", "match"),
    [({"entropy": ...}, "lacks 'entropy'"), ({"prompt": ...}, "lacks 'prompt'"), ({"entropie": 1}, "unknown key 'entropie'"),
     ({"rollout": []}, "prompt 'What is': .*non-empty"), ({"rollout": [1.5]}, "integers"), ({"rollout": [-1]}, "0 or more"),
     ({"entropy": -1.0}, "entropy"), ({"entropy": math.inf}, "entropy"), ({"reward": math.inf}, "rewards"),
     ({"rollout": [1, 2], "behaviour_logps": [-1.0]}, r"\(2,\) and \(1,\)"), ({"behaviour_logps": [-1.0]}, "is text"),
     ({"rollout": [1], "behaviour_logps": [math.nan]}, "finite")],
)  # fmt: skip
def test_what_cannot_be_added_is_refused_and_leaves_no_trace(change, match):
    given = {"prompt": "What is", "rollout": "r", "reward": 1.0, "entropy": 0.5} | change
    given = {name: value for name, value in given.items() if value is not ...}
    buffer = TrajectoryBuffer()
    with pytest.raises(TrajectoryError, match=match):
        buffer.add(given)
    assert (len(buffer), len(buffer.difficulty)) == (0, 0)


# Drawing ----------------------------------------------------------------------------------------------------------------


def test_medium_difficulty_low_entropy_by_hand():
    """Rates 0.3, 0.4, 0.6, 0.7 of 10 each: the 40 entropies are 0.00 to 0.39 in turn, the percentile 25 is the 10th, 0.09.
    Of 0.4 and 0.6 the first two (numbers 1, 2, 5, 6) and of 0.4 a third one (9) are at or below it."""
    buffer = buffer_of({"30": 3, "40": 4, "60": 6, "70": 7})
    assert sorted(buffer.sample(size=99).rollouts) == ["40-0", "40-1", "40-2", "60-0", "60-1"]
    assert sorted(buffer.sample(size=99, entropy_percentile=2.5).rollouts) == []
    assert sorted(buffer.sample(size=99, entropy_percentile=5).rollouts) == ["40-0"]
    assert sorted(buffer.sample(size=99, difficulty_range=(0.2, 0.4)).rollouts) == ["30-0", "30-1", "30-2"]
    assert len(buffer.sample("medium_difficulty", 99, group_size=10)) == 20
    assert len(buffer.sample("low_entropy", 99)) == 10
    assert len(buffer.sample("random", 99, group_size=9)) == 36


def test_an_entropy_that_is_not_known_is_never_low():
    buffer = buffer_of({"q": 5}, entropies=lambda i: math.nan if i < 5 else 1.0)
    assert sorted(buffer.sample(size=99).rollouts) == ["q-5", "q-6", "q-7", "q-8", "q-9"]


def test_bounds_that_adapt():
    """Rates 0, 0.1, ..., 0.4 of a hard set: the quantiles 0.3 and 0.7 of five are 0.1 and 0.3."""
    rates = {str(n): n for n in range(5)}
    buffer = buffer_of(rates, difficulty=DifficultyBucketer(adaptive=True))
    assert set(buffer.sample("medium_difficulty", 99).prompts) == {"1", "2", "3"}
    assert not len(buffer_of({"1": 1, "2": 2}).sample("medium_difficulty", 99))


def test_bounds_that_adapt_to_each_problem_type():
    buffer = TrajectoryBuffer(difficulty=DifficultyBucketer(adaptive=True, by_problem_type=True))
    for prompt, right, kind in (
        ("a", 1, "x"),
        ("b", 2, "x"),
        ("c", 3, "x"),
        ("d", 8, "y"),
        ("e", 9, "y"),
        ("f", 10, "y"),
    ):
        for i in range(10):
            put(buffer, prompt, f"{i}", float(i < right), problem_type=kind)
    assert set(buffer.sample("medium_difficulty", 99, (0.4, 0.6)).prompts) == {"b", "e"}


def test_those_of_a_question_stand_side_by_side_and_not_too_many():
    sample = buffer_of({f"q{n}": 5 for n in range(20)}).sample("random", 32, group_size=5)
    changes = [a for a, b in zip(sample.prompts, [*sample.prompts[1:], None], strict=True) if a != b]
    assert len(changes) == len(set(changes)) == 7
    assert sorted(Counter(sample.prompts).values()) == [2, 5, 5, 5, 5, 5, 5]
    assert len(set(sample.rollouts)) == 32


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_too_few_are_what_there_is(strategy):
    assert len(TrajectoryBuffer().sample(strategy, 8)) == 0
    assert TrajectoryBuffer().sample(strategy, 8).rewards.shape == (0,)
    buffer = TrajectoryBuffer()
    put(buffer)
    assert len(buffer.sample(strategy, 8)) == (0 if "medium" in strategy or strategy == "entropy_guided" else 1)
    assert len(buffer_of({"q": 5}, entropies=lambda i: 1.0).sample(strategy, 0)) == 0
    assert len(buffer_of({"q": 5}, entropies=lambda i: 1.0).sample(strategy, 8)) == 8, "tied entropies are all low"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_seed_decides(strategy):
    rates = {f"q{n}": 4 + n % 3 for n in range(30)}
    one, two = (buffer_of(rates, seed=7) for _ in range(2))
    draws = [one.sample(strategy, 16).rollouts for _ in range(4)]
    assert [two.sample(strategy, 16).rollouts for _ in range(4)] == draws
    assert len({str(draw) for draw in draws}) == 4
    assert one.sample(strategy, 16, seed=(7, 2)).rollouts == draws[2]
    assert one.sample(strategy, 16, seed=5).rollouts == two.sample(strategy, 16, seed=5).rollouts
    assert buffer_of(rates, seed=8).sample(strategy, 16).rollouts != draws[0]


@pytest.mark.parametrize(("group_size", "low", "high"), [(None, 25, 55), (8, 160, 240)])
def test_trajectories_are_drawn_alike_or_questions(group_size, low, high):
    """Of ten trajectories one is of a question of its own: a tenth of 400 draws, or a half."""
    buffer = TrajectoryBuffer()
    for i in range(10):
        put(buffer, "many" if i else "one", f"{i}", float(i % 2))
    drawn = Counter(buffer.sample("random", 1, group_size=group_size).prompts[0] for _ in range(400))
    assert low < drawn["one"] < high


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_group_size_trajectories_come_from_all_questions(strategy):
    """Of 40 questions of rate 0.5 the 100 lowest of 400 entropies are all within the first three of each."""
    buffer = buffer_of({f"q{n}": 5 for n in range(40)})
    sample = buffer.sample(strategy, 16)
    assert len(set(sample.prompts)) > 8
    assert len(set(sample.rollouts)) == 16
    assert np.all(np.diff(sample.questions) >= 0), "side by side"
    everything = buffer.sample(strategy, 999)
    assert len(set(everything.rollouts)) == (100 if "entropy" in strategy else 400)


def test_only_questions_that_hold_something_are_drawn():
    """Of thirty questions of medium difficulty one holds all low entropies."""
    rates = {f"q{n}": 5 for n in range(30)}
    buffer = buffer_of(rates, entropies=lambda i: 0.0 if i % 30 == 7 else 1.0)
    for strategy in ("medium_difficulty_low_entropy", "low_entropy"):
        assert buffer.sample(strategy, 1, entropy_percentile=3).prompts == ["q7"]


def test_which_trajectories_of_a_question_is_drawn_anew_each_time():
    buffer = buffer_of({"q": 5}, entropies=lambda i: 1.0)
    drawn = Counter(rollout for _ in range(200) for rollout in buffer.sample(size=2, group_size=2).rollouts)
    assert len(drawn) == 10
    assert all(20 < n < 65 for n in drawn.values())


def test_tiers_have_equal_shares():
    """Sixteen questions never right, one of rate 0.4, one of 1: each of the three tiers is a third of the draws."""
    buffer = buffer_of({f"q{n}": 0 for n in range(16)} | {"medium": 4, "easy": 10})
    assert [buffer.tier(p) for p in ("q0", "medium", "easy", "none")] == [0, 2, 4, None]
    drawn = Counter(buffer.tier(buffer.sample("uniform_difficulty", 1).prompts[0]) for _ in range(600))
    assert drawn.keys() == {0, 2, 4}
    assert all(150 < n < 250 for n in drawn.values())


def test_tiers_are_of_equal_width():
    buffer = buffer_of({str(n): n for n in range(11)}, difficulty_tiers=4)
    assert [buffer.tier(str(n)) for n in range(11)] == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3]


def test_the_four_classes_of_entropy():
    buffer = buffer_of({"q": 5}, entropies=lambda i: i + 1.0)
    assert buffer.entropy_bounds().tolist() == [3, 5, 8]
    assert [buffer.entropy_class(e) for e in (0.1, 3, 3.1, 5, 6, 8, 8.1, 99)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert buffer.entropy_class(math.nan) is None
    assert TrajectoryBuffer().entropy_class(1.0) is None
    assert np.isnan(TrajectoryBuffer(entropy_percentiles=[50]).entropy_bounds()).tolist() == [True]


@pytest.mark.parametrize(
    "options",
    [{"max_size": 0}, {"max_size": 10.0}, {"difficulty_tiers": 0}, {"entropy_percentiles": [50, 25]}, {"seed": -1},
     {"entropy_percentiles": [0, 50]}, {"max_per_question": 0}],
)  # fmt: skip
def test_a_buffer_that_cannot_work(options):
    with pytest.raises(ConfigurationError, match="TrajectoryBuffer needs"):
        TrajectoryBuffer(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "best"},
        {"size": -1},
        {"difficulty_range": (0.7, 0.3)},
        {"entropy_percentile": 101},
        {"group_size": 0},
    ],
)
def test_a_sample_that_cannot_be(options):
    with pytest.raises(ConfigurationError, match="sample needs"):
        TrajectoryBuffer().sample(**options)


def test_more_questions_than_there_was_room_for(monkeypatch):
    """Nothing shows when the core's buffer is exchanged for a larger one."""
    rates = {f"q{n}": n % 11 for n in range(50)}
    wide = buffer_of(rates, max_size=300, max_per_question=7)
    monkeypatch.setattr(trajectory_buffer, "FIRST_ROOM", 1)
    narrow = buffer_of(rates, max_size=300, max_per_question=7)
    for strategy in STRATEGIES:
        a, b = wide.sample(strategy, 64), narrow.sample(strategy, 64)
        assert a.rollouts == b.rollouts
        assert a.rates.tolist() == b.rates.tolist()
    narrow.clear()
    assert narrow.experience.num_questions == 1


# Against a plain one ----------------------------------------------------------------------------------------------------


class Plain:
    """The recipe, slowly: a list, and nothing kept but what was added."""

    def __init__(self, max_size, max_per_question, window):
        self.max_size, self.max_per_question, self.window = max_size, max_per_question, window
        self.outcomes, self.stored = {}, []

    def add(self, prompt, rollout, right, entropy):
        self.outcomes.setdefault(prompt, []).append(right)
        own = [entry for entry in self.stored if entry[0] == prompt]
        if len(own) == self.max_per_question:
            self.stored.remove(own[0])
        if len(self.stored) == self.max_size:
            self.stored.pop(0)
        self.stored.append((prompt, rollout, entropy))

    def rate(self, prompt):
        latest = self.outcomes[prompt][-self.window :]
        return sum(latest) / len(latest)

    def qualifying(self, low, high, percentile):
        entropies = sorted(entropy for *_, entropy in self.stored)
        bound = entropies[math.ceil(percentile / 100 * len(entropies)) - 1]
        return sorted(r for p, r, e in self.stored if low < self.rate(p) < high and e <= bound)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 8)), min_size=1, max_size=60),
    st.sampled_from([(0.3, 0.7), (0.0, 0.5), (0.25, 1.0)]),
    st.sampled_from([10, 25, 50, 100]),
    st.integers(1, 20),
    st.integers(1, 6),
    st.integers(1, 7),
)
def test_it_holds_and_draws_what_a_plain_one_does(rows, bounds, percentile, max_size, max_per_question, window):
    buffer = TrajectoryBuffer(
        max_size, max_per_question=max_per_question, difficulty=DifficultyBucketer(window_size=window)
    )
    plain = Plain(max_size, max_per_question, window)
    for i, (prompt, right, entropy) in enumerate(rows):
        put(buffer, prompt, f"{i}", float(right), entropy / 8)
        plain.add(prompt, f"{i}", right, entropy / 8)
        assert buffer.difficulty.rate(prompt) == plain.rate(prompt)
    assert len(buffer) == len(plain.stored)
    everything = buffer.sample("random", 99, group_size=9)
    assert sorted(everything.rollouts) == sorted(rollout for _, rollout, _ in plain.stored)
    found = buffer.sample("entropy_guided", 99, bounds, percentile, group_size=9)
    assert sorted(found.rollouts) == plain.qualifying(*bounds, percentile)
    alike = buffer.sample("entropy_guided", 99, bounds, percentile)
    assert sorted(alike.rollouts) == sorted(found.rollouts)
    part = buffer.sample("entropy_guided", 3, bounds, percentile, group_size=2)
    assert set(part.rollouts) <= set(found.rollouts)
    assert len(part) == min(3, sum(min(2, n) for n in Counter(found.prompts).values()))


def test_what_qualifies_is_what_qualifies_under_the_preset():
    """The same experience in the core, under the options of `entropy-guided`."""
    from exgrpo import resolve
    from exgrpo.experience import ExperienceBuffer, Trajectory
    from exgrpo.replay.choice import choose, eligible_questions
    from exgrpo.replay.sampling import draw_questions

    config, rng = resolve("entropy-guided")[0], np.random.default_rng(0)
    core, mine = ExperienceBuffer(40, 10, config), TrajectoryBuffer()
    for group in range(120):
        question, right = group % 40, int(rng.integers(11))
        for i in range(10):
            entropy, ids = float(rng.random()), [group, i]
            put(mine, question, ids, float(i < right), entropy)
            core.admit(
                [Trajectory(question, ids, [-1.0, -1.0], [float(i < right)], 0, entropy=entropy, correct=i < right)]
            )
        core.observe(question, right, 10)
    questions = draw_questions(core, 40, config, rng, eligible=eligible_questions(core, config, 0, "plan"))
    chosen = choose(core, questions, 0, config, rng, None, count=100)
    expected = [core.get(slot).completion_ids.tolist() for slots in chosen for slot in slots]
    found = mine.sample("entropy_guided", 9999, group_size=100)
    assert len(expected) > 50
    assert sorted(map(list, found.rollouts)) == sorted(expected)


# The loop ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_example_runs(monkeypatch, tmp_path, capsys):
    """Shortened: a smaller set of questions, which then comes round more often."""
    options = ["--updates", "40", "--data", "32", "--warm_up", "250", "--replay_start_epoch", "4"]
    monkeypatch.setattr(sys, "argv", [EXAMPLE.name, *options])
    monkeypatch.setenv("EXGRPO_CACHE", str(tmp_path))
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    told = capsys.readouterr().out
    rewards = [float(value) for value in re.findall(r"reward of fresh ones ([\d.]+)", told)]
    replays = int(re.search(r"(\d+) of them replays", told)[1])
    assert len(rewards) == 2
    assert rewards[1] > rewards[0] + 0.05, told
    assert replays >= 5, told
