"""What the alarms have seen goes through a checkpoint: a run that is cut anywhere raises what the uninterrupted one raises."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exgrpo.runtime.alarms import STOPPING, ReplayMonitor
from exgrpo.runtime.checkpoint import CheckpointRecord

RECORD = CheckpointRecord(
    micro_step=0, world_size=1, generated_tokens=0, steps_of_earlier_calls=0, log=None, in_block=False, shape=[]
)
LOGS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "fresh/entropy": st.sampled_from([1.0, 0.01, 0.001]),
            "fresh/pass_at_1": st.sampled_from([0.1, 0.2, 0.9]),
            "replay/ess": st.sampled_from([0.01, 0.5]),
            "replay/gate_open": st.sampled_from([0.0, 1.0]),
            "replay/share": st.sampled_from([0.0, 0.5]),
            "replay/size": st.sampled_from([0.0, 5.0, 9.0]),
        },
    ),
    max_size=24,
)


def monitor() -> ReplayMonitor:
    found = ReplayMonitor(entropy_window=2, ess_steps=3, idle_steps=4)
    found.run = replace(found.run, mixing="share")
    return found


@given(logs=LOGS, at=st.integers(0, 24))
def test_a_run_that_is_cut_raises_what_an_uninterrupted_one_does(tmp_path_factory, logs, at):
    folder = tmp_path_factory.mktemp("checkpoint")
    whole, first, again = monitor(), monitor(), monitor()
    for step, log in enumerate(logs, 1):
        whole.update(log, step)
    for step, log in enumerate(logs[:at], 1):
        first.update(log, step)
    replace(RECORD, alarms=first.state()).write(folder)
    again.restore(CheckpointRecord.read(folder).alarms)
    for step, log in enumerate(logs[at:], at + 1):
        again.update(log, step)
    assert again.raised == whole.raised
    assert repr(again.state()) == repr(whole.state())


@pytest.mark.parametrize("kind", STOPPING)
def test_the_logs_above_can_raise_what_ends_a_run(kind):
    seen = monitor()
    for step in range(1, 20):
        collapsed = {"fresh/entropy": 1.0 if step < 3 else 0.001, "fresh/pass_at_1": 0.2}
        seen.update({"collapse": collapsed, "ess": {"replay/ess": 0.01}}[kind], step)
    assert [alarm.kind for alarm in seen.raised] == [kind]
