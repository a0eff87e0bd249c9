"""Verify finds whatever was damaged, prune breaks nothing that remains, and fork, merge and import take over what is there."""

import contextlib
import io
import shutil
import sqlite3
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exgrpo.archive import maintenance as log_upkeep
from exgrpo.archive.maintenance import fork, import_folder, merge, prune, verify
from exgrpo.archive.parquet import export
from exgrpo.archive.transfer import source_of
from exgrpo.errors import ConfigurationError, DamagedLogError, ExperienceLogError, LogInUseError
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.log import LogReader, schema
from tests.support.logs import ORIGIN, TOKENIZER, Dataset, Run, buffer_at, eventful, fingerprints, write_checkpoint


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Path, checkpointed positions, and the fingerprints at the end and at these."""
    path, positions = eventful(tmp_path_factory.mktemp("log"))
    return path, positions, fingerprints(path, positions)


@pytest.fixture
def log(original, tmp_path):
    """A copy of its folder that may be spoiled."""
    path, positions, prints = original
    shutil.copytree(path.parent, tmp_path / "run")
    return tmp_path / "run" / path.name, positions, prints


def change(path, *statements):
    connection = sqlite3.connect(path)
    with connection:
        for statement in statements:
            assert connection.execute(statement).rowcount != 0, statement
    connection.close()


# Verify ---------------------------------------------------------------------------------------------------------------


def test_the_log_of_these_tests_holds_everything(original):
    path, _, _ = original
    connection = sqlite3.connect(path)
    for table in (*schema.EVENTS, *schema.FACTS, "tokens", "embedding", "snapshot", "tokenizer"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0], table
    reasons = {reason for (reason,) in connection.execute("SELECT DISTINCT reason FROM eviction")}
    assert reasons == {"retired", "capacity", "capacity_per_question"}
    assert {kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM retirement")} == {"left", "returned"}
    assert {correct for (correct,) in connection.execute("SELECT DISTINCT correct FROM trajectory")} == {0, 1}
    sql = "SELECT count(advantage), count(quality), count(*) FROM trajectory"
    advantages, qualities, trajectories = connection.execute(sql).fetchone()
    assert 0 < advantages < qualities == trajectories
    connection.close()


def test_nothing_is_found_where_nothing_is_wrong(original):
    path, _, _ = original
    assert verify(path) == []


ROWS_OF = {"meta": "key", "tokenizer": "hash", "tokens": "id", "embedding": "id", **dict.fromkeys(schema.FACTS, "id")}
DELETABLE = [*schema.EVENTS, *schema.FACTS, "tokens", "embedding", "meta"]


@pytest.mark.parametrize("which", ["min", "max"])
@pytest.mark.parametrize("table", DELETABLE)
def test_a_deleted_row_is_found(log, table, which):
    path, _, _ = log
    key = ROWS_OF.get(table, "seq")
    change(path, f"DELETE FROM {table} WHERE {key} = (SELECT {which}({key}) FROM {table})")
    assert verify(path)


def columns_of_all_tables():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.create(connection)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {table: [row[1:3] for row in connection.execute(f"PRAGMA table_info({table})")] for table in tables}
    connection.close()
    return found


COLUMNS = columns_of_all_tables()


def another(table, column, kind, rowid):
    new = {"INTEGER": f"coalesce({column}, 0) + 1000003", "REAL": f"coalesce({column}, 0) + 1e-9"}.get(kind, "'x'")
    return f"UPDATE {table} SET {column} = {new} WHERE rowid = {rowid}"


@pytest.mark.parametrize(
    "table", [table for table in COLUMNS if table in {*schema.EVENTS, "tokens", "embedding", "question"}]
)
def test_every_changed_value_is_found(log, table):
    """Each column's in a row of its own."""
    path, _, _ = log
    with contextlib.closing(sqlite3.connect(path)) as connection:
        name = ROWS_OF.get(table, "seq")
        rows = dict(connection.execute(f"SELECT rowid, {name} FROM {table} ORDER BY rowid DESC LIMIT 30"))
    change(path, *(another(table, *column, rowid) for column, rowid in zip(COLUMNS[table], rows, strict=False)))
    found = {finding.row for finding in verify(path) if finding.where == table}
    changed = {row + 1000003 * (column[0] == name) for column, row in zip(COLUMNS[table], rows.values(), strict=False)}
    assert found >= changed
    assert len(changed) == len(COLUMNS[table])


