import pytest

from tests.support import harness
from trl import GRPOTrainer


@pytest.fixture(autouse=True)
def _scripted(monkeypatch):
    """Trainers with a `script` generate what it says; all others generate for real."""
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", harness.scripted_generation)
