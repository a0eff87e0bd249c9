"""Which metrics are logged: a basic set by default, all on request, never a constant zero; whoever needs more sees more."""

import re

import pytest
from transformers import TrainerCallback

from exgrpo.errors import ConfigurationError
from exgrpo.runtime.metric_table import METRICS, PREFIXES, metric_of
from exgrpo.trl import ExGRPOConfig
from tests.support import harness as h

DECIDING = (
    "fresh/entropy", "fresh/pass_at_1", "replay/retired", "replay/questions", "replay/size", "replay/gate_open",
    "replay/share", "replay/ess",
)  # fmt: skip
"""What alarms decide on. A resumed run reads it again from the log history, where only shown metrics are."""


class Seen(TrainerCallback):
    """All of this package's metrics, whether they are shown or not."""

    def __init__(self, trainer):
        self.trainer, self.rows = trainer, []
        trainer.add_callback(self)

    def on_log(self, args, state, control, **kwargs):
        self.rows.append(dict(self.trainer.last_metrics))


def script(generation, prompt, member):
    """Half of each group right; some unscorable from generation 2 on."""
    i = int(re.search(r"q(\d+)", prompt).group(1))
    if generation == 2 and member == 3:
        return "?$"
    return f"{'abcd'[member]}{i}$" if member < 2 else "z$"


def run(tmp_path, **options):
    trainer = h.trainer(h.config(tmp_path, max_steps=4, start_pass_at_1=0.0, **options), h.questions(40), script=script)
    seen = Seen(trainer)
    trainer.train()
    rows = [log for log in trainer.state.log_history if "loss" in log]
    return [{name: row[name] for name in row if name.startswith(PREFIXES)} for row in rows], seen.rows


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["exgrpo", "on-policy"])
def test_a_basic_set_by_default_and_all_on_request(tmp_path, preset):
    assert ExGRPOConfig.replay_metrics == "basic"
    basic, hidden = run(tmp_path / "basic", preset=preset, replay_metrics="basic")
    everything, _ = run(tmp_path / "all", preset=preset)
    assert all(metric_of(name).basic for row in basic for name in row)
    assert max(map(len, basic)) <= 14
    assert {name for row in everything for name in row} - {name for row in basic for name in row}
    same = [name for name in everything[-1] if not name.startswith("replay/time/")]
    assert {name: hidden[3][name] for name in same} == {name: everything[-1][name] for name in same}


def test_a_zero_that_says_nothing_is_left_out_until_it_is_news(tmp_path):
    rows, hidden = run(tmp_path)
    assert [row.get("replay/skipped_unscorable") for row in rows] == [None, None, 4.0, 0.0]
    assert not {"replay/expired", "replay/returned"} & set(rows[-1])
    assert hidden[0]["replay/expired"] == 0.0
    assert rows[0]["replay/share"] == 0.0  # that nothing is replayed yet is news


def test_every_metric_has_its_row(tmp_path):
    rows, _ = run(tmp_path)
    assert {metric_of(name) for row in rows for name in row} <= set(METRICS.values())
    assert all(METRICS[name].basic and not METRICS[name].rare for name in DECIDING)


def test_replay_metrics_is_basic_or_all(tmp_path):
    with pytest.raises(ConfigurationError, match="replay_metrics must be one of 'basic', 'all', but is 'some'"):
        h.config(tmp_path, replay_metrics="some")