@pytest.mark.parametrize(
    ("table", "column", "kind"),
    [(table, *column) for table in ("meta", "tokenizer", "snapshot", "branch", "origin") for column in COLUMNS[table]],
)
def test_a_changed_value_is_found(log, table, column, kind):
    path, _, _ = log
    change(path, another(table, column, kind, f"(SELECT max(rowid) FROM {table})"))
    found = verify(path)
    assert found
    assert all(str(finding) for finding in found)


def test_findings_name_the_row(log):
    path, _, _ = log
    change(path, "UPDATE observation SET successes = successes + 1 WHERE seq = (SELECT min(seq) FROM observation)")
    found = verify(path)
    (first,) = (finding for finding in found if finding.where == "observation")
    assert "is not what was written" in str(first)
    assert isinstance(first.row, int)


def test_every_damage_is_listed_and_very_many_of_a_kind_are_counted(log):
    path, _, _ = log
    change(
        path,
        "UPDATE tokens SET crc = crc + 1",
        "UPDATE eviction SET crc = crc + 1",
        "DELETE FROM state WHERE seq = (SELECT min(seq) FROM state)",
    )
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT count(*) FROM tokens").fetchone()[0]
    connection.close()
    found = verify(path)
    assert rows > 100
    assert sum(f.where == "tokens" and f.row is not None for f in found) == 100
    assert f"{rows - 100} more rows" in "\n".join(map(str, found))
    assert {"tokens", "eviction"} <= {f.where for f in found}


def test_a_changed_schema_is_found(log):
    path, _, _ = log
    connection = sqlite3.connect(path)
    connection.execute("DROP VIEW replays")
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    assert {(f.where, f.row, f.what) for f in verify(path)} >= {
        ("schema", "replays", "missing"), ("schema", "mine", "not ours"),
    }  # fmt: skip


def test_a_snapshot_that_contradicts_the_events_is_found(log):
    path, _, _ = log
    connection = sqlite3.connect(path)
    ((seq, data),) = connection.execute("SELECT seq, data FROM snapshot ORDER BY seq DESC LIMIT 1")

    arrays = dict(np.load(io.BytesIO(data)))
    arrays["entropy"][:] = 7
    arrays["uses"][0] += 1
    file = io.BytesIO()
    np.savez(file, **arrays)
    data = file.getvalue()
    with connection:
        crc = schema.checksum_of_bytes(seq, data)
        connection.execute("UPDATE snapshot SET data = ?, crc = ? WHERE seq = ?", (data, crc, seq))
    connection.close()
    assert {(f.where, f.row) for f in verify(path)} == {("snapshot", seq)}
    assert {f.what.split()[1] for f in verify(path)} == {"entropy", "uses"}


def test_a_checkpoint_that_refers_to_what_is_not_there_is_found(log):
    path, positions, _ = log
    write_checkpoint(path.parent, 99, replace(positions[-1], seq=10**6))
    write_checkpoint(path.parent, 98, replace(positions[-1], log="another"))
    (found,) = verify(path)
    assert (found.where, found.row) == ("checkpoint", "checkpoint-99")


def everything(path):
    """All buffers that can follow from a log, with the tokens of what they hold."""
    with LogReader(path) as reader:
        found = []
        for position in reader.ends():
            for use_snapshot in (True, False):
                buffer, state = buffer_at(reader, position, use_snapshot)
                found.append((fingerprint_of(buffer), state))
        return found


@pytest.mark.slow
def test_a_flipped_byte_anywhere_is_found_or_does_not_matter(log, tmp_path):
    path, _, _ = log
    sound, rng = path.read_bytes(), np.random.default_rng(0)
    expected, unnoticed = everything(path), 0
    spoiled = tmp_path / "spoiled.db"
    for place in rng.choice(len(sound), 200, replace=False).tolist():
        data = bytearray(sound)
        data[place] ^= int(rng.integers(1, 256))
        spoiled.write_bytes(data)
        try:
            found = verify(spoiled)
        except ExperienceLogError:  # no longer a log at all, or one of another schema
            continue
        if not found:
            unnoticed += 1
            assert everything(spoiled) == expected, f"byte {place}"
    assert unnoticed < 150  # most of so small a file is empty pages


