"""Alarms: each fires when it should, once, and not otherwise; on logs made by hand, and through `trainer.train()`."""

import inspect
import itertools
import logging
import math
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState

from exgrpo import ObjectiveConfig
from exgrpo.errors import ConfigurationError
from exgrpo.objective import replay_loss
from exgrpo.objective.stats import effective_sample_size
from exgrpo.runtime.alarms import Alarm
from exgrpo.trl import callbacks as alarms
from exgrpo.trl.callbacks import ReplayAlarm, alarm_of
from tests.support import harness as h

SHARE = dict(
    mixing="share", start_pass_at_1=0.35, start_step=0, start_epoch=0.0, start_size=0, save_strategy="no",
    retired_in_stream=False,
)  # fmt: skip


def healthy(n: int) -> list[dict]:
    """Logs of n steps in which all is well: entropy stays, half of each batch is replayed."""
    return [
        {
            "loss": 0.0, "fresh/entropy": 1.0, "fresh/pass_at_1": 0.5, "replay/ess": 0.8, "replay/share": 0.5,
            "replay/size": 100.0, "replay/questions": 40.0, "replay/retired": 0.0, "replay/gate_open": 1.0,
        }
        for _ in range(n)
    ]  # fmt: skip


def changed(logs: list[dict], **columns) -> list[dict]:
    """Logs with other values: `entropy`, `ess` and so on; a number for all, or one for each."""
    names = {"entropy": "fresh/entropy", "pass_at_1": "fresh/pass_at_1"}
    for name, values in columns.items():
        key = names.get(name, f"replay/{name}")
        for log, value in zip(logs, np.broadcast_to(np.array(values, object), len(logs)), strict=True):
            log[key] = value
    return logs


def watch(alarm: ReplayAlarm, logs: list[dict], every: int = 1, reasons=None, epoch=math.inf, **options):
    """Feed logs as the host would. Answers with (kind, step) of what was raised, and the control."""
    args = SimpleNamespace(**{**SHARE, **options})
    control, state = TrainerControl(), TrainerState(is_world_process_zero=True)
    alarm.on_train_begin(args, state, control)
    for i, log in enumerate(logs):
        state.global_step = every * (i + 1)
        if reasons is not None:
            alarm.trainer.idle_reason = reasons[i]
        alarm.on_log(args, state, control, logs={**log, "epoch": epoch})
        state.log_history.append({**log, "epoch": epoch, "step": state.global_step})
        if control.should_training_stop:
            break
    return [(a.kind, a.step) for a in alarm.raised], control


def a_trainer(questions: int = 100, reason=None) -> SimpleNamespace:
    planner = SimpleNamespace(stream=SimpleNamespace(num_questions=questions))
    return SimpleNamespace(planner=planner, idle_reason=reason)


def test_nothing_is_raised_where_all_is_well():
    assert watch(ReplayAlarm(), healthy(500))[0] == []


# Collapse ---------------------------------------------------------------------------------------------------------------


def test_collapse():
    """Entropy falls from 1 to 0.01 after step 60, and Pass@1 stays 0.5. Of 20 steps one at 1 would make a mean of 0.0595,
    above 0.05."""
    logs = changed(healthy(200), entropy=[1.0] * 60 + [0.01] * 140)
    assert watch(ReplayAlarm(), logs)[0] == [("collapse", 80)]


def test_the_first_alarm_can_come_after_three_windows():
    logs = changed(healthy(200), entropy=[1.0] * 20 + [0.01] * 180)
    assert watch(ReplayAlarm(), logs)[0] == [("collapse", 60)]
    assert watch(ReplayAlarm(entropy_window=10), logs)[0] == [("collapse", 30)]
    assert watch(ReplayAlarm(entropy_window=100), logs, every=5)[0] == [("collapse", 300)]


def test_collapse_while_pass_at_1_falls():
    logs = changed(healthy(200), entropy=np.geomspace(1, 0.001, 200), pass_at_1=np.linspace(0.5, 0.1, 200))
    (kind, step), *more = watch(ReplayAlarm(), logs)[0]
    assert (kind, more) == ("collapse", [])
    assert 80 < step < 130


