"""What a report says in words and shows in its table of pairs."""

import re

import pytest

from exgrpo.lab.studies.page import as_json, in_words, pair_rows

from ..support.tiny import findings


def of(base, ours):
    """Findings of two arms with these finals, by seed."""
    arms = {"on-policy": dict(enumerate(base)), "exgrpo": dict(enumerate(ours))}
    return findings(arms, seeds=len(base))


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ([0.55, 0.53, 0.56, 0.54, 0.52], "4.0 points above on-policy .* told apart."),
        ([0.55, 0.45, 0.56, 0.44, 0.52], "not told apart. About .* seeds would tell"),
        ([0.50, 0.50, 0.56, 0.50, 0.52], "many pairs tie exactly that there is no interval"),
    ],
)
def test_five_pairs(ours, said):
    found = of([0.5] * 5, ours)
    (line,) = (line for line in in_words(found) if "exgrpo is" in line)
    assert re.search(said, line), line
    (row,) = (row for row in pair_rows(found, "chains") if row["arm"] == "exgrpo")
    assert ("no interval" in row["Pass@1 at equal tokens"]) == ("tie" in said)
    figures = as_json(found)["settings"]["chains"]["differences"][0]["figures"]["equal_tokens:pass_at_1"]
    assert figures["by_pair"] == pytest.approx([value - 0.5 for value in ours])
    assert (figures["interval"] is None) == ("tie" in said)


def test_fewer_than_five_pairs_give_no_interval():
    found = of([0.5] * 4, [0.7, 0.8, 0.7, 0.8])
    (line,) = (line for line in in_words(found) if "exgrpo is" in line)
    assert "25.0 points above" in line
    assert "With fewer than 5 pairs there is no interval" in line
    (row,) = (row for row in pair_rows(found, "chains") if row["arm"] == "exgrpo")
    assert row["Pass@1 at equal tokens"] == "+25.0, no interval"
    assert row["pairs"] == 4


def test_equal_time_is_where_the_quicker_one_ends():
    """Curves 0.1, half, final at 0, 1, 2 seconds; one that is twice as slow is read in its middle."""
    found = of([0.5] * 5, [0.6, 0.7, 0.8, 0.65, 0.75])
    for seed in range(5):
        slow = found.runs["chains", "exgrpo", seed]
        object.__setattr__(slow, "cpu", tuple(2 * second for second in slow.cpu))
    values = found.pairs("chains", "exgrpo", "on-policy", "equal_time")
    assert [ours for ours, _ in values] == pytest.approx([0.3, 0.35, 0.4, 0.325, 0.375])
    assert found.pairs("chains", "exgrpo", "on-policy", "equal_steps")[0] == (0.6, 0.5)
