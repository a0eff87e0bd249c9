"""What the log keeps of trajectories and questions beside tokens: scores, outcomes, qualities, embeddings; and of options."""

import json
import math
import shutil
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from exgrpo.archive.maintenance import fork, import_folder, merge, prune, verify
from exgrpo.archive.parquet import export, read_folder
from exgrpo.archive.transfer import Bounds, KnownTrajectory, import_experience, source_of
from exgrpo.config import ReplayConfig
from exgrpo.errors import DamagedLogError, ExperienceLogError
from exgrpo.experience import ExperienceBuffer, Trajectory
from exgrpo.experience.events import (
    Continued,
    Measured,
    Observed,
    PlannerState,
    Retired,
    Returned,
    Skipped,
    Stored,
    Trained,
)
from exgrpo.experience.replayed import fingerprint_of, snapshot_of
from exgrpo.log import LogReader, LogWriter, rebuild, schema
from exgrpo.log.rebuild import empty_buffer
from exgrpo.log.snapshot import config_of, window_of
from tests.support.logs import DIMENSION, EVENTFUL, ORIGIN, Dataset, K, Run, buffer_at, eventful

HALF, QUARTER = math.log(0.5), math.log(0.25)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path, positions = eventful(tmp_path_factory.mktemp("log"))
    return path, positions


@pytest.fixture
def log(original, tmp_path):
    shutil.copytree(original[0].parent, tmp_path / "run")
    return tmp_path / "run" / original[0].name


def opened(path, n=4, **options):
    """A writer on its first branch, and the buffer that it listens to."""
    writer = LogWriter(path, Dataset(n))
    writer.begin(ORIGIN)
    return writer, ExperienceBuffer(n, K, ReplayConfig(**options), writer, writer)


def trajectory(question=0, logps=(HALF, QUARTER), **fields):
    ids = np.arange(len(logps)) + 7 * question
    return Trajectory(question, ids, np.array(logps), np.array([1.0]), 3, **fields)


def events(path, kind):
    with LogReader(path) as reader:
        return [event for _, event in reader.events(reader.lineage()) if isinstance(event, kind)]


def query(path, sql):
    connection = sqlite3.connect(path)
    rows = connection.execute(sql).fetchall()
    connection.commit()
    connection.close()
    return rows


# Scores and outcomes --------------------------------------------------------------------------------------------------


def test_scores_are_columns_and_come_back_as_they_were(tmp_path):
    """Of probabilities 1/2 and 1/4: -log p is 1.5 ln 2 on average, p is 3/8, its variance 1/64."""
    path = tmp_path / "a.db"
    writer, buffer = opened(path)
    made = trajectory(correct=False, advantage=-0.1, quality=0.3, embedding=np.array([0.5, -1.0]), entropy=0.7)
    buffer.admit([made])
    buffer.admit([trajectory(1)])
    writer.commit(PlannerState())
    writer.close()
    first, second = events(path, Stored)
    assert [replace(first, question=0)] == list(Stored.of(np.array([0]), [made]).each())
    assert (first.correct, first.advantage, first.quality) == (False, -0.1, 0.3)
    assert (first.nll, first.confidence, first.confidence_variance) == pytest.approx((1.5 * math.log(2), 3 / 8, 1 / 64))
    assert second.correct
    assert math.isnan(second.advantage)
    assert math.isnan(second.quality)
    columns = "correct, advantage, quality, round(confidence, 4), dimension"
    assert query(path, f"SELECT {columns} FROM trajectories ORDER BY id") == [
        (0, -0.1, 0.3, 0.375, 2), (1, None, None, 0.375, 0),
    ]  # fmt: skip
    with LogReader(path) as reader:
        (number,) = next(reader.rows("SELECT min(id) FROM trajectory"))
        found = reader.trajectory(number)
        assert reader.trajectory(number + 1).embedding is None
    assert (found.correct, found.advantage, found.quality) == (False, -0.1, 0.3)
    assert found.embedding.dtype == np.float16
    assert found.embedding.tolist() == [0.5, -1.0]