@pytest.mark.parametrize("keep", [0, 10, 100, 5000, 0.5, 0.99])
def test_a_truncated_file_is_found(log, keep):
    path, _, _ = log
    data = path.read_bytes()
    path.write_bytes(data[: keep if isinstance(keep, int) else int(len(data) * keep)])
    found = None
    with contextlib.suppress(ExperienceLogError):  # no longer a log at all
        found = verify(path)
    assert found != []


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(ExperienceLogError, match="there is no experience log"):
        verify(tmp_path / "none.db")
    sqlite3.connect(tmp_path / "other.db").executescript("CREATE TABLE t (x)").connection.close()
    with pytest.raises(ExperienceLogError, match="not an experience log of exgrpo"):
        verify(tmp_path / "other.db")


# Prune ----------------------------------------------------------------------------------------------------------------


def sizes(path, *tables):
    connection = sqlite3.connect(path)
    found = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    connection.close()
    return found


def test_prune_keeps_what_checkpoints_and_the_end_need(log):
    path, positions, prints = log
    with LogReader(path) as reader:
        assert set(reader.branches) == {1, 2, 3}
    report = prune(path)
    assert report.branches == [2]
    assert report.checkpoints == ["checkpoint-7", "checkpoint-13"]
    assert report.before_step == 7
    assert report.events > 0
    assert report.trajectories > 0
    assert report.tokens > 0
    assert report.note is None
    assert report.bytes_after == path.stat().st_size < report.bytes_before
    assert fingerprints(path, positions) == prints
    assert verify(path) == []
    with LogReader(path) as reader:
        assert set(reader.branches) == {1, 3}
        for use_snapshot in (True, False):
            for position, (fingerprint, _) in zip(positions, prints[1:], strict=True):
                assert fingerprint_of(buffer_at(reader, position, use_snapshot)[0]) == fingerprint
    again = prune(path)
    assert (again.branches, again.events, again.trajectories, again.tokens) == ([], 0, 0, 0)


def test_a_branch_that_a_checkpoint_needs_is_kept(log):
    path, positions, prints = log
    with LogReader(path) as reader:
        dead = reader.ends()[1]
    write_checkpoint(path.parent, 3, dead)
    (_, before) = fingerprints(path, [dead])
    assert prune(path).branches == []
    assert fingerprints(path, [dead, *positions]) == [prints[0], before, *prints[1:]]
    assert verify(path) == []


def test_without_checkpoints_only_the_end_is_needed(log):
    path, positions, prints = log
    for folder in path.parent.glob("checkpoint-*"):
        shutil.rmtree(folder)
    kept = prune(path, without_checkpoints=True).tokens
    assert kept > 0
    assert fingerprints(path) == prints[:1]
    assert verify(path) == []
    with LogReader(path) as reader:
        buffer, state = buffer_at(reader, positions[1])  # the events are there, tokens of what left later are not
        assert state == prints[2][1]
        with pytest.raises(ExperienceLogError, match=r"were pruned\..*resume from a later checkpoint"):
            fingerprint_of(buffer)


def test_a_pruned_position_says_so(log):
    path, _, _ = log
    with LogReader(path) as reader:
        dead = reader.ends()[1]
    prune(path)
    with LogReader(path) as reader, pytest.raises(ExperienceLogError, match="was pruned"):
        reader.lineage(dead)


@pytest.mark.parametrize("step", [0, 1, 5, 9, 12, 100])
def test_prune_keeps_all_that_was_stored_since_a_step(log, step):
    path, positions, prints = log
    with LogReader(path) as reader:
        branch = reader.head
        commits = [
            (s, seq) for s, seq in reader.rows("SELECT step, seq FROM state WHERE branch = ? ORDER BY seq", (branch,))
        ]
    places = [replace(positions[1], seq=seq) for s, seq in commits if s >= step]
    expected = fingerprints(path, [*positions, *places])
    prune(path, before_step=step)
    assert fingerprints(path, [*positions, *places]) == expected
    assert expected[0] == prints[0]
    assert verify(path) == []