@pytest.mark.parametrize("seed", range(5))
def test_a_policy_that_becomes_rightly_confident_is_left_alone(seed):
    """Entropy falls by 10 and more, Pass@1 climbs from 0.1 to 0.9 and stays there, with noise."""
    rng = np.random.default_rng(seed)
    steps = np.arange(600)
    climbs = 0.1 + 0.8 / (1 + np.exp(-(steps - 150) / 40)) + rng.normal(0, 0.03, 600)
    falls = np.maximum(1.0 * np.exp(-steps / 50), 0.005) * np.exp(rng.normal(0, 0.1, 600))
    logs = changed(healthy(600), entropy=falls, pass_at_1=np.clip(climbs, 0, 1))
    assert watch(ReplayAlarm(), logs)[0] == []


def test_a_policy_that_still_learns_is_left_alone():
    """Entropy is gone at step 40, more than half of the errors are left until step 260; but Pass@1 rises all the time."""
    logs = changed(healthy(300), entropy=[1.0] * 40 + [0.01] * 260, pass_at_1=np.linspace(0.1, 0.65, 300))
    assert watch(ReplayAlarm(), logs)[0] == []
    logs = changed(logs, pass_at_1=[0.1 + 0.001 * min(i, 100) for i in range(300)])  # it stops to rise at step 101
    # the mean over 20 steps rises until step 120, and an alarm comes two windows later
    assert watch(ReplayAlarm(), logs)[0] == [("collapse", 160)]


@pytest.mark.parametrize(
    "entropy",
    [
        [5.0] * 60 + [0.2] * 140,  # a 25th, and still 0.2 nats
        [0.06] * 60 + [0.03] * 140,  # little from the start
        [0.0] * 200,  # never any
        [1.0] * 100 + [0.01] * 19 + [1.0] * 81,  # less than a window
    ],
)
def test_no_collapse_of_what_is_high_or_was_low(entropy):
    assert watch(ReplayAlarm(), changed(healthy(200), entropy=entropy))[0] == []


def test_retired_questions_count_as_right():
    """As the built-in policy learns: most questions retire, and those left are never solved."""
    logs = changed(
        healthy(300), entropy=[1.0] * 40 + [0.03] * 260, pass_at_1=[0.1] * 40 + [0.3] * 60 + [0.02] * 200,
        retired=[0.0] * 40 + list(np.linspace(0, 80, 60)) + [80.0] * 200,
    )  # fmt: skip
    assert watch(ReplayAlarm(trainer=a_trainer(100)), logs)[0] == []
    assert watch(ReplayAlarm(trainer=a_trainer(1000)), logs)[0] != []  # 80 of 1,000: hardly any
    assert watch(ReplayAlarm(trainer=a_trainer(100)), logs, retired_in_stream=True)[0] != []  # they are in Pass@1 then
    assert watch(ReplayAlarm(), logs)[0] != []  # nobody to ask how many there are


def test_collapse_is_told_once_until_entropy_was_back():
    low, between, back = [0.01] * 100, [0.07] * 100, [0.5] * 60
    logs = changed(healthy(100 + 660), entropy=[1.0] * 100 + low + between + low + between + back + low + low)
    # 0.07 is under twice the bound of 0.05: not over. Then 0.5; and one of 0.5 with 19 of 0.01 make 0.0345.
    assert watch(ReplayAlarm(), logs)[0] == [("collapse", 120), ("collapse", 579)]


def test_without_replay_collapse_is_seen_and_replay_not_spoken_of():
    logs = [{k: v for k, v in log.items() if "replay/" not in k} for log in healthy(100)]
    alarm = ReplayAlarm(trainer=SimpleNamespace(planner=None, idle_reason=None))
    raised, _ = watch(alarm, changed(logs, entropy=[1.0] * 40 + [0.001] * 60), mixing="none")
    assert raised == [("collapse", 60)]
    assert "replay" not in alarm.raised[0].message
    for seen in ("step 60", "0.001 nats", "0.1 % of the 1 ", "from 0.50 to 0.50", "for 40 steps", "learning_rate"):
        assert seen in alarm.raised[0].message


# Effective sample size --------------------------------------------------------------------------------------------------


def test_ess_under_its_bound_for_ten_steps_on_end():
    nine, ten = [0.01] * 9, [0.01] * 10
    logs = changed(healthy(60), ess=[0.8] * 20 + nine + [0.05] + ten + [0.8] + ten + [0.8] * 9)
    alarm = ReplayAlarm()
    assert watch(alarm, logs)[0] == [("ess", 40), ("ess", 51)]
    assert "now 0.01" in alarm.raised[0].message
    assert "max_age" in alarm.raised[0].message


