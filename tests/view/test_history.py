"""The log in memory: equal to the log's own views, whether read at once or as it grew; curves against a slow count."""

from collections import Counter, defaultdict
from itertools import pairwise

import numpy as np
import pytest

from exgrpo.archive.opened import consistent_reader
from exgrpo.log import LogReader
from exgrpo.view.curves import charts_of, heat_map, idle_marks
from exgrpo.view.history import STORED, History
from exgrpo.view.questions import FILTERS, SORTS, QuestionList
from exgrpo.view.sequences import previous_of_each
from tests.support.logs import Run, eventful


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path, _ = eventful(tmp_path_factory.mktemp("run"), review_every=3, review_share=1.0)
    return path


def history_of(path):
    with consistent_reader(path) as reader:
        return History(reader)


def by_question(reader, sql):
    return dict(reader.rows(sql))


def test_questions_stand_as_the_log_s_views_say(log):
    history = history_of(log)
    names = ("successes", "scorable", "groups", "completions", "solved", "stored", "replays", "retired")
    with LogReader(log) as reader:
        for number, *values in reader.rows(f"SELECT id, {', '.join(names)} FROM questions"):
            found = [int(getattr(history.questions, name)[number]) for name in names]
            assert found == [value or 0 for value in values], number
        uses = by_question(reader, "SELECT trajectory, count(*) FROM replays GROUP BY trajectory")
        stored = {n for (n,) in reader.rows("SELECT id FROM experience")}
    ids = history.trajectories["id"].tolist()
    assert dict(zip(ids, history.trajectories["uses"].tolist(), strict=True)) == {one: uses.get(one, 0) for one in ids}
    assert {
        one for one, left in zip(ids, history.trajectories["left"].tolist(), strict=True) if left == STORED
    } == stored


def state_of(history):
    per = {name: values.tolist() for name, values in vars(history.questions).items() if name != "spread"}
    own = [history.trajectories[name].tolist() for name in ("uses", "left")]
    return per, own, charts_of(history), heat_map(history), idle_marks(history)


def test_a_log_that_grows_is_read_to_the_same_as_at_once(tmp_path):
    run = Run(tmp_path / "experience.db", seed=4, retirement="threshold", review_every=4, review_share=1.0, max_age=9)
    run.generations(3)
    with LogReader(run.path) as reader:
        grown = History(reader)
        for _ in range(5):
            assert not grown.refresh(reader)
            run.generations(3)
            assert grown.refresh(reader)
    run.close()
    assert state_of(grown) == state_of(history_of(run.path))


def test_another_branch_replaces_what_it_does_not_see(tmp_path):
    run = Run(tmp_path / "experience.db", seed=1)
    early = run.generations(4)
    run.generations(3)
    run.close()
    with LogReader(run.path) as reader:
        history = History(reader)
        again = Run(run.path, seed=2, position=early)
        again.generations(2)
        again.close()
        assert history.refresh(reader)
    assert state_of(history) == state_of(history_of(run.path))
    assert history.generations["generation"].tolist() == list(range(6))


def test_losses_and_returns_of_success(log):
    history = history_of(log)
    groups = defaultdict(list)
    rows = history.observations
    for question, right, scorable in zip(rows["question"], rows["successes"], rows["scorable"], strict=True):
        if scorable:
            groups[int(question)].append(int(right))
    lost, regained = Counter(), Counter()
    for question, rights in groups.items():
        for before, after in pairwise(rights):
            lost[question] += before > 0 and after == 0
            regained[question] += before == 0 and after > 0 and lost[question] > 0
    numbers = range(len(history.questions.lost))
    assert history.questions.lost.tolist() == [lost[n] for n in numbers]
    assert history.questions.regained.tolist() == [regained[n] for n in numbers]
    assert sum(regained.values()) > 0


def test_the_heat_map_counts_every_question_once(log):
    """Against one event after the other, at the last step of every column."""
    history = history_of(log)
    k, rows = history.num_generations, history.observations
    names = ("seq", "question", "step", "successes", "scorable")
    events = [
        (seq, question, step, ("bucket", (2 * right * k + n) // (2 * n)))
        for seq, question, step, right, n in zip(*(rows[name].tolist() for name in names), strict=True)
        if n
    ]
    rows = history.retirements
    assert rows["back"].any()
    events += [
        (seq, question, step, ("back" if back else "retired", None))
        for seq, question, step, back in zip(
            *(rows[n].tolist() for n in ("seq", "question", "step", "back")), strict=True
        )
    ]
    heat = heat_map(history)
    for column, step in enumerate(heat["steps"]):
        bucket, away = {}, set()
        for _, question, at, (kind, value) in sorted(events):
            if at <= step:
                if kind == "bucket":
                    bucket[question] = value
                else:
                    (away.add if kind == "retired" else away.discard)(question)
        places = Counter(k + 1 if question in away else bucket.get(question, -1) for question in {*bucket, *away})
        assert [row[column] for row in heat["counts"]] == [places[i] for i in range(k + 2)], step


def test_the_previous_of_each():
    group, values = np.array([1, 0, 1, 1, 0]), np.array([5, 6, 7, 8, 9])
    assert previous_of_each(group, values, np.array([-1, -2])).tolist() == [-2, -1, 5, 7, 6]


def test_what_the_loss_said_stands_beside_its_replay(log):
    history = history_of(log)
    with LogReader(log) as reader:
        said = list(reader.rows("SELECT generation, trajectory, log_ratio FROM replays ORDER BY seq"))
    names = ("generation", "trajectory", "log_ratio")
    found = list(zip(*(history.replays[name].tolist() for name in names), strict=True))
    assert [row[:2] for row in found] == [row[:2] for row in said]
    assert np.allclose(
        [row[2] for row in found], [np.nan if row[2] is None else row[2] for row in said], equal_nan=True
    )


# The list of questions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("only", FILTERS)
@pytest.mark.parametrize("sort", SORTS)
def test_pages_of_a_list_are_parts_of_its_order(log, only, sort):
    history = history_of(log)
    with LogReader(log) as reader:
        listed = QuestionList(history)
        whole = listed.page(reader, only=only, sort=sort, descending=True, count=200)
        parts = [
            listed.page(reader, only=only, sort=sort, descending=True, start=i, count=7)["rows"]
            for i in (0, 7, 14, 21, 28)
        ]
    ids = [row["id"] for row in whole["rows"]]
    assert [row["id"] for part in parts for row in part] == ids
    keys = SORTS[sort].key(history.questions)[ids]
    assert (np.diff(keys) <= 0).all()
    assert len(ids) == whole["total"] == next(f["count"] for f in whole["filters"] if f["name"] == only)


@pytest.mark.parametrize(
    ("search", "found"),
    [("How much is 7 + 7", 1), ("how MUCH is 7 +", 1), ("%", 0), ("_ow much", 0), ("q:5", 1), ("How", 24), ("' OR 1=1 --", 0),
     ("'; DROP TABLE question; --", 0), ("\\", 0), ("q:99999999999999999999", 0), ("q:-1", 0), ("q:٣", 0)],
)  # fmt: skip
def test_what_is_searched_for_is_text_and_nothing_else(log, search, found):
    with LogReader(log) as reader:
        rows = QuestionList(history_of(log)).page(reader, search=search)["rows"]
    assert len(rows) == found
    assert all(search.lower() in f"q:{row['id']} {row['text']}".lower() for row in rows)
