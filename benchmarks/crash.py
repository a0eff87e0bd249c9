"""Kills real training runs at chosen instants, damages what they leave, and looks whether anything was lost or differs.

    python benchmarks/crash.py                       # 240 kills, 300 damaged files, full disks, permissions
    python benchmarks/crash.py --kills 40 --seed 3
    python benchmarks/crash.py --quick               # each kind and each fault once

After each kill: is all in the file that a commit had promised? After the last one the run is resumed to its end, and must
be bit-equal to one that was never interrupted, or refused with words that help. Linux only; as root also with a full disk
that is a real one.
"""

import argparse
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from crash_run import CONFIGS, KINDS, LOG, STEPS, Kill, LogWriter, Outcome, Reference, Run, after, journal, reference
from machine import save

from exgrpo.archive.verify import verify
from exgrpo.log.filesystem import JOURNALS, VARIABLE, WAL
from exgrpo.trl import last_checkpoint

NOBODY = 65534
ADVICE = re.compile(
    r"\b(Restore|[Rr]esume from|Install|Wait for|Free some|[Cc]heck (the|their)|[Ss]et |Start (from|with)|Put the|move it)"
)
PLACES = (
    "after the commit", "before exgrpo.json", "before exgrpo.json is renamed", "after exgrpo.json",
    "before trainer_state.json",
)  # fmt: skip
SHARES = {
    "any instant": 5, "commit": 6, "checkpoint commit": 3, "write back": 1, "commit to state": 3,
    "in the save": 3, "torn file": 4, "written over": 2, "rotation": 2, "creation": 2, "opening": 3,
}  # fmt: skip
"""How often each kind is drawn, of 34."""


@dataclass
class Row:
    """What became of the runs of a kind.

    Args:
        faults: kills, or damages.
        equal: runs that were bit-equal in the end.
        lost: rows that were promised and are gone.
        refused: runs that were refused, with words that say what to do.
        unclear: runs that were refused without such words.
        different: runs that ended otherwise than the uninterrupted one.
        failed: runs that ended with another error than one of ours, or not at all.
    """

    faults: int = 0
    equal: int = 0
    lost: int = 0
    refused: int = 0
    unclear: int = 0
    different: int = 0
    failed: int = 0
    said: Counter = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "said": dict(self.said.most_common())}