@pytest.mark.parametrize("nothing", [None, math.nan, "missing"])
def test_steps_without_replay_neither_count_nor_break(nothing):
    logs = changed(healthy(60), ess=[0.01 if i % 3 == 0 else nothing for i in range(60)])
    for log in logs:
        if log["replay/ess"] == "missing":
            del log["replay/ess"]
    assert watch(ReplayAlarm(), logs)[0] == [("ess", 28)]  # the tenth of steps 1, 4, 7, ...


def test_a_log_of_several_steps_counts_as_these():
    logs = changed(healthy(10), ess=[0.8, 0.01] + [0.01] * 8)
    assert watch(ReplayAlarm(ess_steps=10), logs, every=5)[0] == [("ess", 15)]


# Gate and idle ----------------------------------------------------------------------------------------------------------


def closed(n: int, **columns) -> list[dict]:
    logs = changed(healthy(n), gate_open=0.0, share=0.0, **columns)
    for log in logs:
        del log["replay/ess"]
    return logs


def test_a_gate_that_never_opens():
    alarm = ReplayAlarm()
    assert watch(alarm, closed(200, pass_at_1=0.12))[0] == [("gate", 50)]
    for seen in ("step 50", "for 50 steps", "is 0.12", "exceed start_pass_at_1=0.35", "Set start_pass_at_1=0 "):
        assert seen in alarm.raised[0].message
    assert "reward function" not in alarm.raised[0].message
    watch(alarm, closed(200, pass_at_1=0.0))
    assert "reward function" in alarm.raised[0].message


def test_a_gate_that_opens_in_time():
    assert watch(ReplayAlarm(), closed(49) + healthy(200))[0] == []


def test_conditions_that_come_by_themselves_are_waited_for():
    assert watch(ReplayAlarm(), closed(200), start_step=1000)[0] == []
    assert watch(ReplayAlarm(), closed(200), start_epoch=5.0, epoch=1.0)[0] == []
    assert watch(ReplayAlarm(), closed(200), start_step=100)[0] == [("gate", 149)]  # steps 100 to 149


def test_a_gate_that_waits_for_trajectories():
    """As long as more are stored it is waited for; a store that stands still is told."""
    alarm = ReplayAlarm()
    grows = [float(i) for i in range(200)]
    assert watch(alarm, closed(200, size=grows), start_size=1000)[0] == []
    assert watch(alarm, closed(200, size=grows[:100] + [99.0] * 100), start_size=1000)[0] == [("gate", 150)]
    assert "99 trajectories" in alarm.raised[0].message
    assert "start_size=1000" in alarm.raised[0].message
    assert watch(alarm, closed(200, size=grows, pass_at_1=0.1), start_size=20)[0] == [("gate", 71)]  # 21 at step 22


def test_an_open_gate_and_nothing_replayed():
    alarm = ReplayAlarm(trainer=a_trainer())
    logs = changed(healthy(200), share=[0.5] * 40 + [0.0] * 60 + [0.5] + [0.0] * 99)
    assert watch(alarm, logs, reasons=["all over age"] * 200)[0] == [("idle", 90), ("idle", 151)]
    assert "(all over age)" in alarm.raised[0].message
    assert "max_age" in alarm.raised[0].message


def test_what_an_idle_alarm_advises():
    alarm = ReplayAlarm()
    watch(alarm, changed(healthy(60), share=0.0, questions=0.0, size=0.0, retired=40.0))
    assert "(no replayable question stored)" in alarm.raised[0].message
    assert "40 questions have retired, and of the others nothing is stored" in alarm.raised[0].message
    alarm = ReplayAlarm(trainer=a_trainer())
    why = "all replayable questions rest: 40 within cooldown=90"
    watch(alarm, changed(healthy(60), share=0.0, questions=0.0, retired=40.0), reasons=[why] * 60)
    assert f"({why})" in alarm.raised[0].message
    assert "cooldown, max_drift" in alarm.raised[0].message
    watch(alarm, changed(healthy(60), share=0.0, questions=0.0, size=0.0), reasons=["all over age"] * 60)
    assert "max_age" in alarm.raised[0].message
    alarm = ReplayAlarm()
    watch(alarm, changed(healthy(60), share=0.0, questions=0.0, size=0.0))
    assert "Nothing is stored, at a Pass@1 of 0.50" in alarm.raised[0].message