def test_measurements_spreads_and_returns_come_back(tmp_path):
    path = tmp_path / "a.db"
    writer, buffer = opened(path)
    buffer.admit([trajectory(2)])
    told = [
        Observed(1, 5, 2, 1, 4, 0, True, 0.25), Measured(0, 2, 5, math.nan, 1.5, 0.5, 0.125, 0.0625),
        Retired(1, 5, 3), Returned(4, 9, 3),
    ]  # fmt: skip
    for event in told:
        writer(event)
    writer.commit(PlannerState(reviewed=9))
    writer.close()
    with LogReader(path) as reader:
        numbers = {record.dataset_row: number for number, record in reader.questions()}
        assert reader.state(reader.position()).reviewed == 9
    expected = [replace(event, question=numbers[event.question]) for event in told]
    found = events(path, (Observed, Measured, Retired, Returned))
    assert list(map(repr, found)) == list(map(repr, expected))  # NaN is NaN
    assert query(path, "SELECT step, kind FROM retirements ORDER BY seq") == [(5, "left"), (9, "returned")]
    assert query(path, "SELECT entropy, nll, confidence, confidence_variance, drift FROM measurements") == [
        (None, 1.5, 0.5, 0.125, 0.0625)
    ]


def test_a_zero_with_a_sign_is_no_damage(tmp_path):
    """SQLite keeps no sign of a zero: a checksum of one would not fit what is read back."""
    path = tmp_path / "a.db"
    writer, buffer = opened(path)
    buffer.admit([trajectory(logps=[0.0], entropy=-0.0, advantage=-0.0)])
    writer(Trained(0, 0, 0, 0, -0.0, 1.0))
    writer.commit(PlannerState())
    writer.close()
    assert verify(path) == []
    assert len(events(path, Stored)) == 1


def test_the_views_tell_failures_from_successes(log):
    with LogReader(log) as reader:
        buffer, _ = buffer_at(reader)
        slots = buffer.live_slots()
        wrong = buffer.column("question")[slots][~buffer.column("correct")[slots]]
        rows = dict(reader.rows("SELECT id, failures FROM questions WHERE failures"))
        retired = {number for (number,) in reader.rows("SELECT id FROM questions WHERE retired")}
    assert rows == dict(zip(*np.unique(wrong, return_counts=True), strict=True))
    assert len(wrong) > 0
    assert retired == set(np.flatnonzero(buffer.retired).tolist())


# Embeddings -----------------------------------------------------------------------------------------------------------


def embeddings(path, position=None, encoder=None):
    with LogReader(path) as reader:
        return [(s, q, v.tobytes()) for s, q, v in reader.embeddings(reader.lineage(position), encoder)]


def test_embeddings_of_a_lineage_are_those_of_all_that_was_stored_on_it(log, original):
    for position in (None, *original[1]):
        with LogReader(log) as reader:
            lineage = reader.lineage(position)
            stored = [event for _, event in reader.events(lineage) if isinstance(event, Stored)]
            spans = [next(s for s in reversed(lineage) if s.first_serial <= event.serial) for event in stored]
            numbers = [span.branch << schema.SERIAL_BITS | e.serial for e, span in zip(stored, spans, strict=True)]
            vectors = dict(reader.rows("SELECT id, vector FROM embedding"))
        found = embeddings(log, position)
        assert found == [(e.serial, e.question, vectors[n]) for e, n in zip(stored, numbers, strict=True)]
        assert {len(vector) for _, _, vector in found} == {2 * DIMENSION}
    with LogReader(log) as reader:
        assert len(buffer_at(reader)[0]) < len(embeddings(log))  # those that left are among them


def test_embeddings_of_one_encoder(log):
    assert embeddings(log, encoder="encoder-1") == embeddings(log)
    assert embeddings(log, encoder="another") == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("DELETE FROM embedding WHERE id = {}", "is missing"),
        ("UPDATE embedding SET vector = zeroblob(16) WHERE id = {}", "is not what was written"),
        ("UPDATE embedding SET crc = crc + 1 WHERE id = {}", "is not what was written"),
        ("UPDATE embedding SET vector = 'text' WHERE id = {}", "is not what was written"),
    ],
)
def test_a_damaged_embedding_is_refused_and_found(log, damage, said):
    ((number,),) = query(log, "SELECT max(id) FROM experience")
    query(log, damage.format(number))
    with LogReader(log) as reader:
        with pytest.raises(DamagedLogError, match=f"embedding of trajectory {number} {said}"):
            reader.trajectory(number)
        with pytest.raises(DamagedLogError, match=f"embedding of trajectory {number} {said}"):
            list(reader.embeddings(reader.lineage()))
    assert [(f.where, f.row) for f in verify(log)] == [("embedding", number)]


def test_an_embedding_of_nothing_or_of_another_length_is_found(log):
    ((number,),) = query(log, "SELECT max(id) FROM experience")
    crc = schema.checksum_of_bytes(number, b"\0\0")
    query(log, f"UPDATE embedding SET vector = x'0000', crc = {crc} WHERE id = {number}")
    crc = schema.checksum_of_bytes(5, b"")
    query(log, f"INSERT INTO embedding VALUES (5, x'', {crc})")
    assert {(f.row, f.what) for f in verify(log)} == {
        (number, f"of another length than the {DIMENSION} of its trajectory"), (5, "its trajectory is missing"),
    }  # fmt: skip


