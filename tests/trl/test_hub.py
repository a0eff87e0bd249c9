"""What a push to the hub takes along, and what the model card says."""

from types import SimpleNamespace

import pytest
from huggingface_hub.utils import filter_repo_objects

from exgrpo.errors import ConfigurationError
from tests.support import harness as h


@pytest.fixture
def hub(monkeypatch):
    """In place of the hub: the files of the last push."""
    pushed = []

    def upload_folder(folder_path, ignore_patterns=None, **kwargs):
        from pathlib import Path

        files = [str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()]
        pushed[:] = filter_repo_objects(files, ignore_patterns=ignore_patterns)

    api = SimpleNamespace(create_repo=lambda *a, **k: SimpleNamespace(repo_id="me/model"), upload_folder=upload_folder)
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: api)
    return pushed


def trained(folder, **options):
    args = h.config(folder, max_steps=2, start_pass_at_1=0.0, **options)
    trainer = h.trainer(args, h.questions(16), script=lambda g, p, m: f"{'abcd'[m]}{p[1:-1]}$" if m < 2 else "z$")
    trainer.train()
    return trainer


def logs_in(files):
    return sorted(name for name in files if ".db" in name)


def test_a_push_leaves_prompts_and_completions_out(tmp_path, hub, caplog):
    trained(tmp_path, push_to_hub=True).push_to_hub()
    assert "model.safetensors" in hub
    assert logs_in(hub) == []
    assert logs_in(path.name for path in tmp_path.iterdir())[0].startswith("_experience.db")
    assert "push_to_hub does not upload" in caplog.text


def test_a_push_takes_them_where_that_is_asked_for(tmp_path, hub, caplog):
    trained(tmp_path, push_to_hub=True, experience_log="experience.db").push_to_hub()
    assert "experience.db" in hub
    assert "with all prompts and completions, since experience_log='experience.db'" in caplog.text


def test_a_push_that_was_not_announced_is_refused(tmp_path, hub):
    trainer = trained(tmp_path)
    with pytest.raises(ConfigurationError, match="push_to_hub=True"):
        trainer.push_to_hub()
    assert hub == []


@pytest.mark.slow
def test_a_log_of_an_earlier_run_is_not_pushed_either(tmp_path, hub):
    trained(tmp_path)
    with pytest.raises(ConfigurationError, match="Rename it to _experience"):
        trained(tmp_path, push_to_hub=True)
    (tmp_path / "experience.db").rename(tmp_path / "_experience.db")
    trained(tmp_path, push_to_hub=True, experience_from=str(tmp_path))


# The card ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "options", "says", "paper"),
    [
        ("exgrpo", {"mu": 0.4}, ["trained with ExGRPO", "`mu=0.4` (preset: `0.5`)", "### Experience replay"], True),
        ("rescue", {}, ["trained with GRPO", "Source: this project", "from it: `start"], False),
        ("random-replay", {}, ["trained with GRPO", "Source: ablation of [arXiv 2510.02245]"], False),
        ("on-policy", {}, ["trained with GRPO", "Source: control.", "Nothing was replayed."], False),
    ],
)  # fmt: skip
def test_the_card_tells_the_preset_and_what_was_replayed(tmp_path, preset, options, says, paper):
    if preset == "rescue":
        options = {"start_step": 1}
    trainer = trained(tmp_path, preset=preset, **options)
    trainer.create_model_card(model_name="model")
    card = (tmp_path / "README.md").read_text()
    for text in says:
        assert text in card
    assert ("zhan2026exgrpo" in card) == paper
    assert ("exgrpo" in card.split("---")[1]) == (preset != "on-policy")  # the tags
    if trainer.planner is not None:
        assert f"Completions stored: {trainer.counts['stored']}." in card
        assert trainer.counts["stored"] > 0
    assert trainer.counts["replayed"] == (4 if preset in ("exgrpo", "random-replay") else 0)


@pytest.mark.slow
def test_a_resumed_run_counts_on(tmp_path):
    whole = trained(tmp_path / "whole", save_strategy="steps", save_steps=1)
    args = h.config(tmp_path / "whole", max_steps=2, start_pass_at_1=0.0)
    resumed = h.trainer(args, h.questions(16), script=whole.script)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert resumed.counts == whole.counts
    assert resumed.counts["replayed"] == 4