def test_what_a_generation_under_way_replays_is_kept(tmp_path):
    """Also where it left in that same generation: a checkpoint in the middle of it needs it."""
    path = tmp_path / "experience.db"
    run = Run(path, seed=3)
    run.generations(12)
    run.close()
    connection = sqlite3.connect(path)
    sql = (
        "SELECT r.trajectory, r.generation FROM replay r JOIN eviction e ON e.trajectory = r.trajectory "
        "AND e.generation = r.generation ORDER BY r.seq DESC LIMIT 1"
    )
    ((number, generation),) = connection.execute(sql)
    ((seq,),) = connection.execute("SELECT seq FROM state WHERE generation = ?", (generation + 1,))
    connection.close()
    with LogReader(path) as reader:
        write_checkpoint(tmp_path, generation + 1, replace(reader.position(), seq=seq))
    prune(path)
    with LogReader(path) as reader:
        assert len(reader.trajectory(number))


def test_a_dry_run_changes_nothing(log):
    path, _, _ = log
    before = path.read_bytes()
    planned = prune(path, dry_run=True)
    assert path.read_bytes() == before
    done = prune(path)
    assert replace(planned, bytes_after=0) == replace(done, bytes_after=0)


def test_prune_is_refused_while_a_trainer_writes(log):
    path, _, _ = log
    before = sizes(path, *schema.EVENTS, "tokens")
    run = Run(path)
    with pytest.raises(LogInUseError, match="being written by process"):
        prune(path)
    run.close()
    assert sizes(path, *schema.EVENTS, "tokens") == before


@pytest.mark.parametrize("table", ["eviction", "observation", "replay", "question", "branch"])
def test_a_damaged_log_is_not_pruned(log, table):
    path, _, _ = log
    key = "id" if table in schema.FACTS else "seq"
    change(path, f"UPDATE {table} SET crc = crc + 1 WHERE {key} = (SELECT min({key}) FROM {table})")
    before = sizes(path, *schema.EVENTS, "tokens", "branch")
    with pytest.raises(DamagedLogError, match=f"of {table} is not what was written"):
        prune(path)
    assert sizes(path, *schema.EVENTS, "tokens", "branch") == before


def test_a_reader_at_work_is_not_disturbed(log, monkeypatch):
    monkeypatch.setattr(log_upkeep, "PATIENCE_MS", 10)
    path, positions, prints = log
    with LogReader(path) as reader:
        reader.connection.execute("BEGIN")
        before = fingerprint_of(buffer_at(reader, reader.ends()[1])[0])
        report = prune(path)
        assert "another process reads the log" in report.note
        assert fingerprint_of(buffer_at(reader, reader.ends()[1])[0]) == before  # of a branch that went meanwhile
    assert fingerprints(path, positions) == prints
    assert verify(path) == []
    assert prune(path).note is None
    assert path.stat().st_size < report.bytes_before


def test_without_space_to_shrink_it_what_went_is_gone_all_the_same(log, monkeypatch):
    """VACUUM fails here within a transaction, as it would on a full disk."""
    path, positions, prints = log
    real = log_upkeep._give_back

    def without_space(connection, report):
        connection.execute("BEGIN IMMEDIATE")
        real(connection, report)
        connection.execute("ROLLBACK")

    monkeypatch.setattr(log_upkeep, "_give_back", without_space)
    report = prune(path)
    assert "could not be made smaller" in report.note
    assert fingerprints(path, positions) == prints
    assert verify(path) == []


def test_a_run_goes_on_after_prune_as_without(log, tmp_path):
    path, positions, _ = log
    shutil.copytree(path.parent, tmp_path / "other")
    other = tmp_path / "other" / path.name
    prune(path)
    ends = []
    for one in (path, other):
        run = Run(one, seed=1, position=positions[1])
        run.generations(4)
        ends.append(fingerprint_of(run.buffer))
        run.close()
    assert ends[0] == ends[1]
    assert verify(path) == []
    assert prune(path).note is None
    assert verify(path) == []


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
def test_prune_never_breaks_what_remains(tmp_path_factory, data):
    """Any tree of branches, any checkpoints, any step."""
    folder = tmp_path_factory.mktemp("tree")
    path, positions, checkpoints = folder / "experience.db", [], []
    for seed in range(data.draw(st.integers(1, 4))):
        parent = data.draw(st.sampled_from([None, *positions]))
        run = Run(path, Dataset(6), seed=seed, position=parent, capacity=12)
        for _ in range(data.draw(st.integers(1, 4))):
            positions.append(run.generation(snapshot=data.draw(st.booleans())))
            if data.draw(st.integers(0, 3)) == 0:
                write_checkpoint(folder, len(checkpoints) + 1, positions[-1])
                checkpoints.append(positions[-1])
        run.close()
    expected = fingerprints(path, checkpoints)
    prune(path, before_step=data.draw(st.sampled_from([None, 0, 2, 5])))
    assert fingerprints(path, checkpoints) == expected
    assert verify(path) == []


