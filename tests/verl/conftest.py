"""Tests marked `verl` run in verl's environment (`make test-verl`); where verl is not installed they are not even read."""

import importlib.util

import pytest

NEEDS_VERL = [
    "local.py",
    "cpu.py",
    "ordered.py",
    "agent.py",
    "adapter.py",
    "test_contract.py",
    "test_rewards.py",
    "test_loss.py",
    "test_trainer.py",
    "test_launch.py",
]
collect_ignore = [] if importlib.util.find_spec("transfer_queue") else NEEDS_VERL  # a folder here is called verl


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "verl" and item.path.name in NEEDS_VERL:
            item.add_marker(pytest.mark.verl)
