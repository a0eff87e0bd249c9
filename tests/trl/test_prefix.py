"""Groups that go on from the first tokens of a stored success: what is generated, scored, learned from, remembered and told."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from exgrpo.errors import ConfigurationError
from exgrpo.experience.events import Admitted, Continued, Observed, Planned, Replayed
from exgrpo.experience.trajectory import Trajectory
from exgrpo.log import LogReader
from exgrpo.runtime.prefixes import longest_prefix
from tests.support import harness as h
from tests.trl.test_objective import Reference

RIGHT = "abcdefgh"
COMMON = dict(
    mixing="prefix", replay_share=0.5, question_choice="uniform", trajectory_choice="random", start_pass_at_1=0.0,
    retirement="never", max_steps=6,
)  # fmt: skip


def script(generation: int, prompt: str, member: int) -> str:
    """The first member is right in the first generation of every question; of a continuation the even members are."""
    question, begun = prompt.split("=")
    begun = begun.replace("x", "")
    if begun:
        return RIGHT[len(begun) :] + "$" if member % 2 == 0 else "z" * (2 + member + generation % 3) + "$"
    i = int(question[1:])
    return RIGHT + "$" if member == 0 and (i + generation) % 2 else "yz"[member % 2] * (1 + (i + member) % 9) + "$"


class Seen:
    """A reward function that keeps what it was given."""

    __name__ = "seen"

    def __init__(self):
        self.texts = []

    def __call__(self, prompts, completions, **kwargs):
        self.texts += list(zip(prompts, completions, strict=True))
        return [float(text == RIGHT) for text in completions]


def run(tmp_path, *, answer=script, callbacks=(), **options):
    seen = Seen()
    args = h.config(tmp_path, **{**COMMON, **options})
    trainer = h.trainer(args, h.questions(24, width=5), script=answer, reward=seen, callbacks=list(callbacks))
    trainer.seen = seen
    reference = Reference().attach(trainer)
    trainer.behaviour = {}
    trainer.train()
    return trainer, reference


@pytest.mark.parametrize("loss_type", ["dr_grpo", "grpo", "dapo", "cispo"])
@pytest.mark.parametrize("cut", [(32, 1), (4, 8)])
def test_the_gradient_is_that_of_the_continuations(tmp_path, loss_type, cut):
    """The reference in float64 sums over continuations alone: a prefix token that weighed anything would show."""
    trainer, reference = run(
        tmp_path, loss_type=loss_type, per_device_train_batch_size=cut[0], gradient_accumulation_steps=cut[1],
        positive_weight=2.0, temperature=0.8, max_grad_norm=0.0,
    )  # fmt: skip
    reference.check(atol=2e-5)
    assert sum(event.successes > 0 for event in trainer.events.of(Continued)) > 5


def test_what_is_given_and_what_is_told(tmp_path):
    """Rewards see whole texts; a bare question's accuracy never moves; continuations alone are generated and counted."""
    counted = []

    class Count(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            batch = trainer._iteration.scored
            begun = batch.batch.local_prefixes()
            counted.append(sum(len(ids) - len(begun.get(row, ())) for row, ids in enumerate(batch.completion_ids)))

    args = h.config(tmp_path, **COMMON, log_completions=True)
    seen = Seen()
    trainer = h.trainer(args, h.questions(24), script=script, reward=seen, callbacks=[Count()])
    trainer.train()
    assert trainer.generated_tokens == sum(counted)
    events = trainer.events.of(Continued)
    assert len(events) > 8
    for event in events:
        assert (event.successes, event.scorable, event.unscorable) == (2, 4, 0)
        assert 1 <= event.length <= len(RIGHT)
    whole = [text for prompt, text in seen.texts if text != RIGHT and text.startswith("a")]
    assert len(whole) == 2 * len(events)  # the wrong halves begin with what they went on from
    observed = {(event.generation, event.question) for event in trainer.events.of(Observed)}
    assert not observed & {(event.generation, event.question) for event in events}
    assert all(event.successes <= 1 for event in trainer.events.of(Observed))
    replayed = {(e.generation, e.question, e.serial) for e in trainer.events.of(Replayed) if e.stage == "prefix"}
    assert replayed == {(e.generation, e.question, e.serial) for e in events}
    admitted = [event.trajectory for event in trainer.events.of(Admitted)]
    assert {(t.step, t.question) for t in admitted}.isdisjoint({(e.step, e.question) for e in events})
    rows = [log for log in trainer.state.log_history if "prefix/share" in log]
    assert rows
    for log in rows:
        assert log["prefix/pass_at_1"] == 0.5
        assert log["fresh/pass_at_1"] <= 0.25
        assert 0.2 <= log["prefix/length_mean"] <= len(RIGHT)
        assert log["reward"] == log["fresh/pass_at_1"]  # the host's own are of bare questions too
    with LogReader(tmp_path / "experience.db") as reader:
        logged = [event for _, event in reader.events(reader.lineage()) if isinstance(event, Continued)]
    assert [(e.generation, e.serial, e.length, e.successes) for e in logged] == [
        (e.generation, e.serial, e.length, e.successes) for e in events
    ]


def test_a_completion_ends_at_its_limit_prefix_included(tmp_path):
    """R is 12: behind h tokens there is room for R - h, and no token beyond counts."""
    trainer, _ = run(
        tmp_path, answer=lambda g, prompt, m: "z" * 12 if re.search("=x*a", prompt) else script(g, prompt, m)
    )
    assert trainer.events.of(Continued)
    begun = trainer._iteration.batch.local_prefixes()
    assert begun
    for row, ids in begun.items():
        found = trainer._iteration.scored.completion_ids[row]
        assert len(found) == 12
        assert found[: len(ids)] == ids


@pytest.mark.parametrize("admits", [True, False])
def test_admitted_continuations_keep_the_log_probs_of_both_policies(tmp_path, admits):
    answer = lambda g, prompt, m: "QRS"[m % 3].lower() + "$" if re.search("=x*a", prompt) else script(g, prompt, m)  # noqa: E731
    seen = []

    def reward(prompts, completions, **kwargs):
        return [float(text == RIGHT or text[-1:] in ("q", "r")) for text in completions]

    args = h.config(tmp_path, **COMMON, admit_prefixed=admits)
    trainer = h.trainer(args, h.questions(24, width=5), script=answer, reward=reward)
    starts = {}

    class Watch(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            model = trainer.accelerator.unwrap_model(trainer.model)
            for group, prefix in trainer._iteration.batch.plan.prefixes.items():
                question = int(trainer._iteration.batch.plan.questions[group])
                for row in range(4 * group, 4 * group + 4):
                    ids = trainer._iteration.scored.completion_ids[row]
                    now, _ = h.score_alone(model, trainer.questions.prompt_ids(question), ids)
                    starts[question, tuple(ids), state.global_step] = prefix, now

    trainer.add_callback(Watch())
    trainer.train()
    for event in trainer.events.of(Admitted):
        t = event.trajectory
        if (found := starts.get((t.question, tuple(t.completion_ids.tolist()), t.step))) is not None:
            prefix, now = found
            before = prefix.choice.trajectory.behaviour_logps[: prefix.length]
            np.testing.assert_array_equal(t.behaviour_logps[: prefix.length], before)
            np.testing.assert_allclose(t.behaviour_logps[prefix.length :], now[prefix.length :], atol=2e-4)
            seen.append(t)
    assert bool(seen) == admits
    if admits:
        assert_the_log_says_what_it_begins_with(tmp_path, trainer)


def assert_the_log_says_what_it_begins_with(folder, trainer):
    """In words, and of the success that it went on from, how that went."""
    told = {(e.generation, e.question): e for e in trainer.events.of(Continued)}
    with LogReader(folder / "experience.db") as reader:
        rows = list(
            reader.rows(
                "SELECT t.id, c.trajectory, c.length FROM trajectories t JOIN continuations c "
                "ON c.generation = t.generation AND c.question = t.question"
            )
        )
    assert rows
    number, source, length = rows[0]
    assert length in {event.length for event in told.values()}
    done = subprocess.run(
        [sys.executable, "-m", "exgrpo", "experience", "show", str(folder), str(number)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"the first {length} tokens of trajectory {source}" in " ".join(done.stdout.split())
    of_source = subprocess.run(
        [sys.executable, "-m", "exgrpo", "experience", "show", str(folder), str(source)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "gone on from" in of_source.stdout


def test_controlled_lengths_seek_their_aim(tmp_path):
    """Where continuations are right only behind three quarters of the answer, the fraction settles near there."""

    def answer(generation, prompt, member):
        begun = prompt.split("=")[1].replace("x", "")
        if begun:
            return RIGHT[len(begun) :] + "$" if len(begun) >= 6 else "z$"
        return script(0, prompt, member)

    trainer, _ = run(
        tmp_path, answer=answer, prefix_length="controlled", prefix_range=(0.0, 1.0), max_steps=24, prefix_aim=0.5
    )
    fractions = [event.fraction for event in trainer.events.of(Continued)]
    assert fractions[0] > 0.5  # too many wrong: longer
    assert 0.55 < np.mean(fractions[-10:]) < 0.8
    assert trainer.planner.prefix_fraction == fractions[-1]


def test_annealed_prefixes_vanish_and_the_question_is_asked_plainly(tmp_path):
    trainer, _ = run(tmp_path, prefix_length="annealed", prefix_steps=4, max_steps=8)
    steps = [event.step for event in trainer.events.of(Continued)]
    assert len(steps) > 0
    assert max(steps) < 4
    late = [event for event in trainer.events.of(Planned) if event.step >= 4]
    assert all(event.replayed for event in late)
    plain = [event for event in trainer.events.of(Observed) if event.step >= 4 and event.replayed]
    assert len(plain) == sum(event.replayed for event in late)


def test_only_questions_up_to_an_accuracy_get_a_prefix(tmp_path):
    trainer, _ = run(tmp_path, prefix_max_accuracy=0.0, max_steps=10)
    accuracy, checked = {}, 0
    for event in trainer.events:
        if isinstance(event, Observed):
            accuracy[event.question] = event.successes / event.scorable
        elif isinstance(event, Replayed):
            checked += 1
            assert accuracy[event.question] == 0.0
    assert checked > 3


# The longest prefix -----------------------------------------------------------------------------------------------------


def trajectory(text: str) -> Trajectory:
    ids = [ord(c) for c in text]
    return Trajectory(0, np.array(ids), -np.ones(len(ids)), np.ones(1), 0)


def decode(batch):
    return ["".join(map(chr, ids)) for ids in batch]


@pytest.mark.parametrize(
    ("text", "room", "before_answer", "longest"),
    [
        ("abcdef$", 100, False, 6),  # never the end
        ("abcdef", 100, False, 5),  # cut at the limit: never the last token either
        ("ab|cdef$", 100, False, 2),  # of several end tokens the first one counts
        ("abcdef$", 4, False, 3),  # room for one token at least
        ("$", 100, False, 0),
        ("ab\\boxed{1} or \\boxed{2}$", 100, True, 15),  # before the last mark
        ("ab#### 4$", 100, True, 2),
        ("<answer>4</answer>$", 100, True, 0),  # nothing before it
        ("abcdef$", 100, True, 6),
    ],
)
def test_the_longest_prefix(text, room, before_answer, longest):
    ends = {ord("$"), ord("|")}
    assert longest_prefix(trajectory(text), ends, room, decode if before_answer else None) == longest


def test_a_prefix_does_not_split_the_mark_of_an_answer():
    """Tokens of several characters: one that reaches into the mark does not belong to the prefix."""
    pieces = {1: "so ", 2: "it is \\bo", 3: "xed{4", 4: "}"}
    ids = np.array([1, 2, 3, 4])
    found = Trajectory(0, ids, -np.ones(4), np.ones(1), 0)
    assert longest_prefix(found, set(), 100, lambda batch: ["".join(pieces[i] for i in b) for b in batch]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix_range": (0.8, 0.2)}, "prefix_range"),
        ({"prefix_range": (0.2,)}, "prefix_range"),
        ({"prefix_aim": 1.0}, "prefix_aim"),
        ({"prefix_length": "half"}, "prefix_length"),
        ({"prefix_max_accuracy": 1.5}, "prefix_max_accuracy"),
        ({"prefix_steps": 0}, "prefix_steps"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, options, message):
    with pytest.raises(ConfigurationError, match=message):
        h.config(tmp_path, mixing="prefix", **options)


def test_a_table_of_positions_must_have_room(tmp_path):
    args = h.config(tmp_path, **{**COMMON, "max_completion_length": 70})
    with pytest.raises(ConfigurationError, match="at most 62"):
        h.trainer(args, h.questions(24), model=h.tiny_model(learned_positions=True))


def test_it_generates_for_real(tmp_path):
    """Without a script: the host's generation goes on from question and prefix, and every number is finite."""

    def lucky(prompts, completions, **kwargs):
        return [float(sum(map(ord, text)) % 3 == 0) if text else 0.0 for text in completions]

    args = h.config(tmp_path, **COMMON, prefix_length="controlled", preset="exgrpo")
    trainer = h.trainer(args, h.questions(24, width=5), reward=lucky)
    trainer.train()
    assert len(trainer.events.of(Continued)) > 5
    assert all(math.isfinite(log["loss"]) for log in trainer.state.log_history if "loss" in log)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