def test_a_coin_is_no_idleness():
    coin = ["on-policy by the coin"] * 200
    logs = changed(healthy(200), share=0.0)
    assert watch(ReplayAlarm(trainer=a_trainer()), logs, reasons=coin, mixing="coin")[0] == []
    assert watch(ReplayAlarm(), logs, mixing="coin")[0] == []
    reasons = [coin[0] if i % 2 else "no replayable question stored" for i in range(200)]
    assert watch(ReplayAlarm(trainer=a_trainer()), logs, reasons=reasons, mixing="coin")[0] == [("idle", 99)]


def test_questions_without_trajectories_are_a_replay():
    logs = changed(healthy(200), share=0.0)
    assert watch(ReplayAlarm(trainer=a_trainer()), logs, reasons=[None] * 200, mixing="prompt")[0] == []
    reasons = [None] * 40 + ["no replayable question stored"] * 160
    assert watch(ReplayAlarm(trainer=a_trainer()), logs, reasons=reasons, mixing="prompt")[0] == [("idle", 90)]
    reasons = (["no replayable question stored"] * 40 + [None]) * 4
    assert watch(ReplayAlarm(trainer=a_trainer()), logs[:164], reasons=reasons, mixing="prompt")[0] == []


def test_rescue_is_idle_only_with_an_empty_store():
    assert watch(ReplayAlarm(), changed(healthy(300), share=0.0), mixing="rescue")[0] == []
    logs = changed(healthy(300), share=0.0, size=[0.0] * 49 + [1.0] * 251)
    assert watch(ReplayAlarm(), logs, mixing="rescue")[0] == []
    assert watch(ReplayAlarm(), changed(logs, size=0.0), mixing="rescue")[0] == [("idle", 50)]


def test_a_generation_of_several_steps():
    """Only one log in four has a generation in it: what it said of the store holds, and steps count all the same."""
    logs = [log if i % 4 == 0 else {"loss": 0.0} for i, log in enumerate(closed(200, pass_at_1=0.1))]
    assert watch(ReplayAlarm(), logs)[0] == [("gate", 50)]
    logs = [log if i % 4 == 3 else {"loss": 0.0} for i, log in enumerate(changed(healthy(200), share=0.0))]
    assert watch(ReplayAlarm(), logs)[0] == [("idle", 53)]  # known from step 4 on


# What is logged, and what stops -----------------------------------------------------------------------------------------


def test_what_is_no_training_log_is_not_looked_at():
    logs = changed(healthy(300), ess=0.001, share=0.0, entropy=[1.0] * 30 + [0.0] * 270)
    for log in logs:
        log["eval_loss"] = log.pop("loss")
    assert watch(ReplayAlarm(), logs)[0] == []


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_not_a_number_is_ignored(value):
    logs = [{**dict.fromkeys(log, value), "loss": 0.0} for log in healthy(200)]
    assert watch(ReplayAlarm("stop"), logs)[0] == []


@pytest.mark.parametrize("save_strategy", ["no", "steps"])
def test_stop_after_the_step_of_the_log(save_strategy, caplog):
    logs = changed(healthy(60), ess=[0.8] * 20 + [0.01] * 40)
    raised, control = watch(ReplayAlarm("stop"), logs, save_strategy=save_strategy)
    assert raised == [("ess", 30)]
    assert control.should_training_stop
    assert control.should_save == (save_strategy == "steps")
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
    assert "Training stops at step 30" in caplog.records[1].message
    raised, control = watch(ReplayAlarm("warn"), logs, save_strategy=save_strategy)
    assert raised == [("ess", 30)]
    assert not control.should_training_stop
    assert not control.should_save


def test_a_run_without_replay_is_not_stopped():
    _, control = watch(ReplayAlarm("stop"), closed(100) + changed(healthy(100), share=0.0))
    assert not control.should_training_stop


