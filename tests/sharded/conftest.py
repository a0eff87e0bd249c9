"""Runs of one rank that those of sharded models must equal: made once."""

import pytest

from tests.support.launch import launch_all
from tests.support.runs import SCRIPTED, scripted_jobs


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory):
    """What one rank says of each scripted job."""
    [results] = launch_all(tmp_path_factory.mktemp("one"), 1, scripted_jobs(1))
    return dict(zip(SCRIPTED, results, strict=True))