def test_prune_keeps_the_embeddings_of_what_left(log, original):
    """The diversity of a later completion is measured against all that was stored of its question."""
    before = {position: embeddings(log, position) for position in (None, *original[1])}
    ((dead, kept),) = query(log, "SELECT sum(branch = 2), sum(branch != 2) FROM trajectory")
    report = prune(log)
    assert report.tokens > 0
    assert {position: embeddings(log, position) for position in before} == before
    assert query(log, "SELECT count(*) FROM embedding") == [(kept - (report.trajectories - dead),)]
    assert verify(log) == []


def test_a_run_goes_on_after_prune_with_the_same_qualities(log, original):
    other = log.parent.with_name("other")
    shutil.copytree(log.parent, other)
    prune(log)
    ends = []
    for path in (log, other / log.name):
        run = Run(path, seed=1, position=original[1][1], **EVENTFUL)
        run.generations(5)
        ends.append((fingerprint_of(run.buffer), embeddings(path)))
        run.close()
    assert ends[0] == ends[1]


# Another schema -------------------------------------------------------------------------------------------------------


def test_a_log_of_schema_1_is_refused_with_what_to_do(log):
    query(log, "PRAGMA user_version = 1")
    before = log.read_bytes()
    said = r"has schema 1, .*reads schemas 2 and 3\. .*exgrpo experience export.*experience_from=DIR.*start over"
    for attempt in (LogReader, verify, prune, lambda path: LogWriter(path, Dataset()), lambda path: fork(path, 3)):
        with pytest.raises(ExperienceLogError, match=said):
            attempt(log)
    assert log.read_bytes() == before


def test_a_log_of_schema_2_is_read_as_it_is_and_given_its_tables_when_it_is_written(tmp_path, monkeypatch):
    """What an exgrpo of 0.2 wrote: no such events and tables, and nothing of the variance of groups in its snapshots."""
    told = LogWriter.__call__

    def as_before(self, event):
        if not isinstance(event, (Continued, Skipped)):
            told(self, event)

    monkeypatch.setattr(LogWriter, "__call__", as_before)
    log, _ = eventful(tmp_path, skip="none")
    with LogReader(log) as reader:
        events = [event for _, event in reader.events(reader.lineage())]
        wanted = rebuilt(reader)
    for name in ("VIEW continuations", "VIEW skips", "TABLE continuation", "TABLE skip"):
        query(log, f"DROP {name}")
    query(log, "UPDATE meta SET value = '0.2' WHERE key = 'needs'")
    query(log, "PRAGMA user_version = 2")
    before = log.read_bytes()
    assert verify(log) == []
    with LogReader(log) as reader:
        assert list(map(repr, (event for _, event in reader.events(reader.lineage())))) == list(map(repr, events))
        assert rebuilt(reader) == wanted
        export(reader, log.parent / "out")
    assert log.read_bytes() == before
    fork(log, 3)
    assert query(log, "PRAGMA user_version") == [(3,)]
    assert query(log, "SELECT value FROM meta WHERE key = 'needs'") == [("0.3",)]
    assert verify(log) == []


def rebuilt(reader) -> dict[str, bytes]:
    buffer = empty_buffer(reader, reader.position())
    rebuild(reader, buffer, use_snapshot=False)
    return {name: array.tobytes() for name, array in snapshot_of(buffer).items()}


def test_a_log_of_a_later_schema_is_refused_with_the_version_needed(log):
    query(log, "PRAGMA user_version = 4")
    query(log, "UPDATE meta SET value = '0.9' WHERE key = 'needs'")
    with pytest.raises(ExperienceLogError, match=r"has schema 4; .* up to 3\. Install exgrpo 0\.9 or later"):
        LogReader(log)


# Options on which an index depends ------------------------------------------------------------------------------------