# Fork -----------------------------------------------------------------------------------------------------------------


def test_fork_goes_back_and_deletes_nothing(log):
    path, positions, prints = log
    before = sizes(path, "tokens", "trajectory", "observation", "question")
    forked = fork(path, 7)
    assert (forked.step, forked.seq, forked.parent) == (7, positions[0].seq, positions[0].branch)
    with LogReader(path) as reader:
        assert reader.head == forked.branch
        assert "forked at step 7" in reader.branches[forked.branch].note
        for use_snapshot in (True, False):
            buffer, state = buffer_at(reader, use_snapshot=use_snapshot)
            assert (fingerprint_of(buffer), state) == prints[1]
        assert len(buffer) == forked.trajectories
    assert sizes(path, "tokens", "trajectory", "observation", "question") == before
    assert fingerprints(path, positions)[1:] == prints[1:]
    assert verify(path) == []


def test_fork_before_everything_is_refused(log):
    path, _, _ = log
    with pytest.raises(ExperienceLogError, match="nothing at or before step -1"):
        fork(path, -1)
    assert verify(path) == []


# Merge and import -----------------------------------------------------------------------------------------------------


def held(path):
    """What a log holds: question key, token ids, log-probs, rewards, steps before the end."""
    with LogReader(path) as reader:
        source = source_of(reader)
        return [
            (
                source.questions[t.trajectory.question].record.key, t.trajectory.completion_ids.tolist(),
                t.trajectory.behaviour_logps.tobytes(), t.trajectory.rewards.tobytes(),
                t.trajectory.step - source.end, t.trajectory.finish_reason,
            )
            for t in source.trajectories
        ]  # fmt: skip


def accuracies(path):
    with LogReader(path) as reader:
        source = source_of(reader)
        return {q.record.key: (q.successes, q.scorable, q.step - source.end) for q in source.questions if q.scorable}


def made(path, **kwargs):
    generations = kwargs.pop("generations", 8)
    run = Run(path, **kwargs)
    run.generations(generations)
    run.close()
    return path


def test_merge_takes_over_each_in_turn(tmp_path):
    one = made(tmp_path / "one.db", dataset=Dataset(8), seed=1, retirement="never")
    two = made(tmp_path / "two.db", dataset=Dataset(8, first=4), seed=2, retirement="never")
    report = merge([one, two], tmp_path / "both.db")
    assert held(tmp_path / "both.db") == held(one) + held(two)
    assert accuracies(tmp_path / "both.db") == accuracies(one) | accuracies(two)
    assert [str(inherited) for _, inherited in report.sources] == [
        f"{len(held(path))} trajectories of {len({row[0] for row in held(path)})} questions taken over"
        for path in (one, two)
    ]
    assert report.trajectories == len(held(one) + held(two))
    assert report.questions == len({row[0] for row in held(one) + held(two)})
    assert verify(tmp_path / "both.db") == []
    assert not list(tmp_path.glob(".both*"))
    with LogReader(tmp_path / "both.db") as reader:
        assert list(reader.branches) == [1]
        assert reader.origins()[reader.branches[1].origin] == ORIGIN
        assert reader.tokenizer(ORIGIN.tokenizer) == TOKENIZER
    run = Run(tmp_path / "both.db", Dataset(12), seed=5, position=LogReader(tmp_path / "both.db").position())
    run.buffer.shrink()
    run.generations(2)
    run.close()


def test_merging_a_log_with_itself_is_refused(tmp_path):
    one = made(tmp_path / "one.db")
    shutil.copy(one, tmp_path / "copy.db")
    with pytest.raises(ConfigurationError, match=r"copy\.db holds the same as .*one\.db: name each log once"):
        merge([one, tmp_path / "copy.db"], tmp_path / "both.db")
    assert not (tmp_path / "both.db").exists()


