"""The field table: current, complete, and what help prints."""

from dataclasses import fields

from exgrpo.cli import fields as table_of_fields
from exgrpo.cli.arguments import ScriptArguments
from exgrpo.trl import ExGRPOConfig
from tools import reference
from trl import ModelConfig


def test_generated_files_are_current(capsys):
    assert reference.main(["--check"]) == 0, capsys.readouterr().err


def test_every_field_is_in_the_help_once():
    text = "\n" + table_of_fields.help_text("", ["all"])
    names = [f.name for cls in (ExGRPOConfig, ScriptArguments, ModelConfig) for f in fields(cls)]
    for name in names:
        assert text.count(f"\n  --{name}  (") == 1, name
    groups = [text.index(title) for _, title in table_of_fields.GROUPS.values()]
    assert groups == sorted(groups)
    assert "%%" not in text


def test_changed_defaults_are_marked():
    changed = {
        row["name"]: (row["default"], row["host_default"])
        for row in table_of_fields.rows_of("host")
        if "host_default" in row
    }
    assert changed["loss_type"][0] == "dr_grpo"
    assert changed["scale_rewards"][0] == "none"
    assert changed["disable_dropout"] == (True, False)


def test_a_stale_table_is_noticed_and_written(monkeypatch, tmp_path, capsys):
    stale = tmp_path / "fields.json"
    stale.write_text('{"versions": {"trl": "0.1"}, "fields": []}')
    monkeypatch.setattr(reference, "TABLE", stale)
    monkeypatch.setattr(table_of_fields, "TABLE", stale)
    table_of_fields.table.cache_clear()
    assert reference.main(["--check"]) == 1
    assert "not 0.1" in capsys.readouterr().err
    assert reference.main(["--write"]) == 0
    assert reference.main(["--check"]) == 0
    table_of_fields.table.cache_clear()