class Campaign:
    """Kinds of kills and faults, and what became of them.

    Args:
        root: a folder for everything.
        seed: of all draws.
        configs: of the runs.
        sabotage: done in each child before it trains; a campaign that can fail must report it.
        keep: whether the folders of problems stay.
    """

    def __init__(
        self,
        root: Path,
        seed: int = 0,
        configs: tuple[str, ...] = tuple(CONFIGS),
        sabotage: Callable[[], None] | None = None,
        keep: bool = False,
    ):
        self.root, self.seed, self.sabotage, self.keep = root, seed, sabotage, keep
        self.rng = random.Random(seed)
        self.rows: dict[str, Row] = {}
        self.problems: list[str] = []
        self.skipped: dict[str, str] = {}
        self.litter = 0
        self.stops = False
        self.references = {config: reference(config, root) for config in configs}
        self._number = 0
        self._bases: dict[tuple[str, bool], Run] = {}

    def row(self, kind: str) -> Row:
        return self.rows.setdefault(kind, Row())

    @contextlib.contextmanager
    def run(self, config: str, like: Run | None = None, **options: Any) -> Iterator[Run]:
        """A fresh run, or a copy of one."""
        self._number += 1
        place = self.root / str(self._number)
        if like is not None:
            yield like.copy(place / "run", place / "about")
        else:
            yield Run(place / "run", config, place / "about", **options)
        if not self.keep:
            shutil.rmtree(place, ignore_errors=True)

    def arranged(self, arrange: Callable[[], None] | None = None) -> Callable[[], None]:
        def both() -> None:
            if self.sabotage is not None:
                self.sabotage()
            if arrange is not None:
                arrange()

        return both

    def problem(self, kind: str, config: str, what: str, message: str = "") -> None:
        self.problems.append(f"[{kind}; {config}] {what}" + (f"\n    {message}" if message else ""))
        print("PROBLEM", self.problems[-1], flush=True)

    # Kills ------------------------------------------------------------------------------------------------------

    def draw(self, kind: str, of: Reference) -> Kill:
        rng, measures = self.rng, of.measures
        commits, checkpoints = int(measures["COMMIT"] + measures["COMMIT of a checkpoint"]), int(measures["saves"])
        kill = Kill(kind, nth=rng.randint(1, checkpoints), part=rng.choice([0.0, rng.random(), rng.random(), 1.0]))
        if kind == "any instant":
            return replace(kill, seconds=rng.uniform(0.0, of.seconds))
        if kind in ("commit", "checkpoint commit", "write back"):
            place, times = {
                "commit": rng.choice(
                    [("COMMIT", commits), ("BEGIN", commits), ("INSERT INTO", int(measures["INSERT"]))]
                ),
                "checkpoint commit": ("COMMIT of a checkpoint", checkpoints),
                "write back": ("PRAGMA wal_checkpoint", 1),
            }[kind]
            microseconds = rng.uniform(0.0, 300.0 if journal() == WAL else 3000.0)
            write_back = rng.choice([None, None, 1, 8])
            return replace(
                kill, place=place, nth=rng.randint(1, times), seconds=microseconds * 1e-6, write_back=write_back
            )
        if kind == "commit to state":
            return replace(kill, place=rng.choice(PLACES))
        if kind == "in the save":
            return replace(kill, seconds=rng.uniform(0.0, measures["save"]))
        if kind == "torn file":
            return replace(kill, nth=rng.randint(1, int(measures["files"])))
        if kind == "written over":
            return replace(kill, nth=rng.randint(1, int(measures["files"]) // checkpoints))
        if kind == "rotation":
            return replace(kill, nth=rng.randint(1, max(1, int(measures["rotations"]))))
        if kind == "creation":
            place = rng.choice(["instant", "instant", "before the rename", "after the rename"])
            return replace(kill, place=place, seconds=rng.uniform(0.0, measures["create"]))
        assert kind == "opening"
        return replace(kill, seconds=rng.uniform(0.0, 1.2 * measures["start"]))

    def kill(self, count: int, kinds: tuple[str, ...] = tuple(KINDS)) -> None:
        """Runs of all kinds and configurations in turn, until so many were killed."""
        if count <= len(kinds):
            for kind in kinds[:count]:
                while not self.row(kind).faults:
                    self.case(kind, self.rng.choice(list(self.references)), 1)
            return
        deck: list[str] = []
        while sum(self.row(kind).faults for kind in kinds) < count and not self.stops:
            if not deck:
                deck = [kind for kind in kinds for _ in range(SHARES[kind])]
                self.rng.shuffle(deck)
            self.case(deck.pop(), self.rng.choice(list(self.references)))

    def case(self, kind: str, config: str, kills: int | None = None) -> None:
        """One run, killed once or more, then resumed to its end."""
        of = self.references[config]
        plan = [self.draw(kind, of) for _ in range(kills or self.rng.choice([1, 1, 2, 3]))]
        resume: str | None = ""
        like = None
        if kind == "written over":  # from the checkpoint before the one that is written over
            like = Run(of.folder, config, self.root / "reference of" / config)
        with self.run(config, like) as run:
            if kind == "opening":
                plan = [self.draw("commit to state", of), *plan]
                plan[0] = replace(plan[0], nth=self.rng.randint(2, int(of.measures["saves"])))
            if kind == "written over":
                shutil.rmtree(run.folder / f"checkpoint-{STEPS}")
                resume = sorted(run.folder.glob("checkpoint-*"), key=lambda p: int(p.name[11:]))[0].as_posix()
            killed: list[Kill] = []
            outcome = Outcome("killed")
            for kill in plan:
                outcome = run.attempt(kill, self.arranged(), resume)
                if outcome.end == "killed":
                    killed.append(kill)
                    self.row(kill.kind).faults += 1
                    self.row(kill.kind).lost += outcome.lost
                    if outcome.lost:
                        self.problem(kind, config, f"{outcome.lost} promised rows are lost after {kill}")
                else:
                    break
            if outcome.end == "killed":
                outcome = run.attempt(arrange=self.arranged())
            if killed or outcome.end != "finished":
                self.judge(run, of, outcome, [kill.kind for kill in killed] or [kind], str(killed), refusable=False)

    def judge(
        self,
        run: Run,
        of: Reference,
        outcome: Outcome,
        kinds: list[str],
        how: str,
        refusable: bool,
        damaged: bool = False,
    ) -> None:
        """Count how a run ended; `refusable` if it need not continue, `damaged` if bytes of the log were changed."""
        rows = [self.row(kind) for kind in kinds]
        kind, text = kinds[-1], outcome.message.replace(str(self.root), "ROOT")
        if outcome.lost and not damaged:
            rows[-1].lost += outcome.lost
            self.problem(kind, run.config, f"{outcome.lost} promised rows are lost in the end; {how}")
        self.litter += sum(1 for _ in run.log.parent.glob(f".{run.log.name}.*"))
        if outcome.end == "finished":
            names = run.difference(of, outcome, damaged)
            for row in rows:
                row.equal += not names
                row.different += bool(names)
            if names:
                self.problem(kind, run.config, f"differs in {', '.join(names)}; {how}")
        elif outcome.end == "refused" and refusable:
            named = LOG in text or "checkpoint-" in text
            for row in rows:
                row.refused += 1
                row.said[f"{outcome.error}: {_cause(text)}"] += 1
                row.unclear += not (named and ADVICE.search(text))
            if not (named and ADVICE.search(text)):
                self.problem(kind, run.config, f"refused without saying what to do; {how}", text)
        else:
            for row in rows:
                row.failed += 1
            self.problem(kind, run.config, f"{outcome.end}, {outcome.error}; {how}", text[-1500:])

    # Damaged files ----------------------------------------------------------------------------------------------

    def base(self, config: str, main: bool) -> Run:
        """A run that was killed after two thirds, with all of its log in the main file or most in the WAL."""
        if (config, main) in self._bases:
            return self._bases[config, main]
        place = self.root / "bases" / f"{config} {'main' if main else 'wal'}"
        run = Run(place / "run", config, place / "about")
        nth = min(5, int(self.references[config].measures["saves"]))
        kill = Kill("commit to state", "before exgrpo.json", nth=nth)
        outcome = run.attempt(kill, self.arranged())
        assert outcome.end == "killed", outcome.message
        assert not outcome.lost
        if main:
            with contextlib.closing(sqlite3.connect(run.log)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._bases[config, main] = run
        return run

    def damage(self, kind: str, like: Run, change: Callable[[Run], str]) -> None:
        """A copy of a killed run, changed, then resumed: refused, or bit-equal."""
        of = self.references[like.config]
        with self.run(like.config, like) as run:
            how = change(run)
            self.row(kind).faults += 1
            outcome = run.attempt(arrange=self.arranged())
            self.judge(run, of, outcome, [kind], how, refusable=True, damaged=True)
            if outcome.end == "refused" and self.rng.random() < 0.25:  # and so it stays
                again = run.attempt(arrange=self.arranged())
                if again.end == "finished" and run.difference(of, again, damaged=True):
                    self.row(kind).different += 1
                    self.problem(kind, like.config, f"refused, then different; {how}", outcome.message)
                elif again.end not in ("finished", "refused"):
                    self.row(kind).failed += 1
                    self.problem(kind, like.config, f"refused, then {again.end}; {how}", again.message[-1500:])

    def damages(
        self, flips: int, cuts: int, rest: int, configs: tuple[str, ...] = ("exgrpo", "exgrpo, mid block")
    ) -> None:
        rng = self.rng
        configs = tuple(config for config in configs if config in self.references)
        in_main = [self.base(config, True) for config in configs]
        in_wal = [self.base(config, False) for config in configs]
        for n in range(flips):
            self.damage("byte flipped in .db", in_main[n % len(in_main)], lambda run: flip(run.log, rng))
            if journal() == WAL:
                self.damage(
                    "byte flipped in -wal", in_wal[n % len(in_wal)], lambda run: flip(_beside(run, "-wal"), rng)
                )
        for n in range(cuts):
            self.damage("main file truncated", in_main[n % len(in_main)], lambda run: cut(run.log, rng))
            if n % 2 and journal() == WAL:
                self.damage("WAL truncated", in_wal[n // 2 % len(in_wal)], lambda run: cut(_beside(run, "-wal"), rng))
        for n in range(rest):
            like = in_wal[n % len(in_wal)]
            for end in ("-wal", "-shm", ".lock", ".owner"):
                self.damage(f"{end} deleted", like, lambda run, end=end: deleted(_beside(run, end)))
            self.damage("main file deleted", like, lambda run: deleted(run.log))
            self.anew(like)
            self.damage("snapshots deleted", like, without_snapshots)
            self.damage("exgrpo.json flipped", like, lambda run: flip(last(run) / "exgrpo.json", rng))
            like = self.base("exgrpo, mid block", False)
            self.damage(
                "header of a block flipped",
                like,
                lambda run: flip(last(run) / "exgrpo-rank-0.safetensors", rng, within=64),
            )

    def anew(self, like: Run) -> None:
        """The main file is deleted, what SQLite had beside it is not; the run begins anew: nothing old may come back."""
        kind = "main file deleted, begun anew"
        with self.run(like.config, like) as run:
            for checkpoint in run.folder.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
            run.reports.unlink()
            deleted(run.log)
            self.row(kind).faults += 1
            outcome = run.attempt(arrange=self.arranged())
            self.judge(run, self.references[like.config], outcome, [kind], "begun anew", refusable=True)
            if outcome.end == "finished" and (found := verify(run.log)):
                self.row(kind).different += 1
                self.problem(kind, like.config, f"verify finds {len(found)} damages", "; ".join(map(str, found[:3])))

    # Full disks -------------------------------------------------------------------------------------------------

    def full_disks(self, times: int) -> None:
        for _ in range(times):
            self.no_space("disk full: max_page_count", self.rng.choice(list(self.references)), few_pages(self.rng))
            self.no_space("disk full: RLIMIT_FSIZE", self.rng.choice(list(self.references)), short_files(self.rng))
        for kind, whole in (
            ("disk full: small tmpfs, the log's", False),
            ("disk full: small tmpfs, all of the run", True),
        ):
            for _ in range(times):
                self.small_disk(kind, self.rng.choice(list(self.references)), whole)

    def no_space(self, kind: str, config: str, arrange: Callable[[], None]) -> None:
        of = self.references[config]
        with self.run(config) as run:
            self._until_full(kind, run, arrange)
            self.judge(run, of, run.attempt(arrange=self.arranged()), [kind], "after room was made", refusable=False)

    def _until_full(self, kind: str, run: Run, arrange: Callable[[], None] | None, of_host: bool = False) -> None:
        outcome, row = run.attempt(arrange=self.arranged(arrange)), self.row(kind)
        row.faults += 1
        row.lost += outcome.lost
        if outcome.lost:
            self.problem(kind, run.config, f"{outcome.lost} promised rows are lost")
        if outcome.end == "refused":
            text = outcome.message.replace(str(run.folder), "FOLDER").replace(str(run.log.parent), "FOLDER")
            row.said[f"{outcome.error}: {_cause(text)}"] += 1
            if LOG not in text or not ADVICE.search(text):
                row.unclear += 1
                self.problem(kind, run.config, "without saying what to do", text)
        elif outcome.end == "failed" and of_host:
            row.said[f"the host's {outcome.error}"] += 1
        else:
            row.failed += 1
            self.problem(kind, run.config, f"{outcome.end} with a full disk, {outcome.error}", outcome.message[-1500:])

    def small_disk(self, kind: str, config: str, whole: bool) -> None:
        """A disk of its own, too small for the log, or for everything; then a larger one."""
        of = self.references[config]
        self._number += 1
        place = self.root / str(self._number)
        disk = place / "disk"
        disk.mkdir(parents=True)
        kilobytes = self.rng.randint(500, 1100) if whole else self.rng.randint(100, 220)
        try:
            _mount(disk, kilobytes)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipped[kind] = f"no tmpfs can be mounted here ({type(error).__name__})"
            return
        try:
            options = {} if whole else {"experience_log": str(disk / LOG)}
            run = Run(disk / "run" if whole else place / "run", config, place / "about", **options)
            self._until_full(kind, run, None, of_host=whole)
            _mount(disk, 65536, "remount,")
            self.judge(run, of, run.attempt(arrange=self.arranged()), [kind], f"{kilobytes} KiB", refusable=False)
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=False)
        shutil.rmtree(place, ignore_errors=True)

    # Permissions and other trainers -----------------------------------------------------------------------------

    def permissions(self, config: str = "exgrpo") -> None:
        """Read-only: the log, its folder; for one who is not root, to whom permissions mean nothing."""
        like = self.base(config, False)
        for kind, modes in {
            "log read-only": {LOG: 0o444},
            "log and WAL read-only": {LOG: 0o444, f"{LOG}-wal": 0o444},
            "folder read-only": {"": 0o555},
            "folder read-only, without a lock": {"": 0o555},
            "lock read-only": {f"{LOG}.lock": 0o444},
        }.items():
            with self.run(config, like) as run:
                place = run.folder.parent
                log_place = place / "log"  # of its own, so that the host can write its checkpoints
                log_place.mkdir()
                for path in run.folder.glob(f"{LOG}*"):
                    shutil.move(path, log_place / path.name)
                run.options, run.log = {"experience_log": str(log_place / LOG)}, log_place / LOG
                if "without" in kind:
                    deleted(log_place / f"{LOG}.lock")
                with _reachable(self.root, place):
                    for name, mode in modes.items():
                        os.chmod(log_place / name, mode)
                    outcome = run.attempt(arrange=self.arranged(_as_nobody))
                    self.row(kind).faults += 1
                    self.judge(run, self.references[config], outcome, [kind], "as nobody", refusable=True)
                    for name, mode in modes.items():
                        os.chmod(log_place / name, mode | 0o222)
                    outcome = run.attempt(arrange=self.arranged(_as_nobody))
                    how = "after permissions were given back"
                    self.judge(run, self.references[config], outcome, [kind], how, refusable=False)

    def two_trainers(self, config: str = "exgrpo") -> None:
        """The second is refused with the first one's process and host; a killed one holds nothing."""
        kind = "second trainer"
        with self.run(config) as first:
            second = Run(first.folder, config, first.scratch.parent / "second")
            pid = first.start(arrange=self.arranged(_stop_at_commit(self.rng.randint(5, 15))))
            os.waitpid(pid, os.WUNTRACED)
            outcome = second.attempt(arrange=self.arranged())
            self.row(kind).faults += 1
            named = str(pid) in outcome.message and socket.gethostname() in outcome.message
            if outcome.error != "LogInUseError" or not named:
                self.row(kind).failed += 1
                self.problem(kind, config, f"{outcome.end}, {outcome.error}", outcome.message[-1500:])
            else:
                self.row(kind).refused += 1
                self.row(kind).said["LogInUseError, with process and host"] += 1
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            outcome = first.attempt(arrange=self.arranged())
            self.judge(first, self.references[config], outcome, [kind], "after the first was killed", refusable=False)

    # ------------------------------------------------------------------------------------------------------------

    def table(self) -> str:
        names = ("faults", "equal", "lost", "refused", "unclear", "different", "failed")
        heads = ("kills, faults", "bit-equal", "lost rows", "refused", "unclear", "different", "failed")
        lines = [f"{'':40s}" + "".join(f"{head:>14s}" for head in heads)]
        for kind, row in self.rows.items():
            lines.append(f"{kind:40s}" + "".join(f"{getattr(row, name):14d}" for name in names))
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "journal": journal(),
            "configurations": list(self.references),
            "kills": {kind: self.rows[kind].as_dict() for kind in KINDS if kind in self.rows},
            "faults": {kind: row.as_dict() for kind, row in self.rows.items() if kind not in KINDS},
            "problems": [problem.split("\n")[0] for problem in self.problems],
            "skipped": self.skipped,
            "unfinished_files_left": self.litter,
        }

    @property
    def is_sound(self) -> bool:
        """Nothing lost, nothing silently different, nothing but our own errors."""
        return not any(row.lost or row.different or row.failed for row in self.rows.values())


def _cause(text: str) -> str:
    """A message without names and numbers, to count its kind."""
    text = re.sub(r"^\S+?(?=\.db|/checkpoint-)", "", text)
    return re.sub(r"'[^']*'|\d+|[0-9a-f]{32}|\bROOT\S*|FOLDER\S*", "#", text)[:90]


# What is done to files --------------------------------------------------------------------------------------------------


def _beside(run: Run, end: str) -> Path:
    return run.log.with_name(run.log.name + end)


def last(run: Run) -> Path:
    """The folder of the last complete checkpoint."""
    found = last_checkpoint(run.folder)
    assert found is not None
    return Path(found)


def flip(path: Path, rng: random.Random, within: int | None = None, after: float = 0.0) -> str:
    """Change one byte, with the same chance anywhere (or in the first so many; or after a part of the file)."""
    size = path.stat().st_size
    place, change = rng.randrange(int(after * size), min(size, within or size)), rng.randrange(1, 256)
    with open(path, "r+b") as file:
        file.seek(place)
        old = file.read(1)[0]
        file.seek(place)
        file.write(bytes([old ^ change]))
    return f"byte {place} of {path.name}, {size} bytes: {old} to {old ^ change}"


def cut(path: Path, rng: random.Random) -> str:
    size = path.stat().st_size
    length = rng.randrange(size)
    os.truncate(path, length)
    return f"{path.name} cut from {size} to {length} bytes"


def deleted(path: Path) -> str:
    there = path.exists()
    path.unlink(missing_ok=True)
    return f"{path.name} deleted" if there else f"there was no {path.name}"


def without_snapshots(run: Run) -> str:
    with contextlib.closing(sqlite3.connect(run.log)) as connection, connection:
        connection.execute("DELETE FROM snapshot")
    return "snapshots deleted"


# What is done in the child ----------------------------------------------------------------------------------------------


def few_pages(rng: random.Random) -> Callable[[], None]:
    """SQLite's own limit: a database of no more than so many pages."""
    more = rng.randint(1, 4)

    def limit(writer: LogWriter, *_: Any) -> None:
        pages = writer._connection.execute("PRAGMA page_count").fetchone()[0]
        writer._connection.execute(f"PRAGMA max_page_count = {pages + more}")

    return lambda: after(LogWriter, "_lock_and_read", limit)


def short_files(rng: random.Random) -> Callable[[], None]:
    """The operating system's: writes of the log beyond so many bytes fail."""
    size = rng.randint(30_000, 120_000)

    def arrange() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        write, limits = LogWriter._write, resource.getrlimit(resource.RLIMIT_FSIZE)

        def writing(log, commit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            try:
                write(log, commit)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        LogWriter._write = writing

    return arrange


def _stop_at_commit(nth: int) -> Callable[[], None]:
    """The process holds still, with the log open."""

    def arrange() -> None:
        left = [nth]

        def here(*_: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGSTOP)

        after(LogWriter, "commit", here)

    return arrange


def _as_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@contextlib.contextmanager
def _reachable(root: Path, place: Path) -> Iterator[None]:
    """A folder that belongs to nobody, and a way to it."""
    if os.getuid() != 0:
        yield
        return
    os.chmod(root, 0o755)
    for path in (place, *place.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    yield
    for path in place.rglob("*"):
        os.chown(path, 0, 0)


def _mount(disk: Path, kilobytes: int, how: str = "") -> None:
    if os.getuid() != 0:
        raise PermissionError("not root")
    command = ["mount", "-t", "tmpfs", "-o", f"{how}size={kilobytes}k", "tmpfs", str(disk)]
    subprocess.run(command, check=True, capture_output=True)


def everything(campaign: Campaign, kills: int, flips: int, cuts: int, rest: int, full: int) -> None:
    campaign.kill(kills)
    campaign.damages(flips, cuts, rest)
    campaign.full_disks(full)
    campaign.permissions()
    campaign.two_trainers()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--journal", choices=JOURNALS, default=journal(), help="that the runs' logs are kept with")
    parser.add_argument("--only-kills", action="store_true", help="no damaged files, full disks, permissions")
    parser.add_argument("--quick", action="store_true", help="each kind and each fault once; nothing is written")
    options = parser.parse_args()
    os.environ[VARIABLE] = options.journal
    torch.set_num_threads(1)
    begun = time.time()
    root = Path(tempfile.mkdtemp())
    try:
        campaign = Campaign(root, options.seed)
        signal.signal(signal.SIGINT, lambda *_: setattr(campaign, "stops", True))  # what was done by then counts
        counts = (len(KINDS), 1, 1, 1, 1) if options.quick else (options.kills, 100, 50, 5, 6)
        if options.only_kills:
            campaign.kill(counts[0])
        else:
            everything(campaign, *counts)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(campaign.table())
    for kind, row in campaign.rows.items():
        for text, count in row.said.most_common():
            print(f"{kind}: {count} x {text}")
    for kind, why in campaign.skipped.items():
        print(f"left out: {kind}: {why}")
    seconds = time.time() - begun
    total = sum(campaign.row(kind).faults for kind in KINDS)
    print(f"{total} kills, {len(campaign.problems)} problems, {seconds:.0f} s")
    if not options.quick:
        kind = "" if options.journal == WAL else f" --journal {options.journal}"
        kind += " --only-kills" * options.only_kills
        command = f"python benchmarks/crash.py --kills {options.kills} --seed {options.seed}{kind}"
        name = "crash" + "_kills" * options.only_kills + ("" if options.journal == WAL else f"_{options.journal}")
        print("saved", save(name, command, campaign.figures() | {"wall_s": round(seconds, 1)}).name)
    return 0 if campaign.is_sound else 1


if __name__ == "__main__":
    sys.exit(main())