def retired_of(path):
    with LogReader(path) as reader:
        return {question.record.key for question in source_of(reader).questions if question.retired}


def test_what_had_retired_stays_so_where_nothing_else_is_known(tmp_path):
    """An export that is imported, and a log that is merged, lose nothing; a later source that holds something counts."""
    one = made(tmp_path / "one.db", seed=1)
    two = made(tmp_path / "two.db", dataset=Dataset(12), seed=2, retirement="never")
    import_folder(exported(one, tmp_path / "export"), tmp_path / "imported.db")
    assert retired_of(tmp_path / "imported.db") == retired_of(one) != set()
    before = held(two)
    report = merge([one, two], tmp_path / "both.db").sources[0][1]
    known = set(accuracies(two))
    assert held(tmp_path / "both.db") == held(one) + before
    assert retired_of(tmp_path / "both.db") == retired_of(one) - known
    assert retired_of(one) & known
    assert (report.retired, report.fresh_again) == (len(retired_of(one) - known), len(retired_of(one) & known))
    assert verify(tmp_path / "both.db") == []


def test_a_merge_that_was_killed_leaves_nothing_to_the_next(tmp_path, monkeypatch):
    one = made(tmp_path / "one.db")
    killed = Run(tmp_path / ".both.db.new")
    killed.generation()
    with pytest.raises(LogInUseError, match=r"\.both\.db\.new is being written by process"):
        merge([one], tmp_path / "both.db")
    killed.log._lock.release()  # as the system does
    merge([one], tmp_path / "both.db")
    assert held(tmp_path / "both.db") == held(one)
    assert not list(tmp_path.glob(".both*"))


def test_merge_commits_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("exgrpo.archive.merge.TOKENS_PER_COMMIT", 20)
    monkeypatch.setattr(sys.modules["exgrpo.archive.transfer"], "CHUNK", 3)
    one = made(tmp_path / "one.db")
    merge([one], tmp_path / "both.db")
    assert sizes(tmp_path / "both.db", "state")[0] > 2
    assert held(tmp_path / "both.db") == held(one)
    assert verify(tmp_path / "both.db") == []


def test_merge_reports_what_does_not_match(tmp_path):
    one = made(tmp_path / "one.db")
    two = made(tmp_path / "two.db", origin=replace(ORIGIN, tokenizer="tok-2", architecture="arch-2", model="other"))
    three = made(tmp_path / "three.db", origin=replace(ORIGIN, rewards="other"), seed=9)
    with sqlite3.connect(tmp_path / "one.db") as connection:  # the newest
        row = list(connection.execute(schema.SELECT_FACTS["branch"]).fetchone())[:-1]
        row[8] = "2999-01-01T00:00:00+00:00"
        sql = "UPDATE branch SET started = ?, crc = ?"
        connection.execute(sql, (row[8], schema.checksum("branch", tuple(row))))
    connection.close()
    report = merge([one, two, three], tmp_path / "all.db")
    assert dict(report.sources[1][1].left_out) == {"made with another tokenizer": len(held(two))}
    assert dict(report.sources[2][1].left_out) == {"scored by other reward functions": len(held(three))}
    assert len(report.warnings) == 1
    assert "another model (other)" in report.warnings[0]
    assert held(tmp_path / "all.db") == held(one)


def test_merge_into_an_existing_file_is_refused(tmp_path):
    one = made(tmp_path / "one.db")
    before = one.read_bytes()
    with pytest.raises(ExperienceLogError, match="exists already"):
        merge([one, one], one)
    assert one.read_bytes() == before


def exported(log, folder):
    with LogReader(log) as reader:
        export(reader, folder)
    return folder


def test_import_into_a_new_log(tmp_path):
    one = made(tmp_path / "one.db")
    folder = exported(one, tmp_path / "export")
    report = import_folder(folder, tmp_path / "new.db")
    assert held(tmp_path / "new.db") == held(one)
    assert accuracies(tmp_path / "new.db") == accuracies(one)
    assert report.sources[0][0] == str(folder)
    with LogReader(tmp_path / "new.db") as reader:
        assert reader.tokenizer(ORIGIN.tokenizer) == TOKENIZER
    assert verify(tmp_path / "new.db") == []


