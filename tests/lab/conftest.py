"""One tiny study, run through by the real command with two processes, that the tests of this folder compare with."""

import pytest

from ..support.tiny import TINY, Folder, command


@pytest.fixture(scope="session")
def study_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("study") / "tiny.yaml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def whole(study_file, tmp_path_factory) -> Folder:
    """The results of the study that ran through, with two processes."""
    folder = tmp_path_factory.mktemp("whole")
    done = command("run", str(study_file), "--output_dir", str(folder), "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return Folder(folder, done.stdout)
