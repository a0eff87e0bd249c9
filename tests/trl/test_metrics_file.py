"""`metrics.jsonl` beside the log: every training log, all metrics of it, and what the viewer makes of it after a resume."""

import json

from exgrpo.view.run import Run
from tests.support import harness as h


def rows_in(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_every_log_is_a_line_with_all_metrics_and_a_resumed_run_goes_on_in_it(tmp_path):
    options = {
        "save_strategy": "steps",
        "save_steps": 2,
        "replay_metrics": "basic",
        "start_pass_at_1": 0.0,
        "max_steps": 4,
    }
    first = h.trainer(h.config(tmp_path, **options), h.questions(24))
    first.train()
    logged = [row for row in first.state.log_history if "loss" in row]
    rows = [row for row in rows_in(tmp_path) if "loss" in row]
    assert [row["step"] for row in rows] == [row["step"] for row in logged] == [1, 2, 3, 4]
    assert all(row["reward"] == known["reward"] for row, known in zip(rows, logged, strict=True))
    assert "replay/time/plan" in rows[-1]
    assert "replay/time/plan" not in logged[-1]
    again = h.trainer(h.config(tmp_path, **options), h.questions(24))
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [row["step"] for row in rows_in(tmp_path) if "loss" in row] == [1, 2, 3, 4, 3, 4]
    viewed = Run(tmp_path)
    charts = {chart["id"]: chart for chart in viewed.answer("overview", {})["charts"]}
    assert charts["reward"]["lines"][0]["x"] == [1, 2, 3, 4]
    assert charts["time"]["lines"]
    assert viewed.history.step == 4
    viewed.close()


def test_a_run_that_keeps_nothing_writes_nothing(tmp_path):
    trainer = h.trainer(h.config(tmp_path, max_steps=1, experience_log="none", save_strategy="no"), h.questions(8))
    trainer.train()
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_disk_that_is_full_ends_no_run(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").mkdir(parents=True)
    trainer = h.trainer(h.config(tmp_path, max_steps=2, save_strategy="no"), h.questions(8))
    trainer.train()
    assert trainer.state.global_step == 2
    assert sum("metrics.jsonl cannot be written" in record.message for record in caplog.records) == 1
