"""Killed at any instant, on a full disk, with a damaged file: a run goes on bit-equal, or says why it does not.

The short form of `benchmarks/crash.py`, whose module does the work: real training runs in forked processes.
"""

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
import torch

if not sys.platform.startswith("linux"):
    pytest.skip("processes are killed by timers of Linux", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import crash
import crash_run

from exgrpo.experience.events import Began, Measured, Planned
from exgrpo.log import LogReader, LogWriter
from exgrpo.log.filesystem import ROLLBACK, UNLOCKED, VARIABLE
from exgrpo.trl import ExGRPOTrainer

pytestmark = pytest.mark.slow

FULL, BLOCK, EXACT = "exgrpo", "rescue, mid block", "exgrpo, exact entropies, full buffer"
AGES, BEFORE = "exgrpo, age limit", "exgrpo, checkpoints before admission"


@pytest.fixture(scope="module")
def root():
    """A folder that others than its owner can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def campaigns(root):
    return crash.Campaign(root / "sound", seed=11, configs=(FULL, BLOCK))


@pytest.fixture
def campaign(campaigns):
    """With nothing counted yet."""
    campaigns.sabotage = None
    campaigns.rows, campaigns.problems, campaigns.skipped, campaigns.litter = {}, [], {}, 0
    return campaigns


def expect_sound(campaign, *kinds):
    assert not campaign.problems
    assert campaign.is_sound
    for kind in kinds:
        row = campaign.rows[kind]
        assert row.faults
        assert row.equal + row.refused >= 1


@pytest.mark.parametrize("kind", crash_run.KINDS)
def test_a_killed_run_continues_bit_equal(campaign, kind):
    campaign.kill(1, (kind,))
    expect_sound(campaign, kind)
    assert campaign.rows[kind].equal == campaign.rows[kind].faults


@pytest.mark.parametrize("kind", ["commit", "checkpoint commit", "any instant", "opening"])
@pytest.mark.parametrize("journal", [ROLLBACK, UNLOCKED])
def test_a_run_with_a_rollback_journal_continues_bit_equal(campaign, kind, journal, monkeypatch):
    monkeypatch.setenv(VARIABLE, journal)
    campaign.kill(1, (kind,))
    expect_sound(campaign, kind)
    assert campaign.rows[kind].equal == campaign.rows[kind].faults


def test_a_run_that_is_killed_again_and_again(campaign):
    campaign.case("commit", BLOCK, 3)
    expect_sound(campaign)


def test_a_run_that_ended_is_not_trained_further(root):
    config = "exgrpo, mid block"
    campaign = crash.Campaign(root / "ended", configs=(config,))
    campaign.case("write back", config, 1)
    assert not campaign.problems


# Damage -----------------------------------------------------------------------------------------------------------------

DAMAGES = {
    "byte flipped in .db": (True, lambda run, rng: crash.flip(run.log, rng)),
    "byte flipped in -wal": (False, lambda run, rng: crash.flip(run.log.with_name("experience.db-wal"), rng, after=0.5)),
    "main file truncated": (True, lambda run, rng: crash.cut(run.log, rng)),
    "-shm deleted": (False, lambda run, rng: crash.deleted(run.log.with_name("experience.db-shm"))),
    "main file deleted": (False, lambda run, rng: crash.deleted(run.log)),
    "snapshots deleted": (False, lambda run, rng: crash.without_snapshots(run)),
    "exgrpo.json flipped": (False, lambda run, rng: crash.flip(crash.last(run) / "exgrpo.json", rng)),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_run_is_refused_or_continues_bit_equal(campaign, kind):
    in_main, change = DAMAGES[kind]
    campaign.damage(kind, campaign.base(FULL, in_main), lambda run: change(run, campaign.rng))
    expect_sound(campaign, kind)
    if kind in ("-shm deleted", "snapshots deleted"):
        assert campaign.rows[kind].equal == 1
    if kind == "main file deleted":  # of one that was cut nothing that counts may be missing
        assert campaign.rows[kind].refused == 1


def test_a_log_without_its_wal_is_refused(campaign):
    wal = "experience.db-wal"
    campaign.damage(wal, campaign.base(FULL, False), lambda run: crash.deleted(run.log.with_name(wal)))
    expect_sound(campaign, wal)
    assert campaign.rows[wal].refused == 1


def test_what_was_beside_a_deleted_log_does_not_come_back(campaign):
    campaign.anew(campaign.base(FULL, False))
    expect_sound(campaign, "main file deleted, begun anew")


# Disks, permissions, others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["few pages", "short files"])
def test_a_full_disk_ends_training_and_loses_nothing(campaign, way):
    limit = {"few pages": crash.few_pages, "short files": crash.short_files}[way]
    campaign.no_space(way, FULL, limit(campaign.rng))
    expect_sound(campaign, way)
    assert campaign.rows[way].said


def full_from(nth):
    """There is no room for the nth ordinary commit, nor for any after it."""

    def arrange():
        write, count = LogWriter._write, [0]

        def writing(log, commit):
            count[0] += not commit.durable
            if count[0] >= nth:
                (pages,) = log._connection.execute("PRAGMA page_count").fetchone()
                log._connection.execute(f"PRAGMA max_page_count = {pages}")
                log._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                with log._transaction("committing"):
                    log._connection.execute("INSERT INTO meta VALUES ('much', zeroblob(1000000))")
            write(log, commit)

        LogWriter._write = writing

    return arrange


def test_a_commit_that_fails_while_training_goes_on_ends_training_at_the_next(campaign):
    with campaign.run(FULL) as run:
        outcome = run.attempt(arrange=campaign.arranged(full_from(7)))
        assert (outcome.end, outcome.error, outcome.lost) == ("refused", "ExperienceLogError", 0)
        assert f"{run.log}: no space left while committing" in outcome.message
        seen = len(run.generations())
        assert 2 <= seen < crash_run.STEPS
        campaign.row("full").faults += 1
        again = run.attempt(arrange=campaign.arranged())
        campaign.judge(run, campaign.references[FULL], again, ["full"], "after room was made", refusable=False)
    expect_sound(campaign, "full")


@pytest.mark.parametrize("whole", [False, True])
def test_a_disk_that_is_full_for_real(campaign, whole):
    campaign.small_disk("small disk", FULL, whole)
    if campaign.skipped:
        pytest.skip(campaign.skipped["small disk"])
    expect_sound(campaign, "small disk")


def test_what_may_not_be_written_is_refused(campaign):
    campaign.permissions(FULL)
    expect_sound(campaign, *campaign.rows)
    refused = {kind: row.refused for kind, row in campaign.rows.items()}
    assert refused.pop("folder read-only") in (0, 1)  # SQLite can go on in the files that are there
    assert set(refused.values()) == {1}


def test_a_second_trainer_is_refused_until_the_first_is_dead(campaign):
    campaign.two_trainers(FULL)
    expect_sound(campaign, "second trainer")
    assert campaign.rows["second trainer"].refused == campaign.rows["second trainer"].equal == 1


# Can any of this fail? --------------------------------------------------------------------------------------------------


def forget_a_commit():
    """The seventh transaction is undone, and nobody is told."""
    inner, count = LogWriter._transaction, [0]

    @contextlib.contextmanager
    def transaction(log, doing, durable=False):
        count[0] += 1
        if count[0] != 7:
            with inner(log, doing, durable):
                yield
        else:
            log._connection.execute("BEGIN")
            yield
            log._connection.execute("ROLLBACK")

    LogWriter._transaction = transaction


def do_not_hear_measurements():
    """A buffer is rebuilt without entropies that were measured again."""
    rebuild = sys.modules["exgrpo.log.rebuild"]
    inner = rebuild.apply

    def apply(buffer, event):
        if not isinstance(event, Measured):
            inner(buffer, event)

    rebuild.apply = apply


def draw_once_more():
    """A random number too many, before the first generation of a run that is resumed."""
    begin, plan, resumed = LogWriter.begin, ExGRPOTrainer._plan, []

    def beginning(log, origin, parent=None, *args, **kwargs):
        resumed.extend([True] * (parent is not None))
        return begin(log, origin, parent, *args, **kwargs)

    def planning(*args):
        if resumed:
            torch.rand(1)
        return plan(*args)

    LogWriter.begin, ExGRPOTrainer._plan = beginning, planning


def forget_the_generation():
    """A log that is begun does not know which generation it is in."""
    LogReader.latest_generation = lambda reader, lineage: None


def notice_generations_late():
    """What leaves because of its age is told before the generation in which it does."""
    inner = LogWriter.__call__

    def call(log, event):
        if isinstance(event, Planned):
            inner(log, Began(event.generation, event.step))
        if not isinstance(event, Began):
            inner(log, event)

    LogWriter.__call__ = call


@pytest.mark.parametrize(("config", "sabotage"), [(BEFORE, forget_the_generation), (AGES, notice_generations_late)])
def test_a_log_that_misspeaks_of_when_things_happened_is_reported(root, config, sabotage):
    campaign = crash.Campaign(root / sabotage.__name__, configs=(config,))
    campaign.damage("nothing", campaign.base(config, False), lambda run: "nothing")
    expect_sound(campaign, "nothing")
    campaign.sabotage = sabotage
    campaign.damage("nothing", campaign.base(config, False), lambda run: "nothing")
    assert campaign.rows["nothing"].different == 1
    assert "view evictions" in campaign.problems[-1]


def test_a_lost_commit_is_reported(campaign):
    """The run itself misses it, at its next commit."""
    campaign.sabotage = forget_a_commit
    with campaign.run(FULL) as run:
        outcome = run.attempt(crash_run.Kill("commit", "COMMIT", nth=12), campaign.arranged())
    assert (outcome.end, outcome.lost > 0) == ("refused", True)


def test_a_buffer_that_is_rebuilt_wrongly_is_reported(root):
    campaign = crash.Campaign(root / "deaf", configs=(EXACT,), sabotage=do_not_hear_measurements)
    campaign.damage("snapshots deleted", campaign.base(EXACT, False), crash.without_snapshots)
    assert campaign.rows["snapshots deleted"].different == 1
    assert not campaign.is_sound


def test_other_random_numbers_are_reported(campaign):
    like = campaign.base(FULL, False)
    campaign.sabotage = draw_once_more
    campaign.damage("nothing", like, lambda run: "nothing")
    assert campaign.rows["nothing"].different == 1