OPTIONS = [
    {"difficulty": "window", "difficulty_window": 7}, {"cooldown": 2}, {"mixing": "prompt", "max_uses": 2, "cooldown": 1},
    {"by_problem_type": True, "question_choice": "uniform"}, {"mixing": "added", "max_age": 3, "admission": "all"},
    {"replays_per_group": 4, "mixing": "coin", "replay_probability": 0.7}, {"difficulty": "spread"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(map(str, options.values())))
def test_upkeep_of_a_run_with_any_options(tmp_path, options):
    path = tmp_path / "experience.db"
    run = Run(path, seed=4, **options)
    run.generations(6, snapshot=True)
    position = run.generation(checkpoint=tmp_path)
    run.generations(4)
    again = fingerprint_of(run.buffer)
    run.close()
    assert verify(path) == []
    prune(path)
    assert verify(path) == []
    resumed = Run(path, seed=4, position=position, **options)
    resumed.generations(4)
    assert fingerprint_of(resumed.buffer) == again
    resumed.close()
    fork(path, 8)
    with LogReader(path) as reader:
        export(reader, tmp_path / "out")
    import_folder(tmp_path / "out", path)
    merge([path], tmp_path / "merged.db")
    assert verify(path) == []
    assert verify(tmp_path / "merged.db") == []


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(map(str, options.values())))
def test_other_options_begin_from_the_events_and_not_from_a_snapshot(tmp_path, options):
    """The accuracies of a window, or who rests, do not stand in the snapshot of a run that looked at neither."""
    path = tmp_path / "experience.db"
    run = Run(path, seed=4)
    run.generations(5)
    position = run.generation(snapshot=True)
    run.close()
    prints = []
    with LogReader(path) as reader:
        for use_snapshot in (True, False):
            types = np.arange(30) % 3 if "by_problem_type" in options else None
            buffer = ExperienceBuffer(30, K, ReplayConfig(**options), types=types)
            buffer.get_many = lambda slots: []
            rebuild(reader, buffer, position, use_snapshot=use_snapshot)
            prints.append(fingerprint_of(buffer))
    assert prints[0] == prints[1]


def test_the_options_of_a_run_are_those_of_its_origin():
    options = {"difficulty": "window", "difficulty_window": 7, "cooldown": 2, "capacity": 9, "seed": 1}
    config = config_of(replace(ORIGIN, options=json.dumps(options)))
    assert (config.difficulty, config.difficulty_window, config.cooldown, config.capacity) == ("window", 7, 2, 0)
    assert window_of(config) == 7
    assert window_of(ReplayConfig(max_uses=5, mixing="prompt")) == window_of(ReplayConfig(difficulty="spread")) == 0
    for spoiled in ('{"cooldown": -1}', '{"mixing": "of later versions"}', "[]", "nonsense", ""):
        assert config_of(replace(ORIGIN, options=spoiled)) == ReplayConfig(capacity=0)


def test_a_snapshot_of_0_2_0_is_read_and_its_further_arrays_are_ignored(tmp_path):
    """It held the members of buckets and resting questions, and counted a replay for each trajectory."""
    run = Run(tmp_path / "a.db", seed=3, cooldown=2, **EVENTFUL)
    run.generations(7)
    arrays = snapshot_of(run.buffer)
    ready = run.buffer.replayable().astype(np.int32)
    older = arrays | {"pools": ready[::-1], "resting": ready[:1], "replays": arrays["replays"] + 1}
    position = run.log.commit(run.planner.state(run.step + 1), snapshot=older)
    run.close()
    assert verify(run.path) == []
    with LogReader(run.path) as reader:
        read, followed = (buffer_at(reader, position, use_snapshot)[0] for use_snapshot in (True, False))
        assert read.replayable().tolist() == followed.replayable().tolist()
        before, after = snapshot_of(read), snapshot_of(followed)
    assert before.keys() == after.keys()
    different = [name for name in before if before[name].tobytes() != after[name].tobytes()]
    assert different == ["replays"]


# Taking it over -------------------------------------------------------------------------------------------------------


def taken(path, folder, origin=ORIGIN, rescore=None, bounds=None, change=None):
    """What a new run takes over of a log: its trajectories by key and ids, and the report."""
    with LogReader(path) as reader:
        source = source_of(reader)
        if change is not None:
            source.trajectories = [KnownTrajectory(k.trajectory, change(k.origin)) for k in source.trajectories]
        writer = LogWriter(folder / "new.db", Dataset(24))
        writer.begin(origin)
        config = ReplayConfig(capacity=10**6, capacity_per_question=10**6)
        buffer, told = ExperienceBuffer(24, K, config, writer, writer), []
        report = import_experience(source, buffer, writer, origin, 0, rescore, bounds, told.append)
        found = buffer.get_many(np.argsort(buffer.column("serial")[buffer.live_slots()]).tolist())
        writer.commit(PlannerState(), snapshot=snapshot_of(buffer))
        rows = writer.reader.embeddings(
            writer.reader.lineage(writer.position), origin.embedding, writer.question_map.question_of
        )
        vectors = [(t.question, t.embedding.tobytes()) for t in told if t.embedding is not None]
        assert [(question, vector.tobytes()) for _, question, vector in rows] == vectors
        writer.close()
    return found, report


