"""Which TRL is taken: tested versions; newer ones that have all that is overridden or read; and the tables say all of that."""

import ast
import inspect
import logging
from dataclasses import fields
from pathlib import Path

import pytest
from packaging.version import Version

import exgrpo.trl
from exgrpo.errors import HostVersionError
from exgrpo.trl import ExGRPOConfig, ExGRPOTrainer, contract
from tests.support import harness
from trl import GRPOConfig, GRPOTrainer

ROOM = Path(exgrpo.trl.__file__).parent


@pytest.fixture(autouse=True)
def _unscripted(monkeypatch):
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", harness._host_generation)


class Moved(GRPOTrainer):
    """A host that has taken another argument in front, and lost a method."""

    def _generate_single_turn(self, rows, prompt_ids, images, multimodal_fields, num_generations):
        return super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations)

    _tokenize_prompts = None


def test_tested_versions_are_taken_in_silence(caplog):
    for version in ("1.16.0", "1.16.3"):
        contract.check_host_version(version)
    assert not caplog.records


def test_a_newer_one_is_taken_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING):
        contract.check_host_version("1.17.0")
    [record] = caplog.records
    assert "trl 1.17.0 has all that this trainer extends" in record.getMessage()


@pytest.mark.parametrize("version", ["0.29.1", "1.14.2", "2.0.0"])
def test_another_one_is_refused(version, monkeypatch, caplog):
    with pytest.raises(HostVersionError, match=f"but trl {version} is installed. Run: pip install"):
        contract.check_host_version(version)
    monkeypatch.setenv(contract.OVERRIDE, "1")
    contract.check_host_version(version)
    assert f"trl {version} is used since EXGRPO_ALLOW_TRL=1" in caplog.text


def test_a_newer_one_that_has_changed_is_refused_with_what_changed(monkeypatch, caplog):
    with pytest.raises(HostVersionError) as refused:
        contract.check_host_version("1.17.0", (Moved, GRPOConfig))
    assert "GRPOTrainer._generate_single_turn takes (self, rows, prompt_ids, images, multimodal_fields), not" in str(
        refused.value
    )
    assert "GRPOTrainer has no method _tokenize_prompts" in str(refused.value)
    monkeypatch.setenv(contract.OVERRIDE, "1")
    contract.check_host_version("1.17.0", (Moved, GRPOConfig))
    assert "changed: GRPOTrainer" in caplog.text


def test_1_15_needs_triton(monkeypatch):
    from trl.trainer import utils

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", None)
    with pytest.raises(HostVersionError, match=r"trl 1\.15\.0 computes log-probs by Triton"):
        contract.check_host_version("1.15.0")


def test_nothing_has_changed_in_the_installed_one():
    assert contract.changes(GRPOTrainer, GRPOConfig) == []


@pytest.mark.parametrize("table", ["ATTRIBUTES", "OPTIONS", "COLUMNS"])
def test_each_name_of_the_tables_is_looked_for(monkeypatch, table):
    monkeypatch.setattr(contract, table, getattr(contract, table) | {"of_another_version"})
    assert [change for change in contract.changes(GRPOTrainer, GRPOConfig) if "of_another_version" in change]


def reads() -> tuple[set[str], set[str]]:
    """Attributes of a trainer, and of its configuration, that the code of this room names."""
    of_trainer, of_args = set(), set()
    for path in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id in ("self", "trainer") and path.name != "config.py":
                of_trainer.add(node.attr)
            is_args = isinstance(owner, ast.Attribute) and owner.attr == "args"
            if is_args or (isinstance(owner, ast.Name) and owner.id in ("args", "config")):
                of_args.add(node.attr)
    return of_trainer, of_args


def test_the_tables_hold_all_that_is_read():
    of_trainer, of_args = reads()
    host = {*dir(GRPOTrainer), *host_attributes()}
    ours = {name for cls in ExGRPOTrainer.mro()[:2] for name in vars(cls)} - {*dir(GRPOTrainer)}
    missing = (of_trainer & host) - ours - contract.ATTRIBUTES - set(contract.METHODS)
    assert missing == set()
    options = {f.name for f in fields(GRPOConfig)}
    assert (of_args & options) - contract.OPTIONS == set()
    assert {f.name for f in fields(ExGRPOConfig)} >= contract.OPTIONS


def host_attributes() -> set[str]:
    """What the host's trainers set on themselves."""
    found = set()
    for cls in GRPOTrainer.mro():
        if cls.__module__.startswith(("trl", "transformers")):
            tree = ast.parse(Path(inspect.getfile(cls)).read_text())
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    owner = node.value
                    if isinstance(owner, ast.Name) and owner.id == "self":
                        found.add(node.attr)
    return found


def test_every_override_is_in_the_table():
    for cls in ExGRPOTrainer.mro()[:2]:
        overrides = {name for name in vars(cls) if callable(vars(cls)[name]) and hasattr(GRPOTrainer, name)}
        assert overrides - {"__doc__", "__module__"} <= set(contract.METHODS)


def test_what_is_tested_is_within_what_is_supported():
    (low, high), (least, most) = contract.TESTED_TRL, contract.SUPPORTED_TRL
    assert low == least < high < most
    assert Version("1.16.0") < high
