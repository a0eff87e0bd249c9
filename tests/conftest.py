"""Settings of all tests: examples that are the same in every run, one thread, and policies of this run alone."""

import gc
import logging
import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("exgrpo", deadline=None, derandomize=True, max_examples=60, database=None)
settings.register_profile("quick", settings.get_profile("exgrpo"), max_examples=15)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "exgrpo"))
torch.set_num_threads(1)


def pytest_collection_finish():
    """What was imported stays: a trainer collects garbage at the end of each run, and would go through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _policies(tmp_path_factory):
    """Where warmed-up policies are kept: shared by the processes of this run, and by no other."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXGRPO_CACHE", str(root / "policies"))
        yield


@pytest.fixture(autouse=True)
def _levels():
    """Messages of this package are heard, whatever a command or a study in this process has set before."""
    yield
    for name in ("exgrpo", *(name for name in logging.root.manager.loggerDict if name.startswith("exgrpo."))):
        logging.getLogger(name).setLevel(logging.NOTSET)