def test_other_processes_neither_speak_nor_decide(monkeypatch, caplog):
    """What the main process says is done, whatever this one saw."""
    said = []

    def broadcast(values):
        said.append(list(values))
        return [len(said) == 3]

    monkeypatch.setattr(alarms, "broadcast_object_list", broadcast)
    alarm, args, control = ReplayAlarm("stop", ess_steps=1), SimpleNamespace(**SHARE, world_size=2), TrainerControl()
    for step in (1, 2, 3):
        assert not control.should_training_stop
        state = TrainerState(global_step=step, is_world_process_zero=False)
        alarm.on_log(args, state, control, logs=changed(healthy(1), ess=0.01 if step == 1 else 0.8)[0])
    assert said == [[True], [False], [False]]
    assert control.should_training_stop
    assert not caplog.records


TWO_PROCESSES = """
import sys
from types import SimpleNamespace
from accelerate import PartialState
from transformers import TrainerControl, TrainerState
from exgrpo.trl import ReplayAlarm

rank = PartialState(cpu=True).process_index
alarm, control, stopped = ReplayAlarm("stop", ess_steps=1), TrainerControl(), []
for step, seen in enumerate(((0.8, 0.01), (0.8, 0.8), (0.01, 0.8)), 1):  # only the second process; none; only the main one
    state = TrainerState(global_step=step, is_world_process_zero=rank == 0)
    alarm.on_log(SimpleNamespace(world_size=2), state, control, logs={"loss": 0.0, "replay/ess": seen[rank]})
    stopped.append(control.should_training_stop)
open(f"{sys.argv[1]}/rank-{rank}", "w").write(repr(stopped))
PartialState().destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_stop_at_the_same_step(tmp_path):
    """Whatever they saw."""
    (tmp_path / "worker.py").write_text(TWO_PROCESSES)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    run = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_addr", "127.0.0.1",
            "--master_port", str(port), str(tmp_path / "worker.py"), str(tmp_path),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-4000:]
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == ["[False, False, True]"] * 2
    assert run.stderr.count("Training stops at step 3") == 1


def test_a_resumed_run_knows_what_was_logged(caplog):
    """From any step on it raises what the uninterrupted run did, says only what is new, and is not stopped again."""
    logs = changed(healthy(300), entropy=[1.0] * 60 + [0.01] * 240, ess=[0.8] * 30 + [0.01] * 15 + [0.8] * 255)
    logs = changed(logs, share=[0.5] * 150 + [0.0] * 150)
    whole = ReplayAlarm()
    assert watch(whole, logs)[0] == [("ess", 40), ("collapse", 80), ("idle", 200)]
    for at in (10, 35, 40, 79, 80, 170, 250):
        caplog.clear()
        args, control = SimpleNamespace(**SHARE), TrainerControl()
        state = TrainerState(log_history=[{**log, "step": i + 1} for i, log in enumerate(logs[:at])])
        second = ReplayAlarm("stop")
        second.on_train_begin(args, state, control)
        assert not caplog.records
        assert not control.should_training_stop
        for step in range(at + 1, 301):
            state.global_step = step
            second.on_log(args, state, control, logs=logs[step - 1])
        assert second.raised == whole.raised
        assert control.should_training_stop == (at < 80)
        assert len([r for r in caplog.records if "Training stops" not in r.message]) == sum(
            alarm.step > at for alarm in whole.raised
        )


FIGURES = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(st.sampled_from(values), st.sampled_from([None, math.nan]))
        for name, values in {
            "fresh/entropy": (1.0, 0.01, 0.001), "fresh/pass_at_1": (0.0, 0.5, 0.6, 1.0), "replay/ess": (0.01, 0.5),
            "replay/share": (0.0, 0.5), "replay/size": (0.0, 3.0, 9.0), "replay/questions": (0.0, 3.0),
            "replay/retired": (0.0, 5.0), "replay/gate_open": (0.0, 1.0),
        }.items()
    },
)  # fmt: skip
RUNS = st.lists(
    st.tuples(FIGURES, st.integers(1, 12), st.sampled_from(["loss", "loss", "eval_loss"])), max_size=12
).map(lambda parts: [{loss: 0.0, **log} for log, n, loss in parts for _ in range(n)])


@given(RUNS, st.integers(0, 144), st.sampled_from(["share", "coin", "prompt", "rescue"]), st.integers(1, 3))
def test_whatever_is_logged(logs, cut, mixing, every):
    """No log is too odd; a resumed run raises what the whole one does; a kind comes again only after its length."""
    bounds = dict(entropy_window=3, ess_steps=4, idle_steps=5)
    whole, resumed = ReplayAlarm(**bounds), ReplayAlarm(**bounds)
    watch(whole, logs, every, mixing=mixing, start_size=2)
    args = SimpleNamespace(**{**SHARE, "mixing": mixing, "start_size": 2})
    rows = [{**log, "step": every * (i + 1), "epoch": math.inf} for i, log in enumerate(logs)]
    state, control = TrainerState(log_history=rows[:cut]), TrainerControl()
    resumed.on_train_begin(args, state, control)
    for row in rows[cut:]:
        state.global_step = row["step"]
        resumed.on_log(args, state, control, logs=row)
    assert resumed.raised == whole.raised
    for kind, length in (("ess", 4), ("gate", 5), ("idle", 5)):
        steps = [alarm.step for alarm in whole.raised if alarm.kind == kind]
        assert all(later - step >= length for step, later in itertools.pairwise(steps))


@pytest.mark.parametrize(
    "bad",
    [
        dict(action="loud"), dict(entropy_below=0.0), dict(entropy_below=1), dict(entropy_nats=-1.0),
        dict(entropy_nats=math.inf), dict(errors_above=True), dict(errors_above="half"), dict(entropy_window=0),
        dict(ess_below=math.nan), dict(ess_steps=1.5), dict(idle_steps=True),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(bad):
    (name,) = bad
    with pytest.raises(ConfigurationError, match=rf"ReplayAlarm\.{name} must be .*, but is .*\. The default is "):
        ReplayAlarm(**bad)


def test_the_option_of_the_trainer():
    trainer = SimpleNamespace(args=SimpleNamespace(alarms="stop"))
    assert (alarm_of(trainer).action, alarm_of(trainer).trainer) == ("stop", trainer)
    trainer.args.alarms = "off"
    assert alarm_of(trainer) is None


# The page ---------------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")


def test_the_page_has_the_defaults():
    defaults = {name: p.default for name, p in inspect.signature(ReplayAlarm).parameters.items()}
    for name, text in (
        ("ess_below", "`replay/ess` below {}"), ("ess_steps", "for {} consecutive steps with replay"),
        ("idle_steps", "for {} steps Pass@1 alone"), ("idle_steps", "nothing was replayed for {} steps"),
        ("entropy_nats", "at most {} nats"), ("entropy_window", "means over {} steps"),
    ):  # fmt: skip
        assert text.format(defaults[name]) in PAGE, name
    assert (defaults["entropy_below"], defaults["errors_above"]) == (0.1, 0.5)  # a tenth, more than half
    assert f"come at step {3 * defaults['entropy_window']}" in PAGE


def test_the_pages_effective_sample_sizes():
    text = " ".join(PAGE[PAGE.index("**Effective sample size.**") :].split())
    rows = re.findall(
        r"(\d\.\d\d) for(?: s =)? (\d(?:\.\d)?) (?:nats )?\((?:a token off by a factor of )?(\d\.\d)\)", text
    )
    assert len(rows) == 4
    for ess, s, factor in rows:
        assert (f"{math.exp(float(s)):.1f}", f"{math.exp(-(float(s) ** 2)):.2f}") == (factor, ess)
    w = torch.tensor([1000.0] + [1.0] * 999, dtype=torch.float64)
    one_row = (w.log().logsumexp(0)[None], (2 * w.log()).logsumexp(0)[None], torch.tensor([1000.0]))
    assert f"{effective_sample_size(*one_row):.3f}" == "0.004"


def test_the_pages_net_push():
    said = " ".join(PAGE.partition("**Net push.**")[2].split("\n\n")[0].split())
    rows = re.findall(r"(\d(?:\.\d\d)?) - (\d\.\d\d) = (-?\d(?:\.\d\d)?)", said)
    assert len(rows) == 3
    for (up, down, net), (correction, positive) in zip(
        rows, (("shaped", 1), ("truncated", 1), ("truncated", 8)), strict=True
    ):
        logps = torch.full((1, 1), -3.0, dtype=torch.float64, requires_grad=True)
        replay_loss(
            logps, logps.detach(), torch.tensor([7 / 8 * positive]), torch.ones(1, 1), torch.tensor([True]),
            ObjectiveConfig(correction=correction), 1.0,
        ).loss.backward()  # fmt: skip
        pushes = (-float(logps.grad), 7 / 8, -float(logps.grad) - 7 / 8)
        assert pushes == pytest.approx((float(up), float(down), float(net)), abs=0.00501)


# Through the trainer ----------------------------------------------------------------------------------------------------


def some(generation: int, prompt: str, member: int) -> str:
    """One completion of four is right."""
    return f"{'a' if member == 0 else 'z'}{prompt[1:].split('=')[0]}$"


def run(tmp_path, alarm: dict, steps: int = 8, script=some, callback=None, **options):
    trainer = h.trainer(h.config(tmp_path, max_steps=steps, alarms="off", **options), h.questions(24), script=script)
    watcher = ReplayAlarm(trainer=trainer, **alarm)
    trainer.add_callback(watcher)
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train()
    return trainer, watcher.raised


def test_a_real_run_with_a_gate_that_never_opens(tmp_path):
    trainer, raised = run(tmp_path, dict(action="stop", idle_steps=5))
    assert [(a.kind, a.step) for a in raised] == [("gate", 5)]
    assert "is 0.25 and must exceed start_pass_at_1=0.35" in raised[0].message
    assert trainer.state.global_step == 8


def test_a_real_run_with_replay_raises_nothing(tmp_path):
    trainer, raised = run(tmp_path, dict(action="stop", idle_steps=5, ess_steps=5), start_pass_at_1=0.0)
    assert trainer.state.log_history[5]["replay/share"] == 0.5
    assert raised == []
    assert trainer.state.global_step == 8


def test_a_real_run_whose_store_stays_empty(tmp_path):
    def wrong(generation, prompt, member):
        return "z$"

    _, raised = run(tmp_path, dict(idle_steps=4), script=wrong, start_pass_at_1=0.0)
    assert [(a.kind, a.step) for a in raised] == [("idle", 4)]
    assert "(nothing right yet: no completion of " in raised[0].message
    assert "Look at the reward function" in raised[0].message


@pytest.mark.slow
@pytest.mark.parametrize("logging_steps", [1, 2])
def test_a_real_run_is_stopped_and_goes_on_from_there(tmp_path, logging_steps, caplog):
    """Replay begins in the second step; under a bound of nearly 1 every replay is far from the policy."""
    options = dict(
        start_pass_at_1=0.0, learning_rate=1e-1, logging_steps=logging_steps, save_strategy="steps", save_steps=100
    )
    bounds = dict(action="stop", ess_below=0.999, ess_steps=3)
    trainer, raised = run(tmp_path, bounds, steps=12, **options)
    stopped = 4
    assert [(a.kind, a.step) for a in raised] == [("ess", stopped)]
    assert trainer.state.global_step == stopped
    assert f"Training stops at step {stopped}" in caplog.text
    second = h.trainer(h.config(tmp_path, max_steps=8, alarms="off", **options), h.questions(24), script=some)
    watcher = ReplayAlarm(trainer=second, **bounds)
    second.add_callback(watcher)
    second.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stopped}"))
    assert watcher.raised[0] == Alarm("ess", stopped, raised[0].message)
    assert second.state.global_step == 8


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["on-policy", "exgrpo"])
def test_a_real_run_that_collapses(tmp_path, preset):
    """Its only right answer is `a`, to every third question; it is soon all that the policy says, to the others too."""

    def narrow(prompts, completions, **kwargs):
        numbers = [int(re.search(r"q(\d+)", prompt)[1]) for prompt in prompts]
        return [float(c == "a" and i % 3 == 0) for c, i in zip(completions, numbers, strict=True)]

    args = h.config(
        tmp_path, preset=preset, max_steps=100, max_completion_length=1, learning_rate=3e-2, experience_log="none",
        alarms="stop",
    )  # fmt: skip
    trainer = h.trainer(args, h.questions(24), reward=narrow)
    if not (found := [c for c in trainer.callback_handler.callbacks if isinstance(c, ReplayAlarm)]):
        assert preset == "on-policy"
        found = [ReplayAlarm("stop", trainer)]
        trainer.add_callback(found[0])
    trainer.train()
    (alarm,) = found
    assert [a.kind for a in alarm.raised if a.kind != "idle"] == ["collapse"]
    assert 60 <= alarm.raised[-1].step == trainer.state.global_step < 90
    assert "to 0.3" in alarm.raised[-1].message  # a third, whether those that are right have retired or not