def test_import_into_an_existing_log_continues_its_newest_branch(tmp_path):
    one = made(tmp_path / "one.db", dataset=Dataset(8), seed=1, retirement="never")
    two = made(tmp_path / "two.db", dataset=Dataset(8, first=4), seed=2, retirement="never")
    folder, before = exported(one, tmp_path / "export"), held(two)
    with LogReader(two) as reader:
        end = reader.position()
        state = buffer_at(reader)[1]
    report = import_folder(folder, two)
    assert held(two) == before + held(one)
    assert report.trajectories == len(before) + len(held(one))
    assert verify(two) == []
    with LogReader(two) as reader:
        assert reader.branches[report.branch].parent == end.branch
        assert reader.branches[report.branch].fork_seq == end.seq
        assert "imported" in reader.branches[report.branch].note
        after = buffer_at(reader)[1]
        assert replace(after, deferred=()) == replace(state, deferred=())
        assert after.deferred == state.deferred
    again = import_folder(folder, two)
    assert again.sources[0][1].taken == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer": "tok-2"}, "made with another tokenizer"),
        ({"template": "tpl-2"}, "made with another chat template"),
        ({"rewards": "others"}, "scored by other reward functions"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_import_leaves_out_what_does_not_match(tmp_path, change, reason):
    one = made(tmp_path / "one.db", dataset=Dataset(12, first=100), origin=replace(ORIGIN, **change))
    two = made(tmp_path / "two.db")
    before = held(two)
    report = import_folder(exported(one, tmp_path / "export"), two)
    assert dict(report.sources[0][1].left_out) == {reason: len(held(one))}
    assert held(two) == before
    assert verify(two) == []


def test_import_of_another_model_s_experience_warns(tmp_path):
    one = made(tmp_path / "one.db", origin=replace(ORIGIN, architecture="arch-2", model="big"), seed=1)
    report = import_folder(exported(one, tmp_path / "export"), made(tmp_path / "two.db", seed=2, retirement="never"))
    assert report.sources[0][1].taken > 0
    assert "another model (big)" in report.warnings[0]


def test_an_import_that_fails_changes_nothing(tmp_path):
    one, two = made(tmp_path / "one.db", seed=1), made(tmp_path / "two.db", seed=2)
    folder, before = exported(one, tmp_path / "export"), sizes(two, *schema.EVENTS, "branch")
    (part,) = folder.glob("trajectories/*")
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(ExperienceLogError, match=r"part-00000\.parquet"):
        import_folder(folder, two)
    assert sizes(two, *schema.EVENTS, "branch") == before
    with pytest.raises(ExperienceLogError, match=r"part-00000\.parquet"):
        import_folder(folder, tmp_path / "new.db")
    assert not list(tmp_path.glob("*new.db*"))


def test_a_spoiled_tokenizer_is_named_and_a_missing_one_does_not_matter(tmp_path):
    folder = exported(made(tmp_path / "one.db"), tmp_path / "export")
    (path,) = (folder / "tokenizers").iterdir()
    path.write_text("{")
    for into in ("new.db", "one.db"):
        with pytest.raises(ExperienceLogError, match=rf"{path.name} cannot be read"):
            import_folder(folder, tmp_path / into)
    path.unlink()
    assert import_folder(folder, tmp_path / "new.db").trajectories > 0


def test_everything_is_offered_in_one_place():
    assert all(hasattr(log_upkeep, name) for name in log_upkeep.__all__)


def test_prune_refuses_where_the_checkpoints_are_not_found(tmp_path):
    path, _ = eventful(tmp_path)
    away = tmp_path / "elsewhere"
    away.mkdir()
    for checkpoint in tmp_path.glob("checkpoint-*"):
        checkpoint.rename(away / checkpoint.name)
    with pytest.raises(ExperienceLogError, match="2 checkpoints were saved with this log, but none lies beside it"):
        prune(path)
    assert len(prune(path, dry_run=True, also=[away]).checkpoints) == 2
    assert prune(path, dry_run=True, without_checkpoints=True).checkpoints == []


def test_prune_finds_the_checkpoints_beside_a_link_to_the_log(tmp_path):
    path, _ = eventful(tmp_path / "run")
    (tmp_path / "disk").mkdir()
    real = path.rename(tmp_path / "disk" / "log.db")
    path.symlink_to(real)
    assert len(prune(path, dry_run=True).checkpoints) == 2
