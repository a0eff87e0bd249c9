"""What `exgrpo train` prints."""

import pytest

from exgrpo.cli.train_output import short


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0"), (999, "999"), (1_000, "1.0k"), (9_949, "9.9k"), (9_950, "10k"), (250_000, "250k"), (1_000_000, "1.0M")],
)
def test_numbers_are_short(number, said):
    assert short(number) == said