@pytest.fixture
def held(log):
    with LogReader(log) as reader:
        return [known.trajectory for known in source_of(reader).trajectories]


def test_outcomes_advantages_qualities_and_embeddings_are_taken_over(log, held, tmp_path):
    found, report = taken(log, tmp_path, bounds=Bounds(1000, 2, admits=lambda trajectory: True))
    assert report.left_out.total() == 0
    for old, new in zip(held, found, strict=True):
        assert (new.correct, new.quality) == (old.correct, old.quality)
        assert np.array_equal(new.advantage, old.advantage, equal_nan=True)
        assert new.embedding.tobytes() == old.embedding.tobytes()
        assert math.isnan(new.entropy)
    assert {t.correct for t in found} == {True, False}
    assert len(embeddings(tmp_path / "new.db", encoder="encoder-1")) == len(found)
    assert verify(tmp_path / "new.db") == []


def test_a_run_that_stores_no_failures_takes_none_over(log, held, tmp_path):
    found, report = taken(log, tmp_path, bounds=Bounds(1000, 2))
    failures = sum(not t.correct for t in held)
    assert failures > 0
    assert dict(report.left_out) == {"that this run would not store": failures}
    assert len(found) == len(held) - failures


@pytest.mark.parametrize("encoder", ["", "encoder-2"])
def test_under_another_encoder_qualities_and_embeddings_are_forgotten(log, held, tmp_path, encoder):
    found, _ = taken(log, tmp_path, replace(ORIGIN, embedding=encoder))
    assert len(found) == len(held)
    assert all(t.embedding is None and math.isnan(t.quality) for t in found)
    assert any(not math.isnan(t.advantage) for t in found)
    assert embeddings(tmp_path / "new.db") == []


def test_what_is_scored_again_is_right_and_its_advantage_is_not_known(log, held, tmp_path):
    """Success is a part of quality: that of a former failure is not known either."""

    def rescore(trajectories):
        return [np.array([1.0, 0.0]) if len(t) % 3 else None for t in trajectories]

    found, report = taken(log, tmp_path, rescore=rescore, change=lambda origin: replace(origin, rewards="others"))
    right = [t for t in held if len(t) % 3]
    assert dict(report.left_out) == {"not right under this run's reward functions": len(held) - len(right)}
    assert len(found) == len(right)
    for old, new in zip(right, found, strict=True):
        assert new.correct
        assert math.isnan(new.advantage)
        assert new.rewards.tolist() == [1.0, 0.0]
        assert new.quality == old.quality if old.correct else math.isnan(new.quality)
        assert new.embedding is not None


def test_spreads_travel(log, tmp_path):
    with LogReader(log) as reader:
        export(reader, tmp_path / "out")
        wanted = {q.record.key: q.reward_std for q in source_of(reader).questions if q.scorable}
        sql = "SELECT q.key, o.spread FROM observations o JOIN question q ON q.id = o.question WHERE o.scorable ORDER BY seq"
        assert wanted == dict(reader.rows(sql))  # the latest of each
    assert {q.record.key: q.reward_std for q in read_folder(tmp_path / "out").questions if q.scorable} == wanted
    assert len(set(wanted.values())) > 2
    import_folder(tmp_path / "out", tmp_path / "new.db")
    assert dict(query(tmp_path / "new.db", sql)) == wanted
    with LogReader(tmp_path / "new.db") as reader:
        buffer, _ = buffer_at(reader)
        reward_stds = {record.key: buffer.questions.reward_std[number] for number, record in reader.questions()}
    assert {key: value for key, value in reward_stds.items() if not np.isnan(value)} == {
        key: np.float32(value) for key, value in wanted.items()
    }


def test_a_merge_of_two_encoders_keeps_the_embeddings_of_one(tmp_path):
    paths = []
    for name, encoder in (("one", "encoder-1"), ("two", "encoder-2")):
        paths.append(tmp_path / f"{name}.db")
        run = Run(paths[-1], Dataset(8, first=8 * len(paths)), replace(ORIGIN, embedding=encoder), **EVENTFUL)
        run.generations(4)
        run.close()
    merge(paths, tmp_path / "both.db")
    with LogReader(tmp_path / "both.db") as reader:
        kept = reader.origin_of(1).embedding
    assert kept in ("encoder-1", "encoder-2")  # both began within a second
    found, count = (
        embeddings(tmp_path / "both.db"),
        query(tmp_path / "both.db", "SELECT count(*) FROM trajectory")[0][0],
    )
    assert embeddings(tmp_path / "both.db", encoder=kept) == found
    assert 0 < len(found) < count
