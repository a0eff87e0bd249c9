"""A tiny training run that can be killed at a chosen instant, started again, and compared with one that never was.

A process that has imported everything forks a child for each attempt (single-threaded, so that forking is safe). The child
trains for real, tells which rows were written, and dies where it was told to: by a POSIX timer whose signal is SIGKILL, or
on the spot. What is left is then looked at from outside. Linux only.
"""

import codecs
import contextlib
import ctypes
import dataclasses
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import transformers.modeling_utils
from tests.support import harness
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.trainer_callback import TrainerState

import exgrpo.log.connection
import exgrpo.log.writer
import exgrpo.runtime.checkpoint
import exgrpo.runtime.session
import exgrpo.trl.checkpoint
from exgrpo.archive.verify import verify
from exgrpo.errors import CheckpointError, ExperienceLogError
from exgrpo.experience.replayed import fingerprint_of
from exgrpo.log import LogReader, LogWriter, StoredTrajectories, rebuild, schema
from exgrpo.log.commits import Commit
from exgrpo.log.connection import SYNCHRONOUS
from exgrpo.log.filesystem import VARIABLE, WAL
from exgrpo.log.question_map import QuestionMap
from exgrpo.log.reader import SERIAL_MASK
from exgrpo.runtime.checkpoint import CheckpointRecord
from exgrpo.runtime.session import ExperienceSession
from exgrpo.runtime.step import ReplayStep
from exgrpo.trl import ExGRPOTrainer, last_checkpoint

for _name in ("cp437", "latin1", "utf_16", "utf_32"):  # for children that may not read Python's own files any more
    codecs.lookup(_name)
LOG = "experience.db"
STEPS, SAVE_STEPS, QUESTIONS = 12, 2, 24
NO_STEP = "no step was left"
NOT_RESTORED = ("micro step", "optimizer", "schedule", "torch rng", "numpy rng", "python rng")
"""What a run that resumes at its end need not load."""

CONFIGS: dict[str, dict[str, Any]] = {
    "exgrpo": dict(),
    "rescue": dict(preset="rescue"),
    "exgrpo, mid block": dict(num_iterations=3),
    "rescue, mid block": dict(
        preset="rescue", per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1,
        num_iterations=2,
    ),
    "exgrpo, exact entropies, full buffer": dict(
        entropy_refresh="exact", capacity=10, capacity_per_question=2, eviction="highest_entropy"
    ),
    "exgrpo, age limit": dict(max_age=2),
    "exgrpo, checkpoints before admission": dict(
        per_device_train_batch_size=16, steps_per_generation=2, gradient_accumulation_steps=1, save_steps=3, capacity=10,
        max_age=4,
    ),
}  # fmt: skip


def journal() -> str:
    """The kind that runs keep, in children too."""
    return os.environ.get(VARIABLE, WAL)


def lucky(prompts, completions, right, **kwargs):
    """Right by luck, often enough: some questions are solved, some never."""
    return [float(sum(map(ord, text)) % 4 == 0) if len(text) else 0.0 for text in completions]


def make(folder: Path, options: dict[str, Any]) -> ExGRPOTrainer:
    defaults = dict(
        save_strategy="steps", save_steps=SAVE_STEPS, max_steps=STEPS, save_total_limit=3, start_pass_at_1=0.0,
        learning_rate=1e-2, max_completion_length=5,
    )  # fmt: skip
    args = harness.config(folder, **{**defaults, **options})
    return harness.trainer(args, harness.questions(QUESTIONS), reward=lucky)


# What a run is ----------------------------------------------------------------------------------------------------------


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def facts(trainer: ExGRPOTrainer) -> dict[str, str]:
    """Everything that a run is at its end, each part as a hash or as text."""
    optimizer = trainer.optimizer is not None and [
        f"{i}/{name}".encode() + value.numpy().tobytes()
        for i, state in enumerate(trainer.optimizer.state.values())
        for name, value in state.items()
    ]
    history = [{k: v for k, v in row.items() if not _timed(k)} for row in trainer.state.log_history]
    return {
        "parameters": _digest(*(n.encode() + p.detach().numpy().tobytes() for n, p in trainer.model.named_parameters())),
        "optimizer": _digest(*(optimizer or ())),
        "schedule": json.dumps(trainer.lr_scheduler and trainer.lr_scheduler.state_dict(), default=str, sort_keys=True),
        "torch rng": _digest(torch.random.get_rng_state().numpy().tobytes()),
        "numpy rng": _digest(repr([part.tolist() if hasattr(part, "tolist") else part for part in np.random.get_state()]).encode()),  # noqa: E501, NPY002
        "python rng": _digest(repr(random.getstate()).encode()),
        "steps": str((trainer.state.global_step, trainer.state.num_input_tokens_seen)),
        "micro step": str(trainer._step),
        "generated tokens": str(trainer.generated_tokens),
        "logged": json.dumps([row for row in history if "loss" in row], sort_keys=True),
        "buffer": fingerprint_of(trainer.planner.buffer),
        "planner": repr(trainer.planner.state(trainer._optimizer_step, trainer.generated_tokens)),
    }  # fmt: skip


def _timed(name: str) -> bool:
    return any(part in name for part in ("step_time", "generation_time", "runtime", "per_second", "replay/time/"))


def rebuilt(trainer: ExGRPOTrainer) -> dict[str, str]:
    """The buffer as it follows from the file, with and without its snapshot."""
    found, like = {}, trainer.planner.buffer
    for name, use in (("rebuilt", True), ("rebuilt without snapshot", False)):
        try:
            with LogReader(trainer.args.experience_path) as reader:
                position = trainer.experience.position or reader.position()
                listed = ((number, facts.key) for number, facts in reader.questions())
                questions = QuestionMap(trainer.questions.keys, listed)
                store = StoredTrajectories(reader, reader.lineage(position), questions.question_of)
                buffer = type(like)(like.num_questions, like.num_generations, like.config, store, types=like.types)
                rebuild(reader, buffer, position, questions, use)
                found[name] = fingerprint_of(buffer)
        except ExperienceLogError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


_JOIN = "JOIN question q ON q.id = e.question"
VIEWS = {
    "generations": "SELECT generation, step, questions, replayed, refilled, idle FROM generations ORDER BY seq",
    "observations": "SELECT generation, step, q.key, successes, scorable, unscorable, replayed "
    f"FROM observations e {_JOIN} ORDER BY e.seq",
    "trajectories": f"SELECT e.id & {SERIAL_MASK}, generation, step, q.key, length, digest, rewards, entropy, entropy_step, "
    f"finish_reason, completion_ids, behaviour_logps FROM trajectories e {_JOIN} JOIN tokens k ON k.id = e.id ORDER BY e.seq",
    "replays": f"SELECT generation, step, q.key, trajectory & {SERIAL_MASK}, moment, age, entropy, log_ratio, ess "
    f"FROM replays e {_JOIN} ORDER BY e.seq",
    "measurements": f"SELECT step, q.key, trajectory & {SERIAL_MASK}, entropy FROM measurements e {_JOIN} ORDER BY e.seq",
    "retirements": f"SELECT generation, step, q.key, kind FROM retirements e {_JOIN} ORDER BY e.seq",
    "evictions": f"SELECT generation, step, q.key, trajectory & {SERIAL_MASK}, reason FROM evictions e {_JOIN} ORDER BY e.seq",
    "experience": f"SELECT id & {SERIAL_MASK}, key, step, length, rewards, entropy, uses FROM experience ORDER BY 1",
    "questions": "SELECT key, successes, scorable, observed_at, groups, completions, solved, stored, replays, retired "
    "FROM questions ORDER BY key",
    "state": "SELECT generation, step, gate_open, pass_at_1, pass, cursor, generated_tokens FROM states "
    "ORDER BY seq DESC LIMIT 1",
}  # fmt: skip
"""What the log shows of a run to whoever reads it with SQL; the order is that in which things happened."""


@contextlib.contextmanager
def copy_of(log: Path, scratch: Path) -> Iterator[Path]:
    """A log as it lies there, elsewhere: looking at it must not repair it."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for end in ("", "-wal", "-journal"):
        if Path(f"{log}{end}").exists():
            shutil.copyfile(f"{log}{end}", scratch / f"{LOG}{end}")
    try:
        yield scratch / LOG
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def shown(log: Path, scratch: Path) -> dict[str, str]:
    found = {}
    with copy_of(log, scratch) as copy, contextlib.closing(sqlite3.connect(copy)) as connection:
        for name, sql in VIEWS.items():
            try:
                rows = connection.execute(sql).fetchall()
                found[name] = f"{len(rows)} rows, {_digest(repr(rows).encode())}"
            except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
                found[name] = repr(error)
    return found


# Instants ---------------------------------------------------------------------------------------------------------------


class _SigEvent(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_void_p), ("signo", ctypes.c_int), ("notify", ctypes.c_int), ("rest", ctypes.c_byte * 48)
    ]  # fmt: skip


class _TimerSpec(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


class Death:
    """The kernel kills this process a while from the moment `come` is called."""

    def __init__(self):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _SigEvent(None, signal.SIGKILL, 0)
        if self._libc.timer_create(1, ctypes.byref(event), ctypes.byref(self._timer)):
            raise OSError(ctypes.get_errno(), "timer_create")

    def come(self, seconds: float = 0.0) -> None:
        nanoseconds = round(seconds * 1e9)
        if nanoseconds <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        spec = _TimerSpec(0, 0, *divmod(nanoseconds, 10**9))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(spec), None)


@dataclass(frozen=True)
class Kill:
    """Where a run dies.

    Args:
        kind: of `KINDS`.
        place: what is counted or patched, where a kind has several.
        nth: at which time it happens, from 1.
        seconds: after that moment.
        part: of a torn file that stays, 0..1; or of a folder that is removed.
        write_back: pages after which SQLite moves the WAL into the main file; None: its default, never in so short a run.
    """

    kind: str
    place: str = ""
    nth: int = 1
    seconds: float = 0.0
    part: float = 0.0
    write_back: int | None = None

    def arm(self, death: Death) -> None:
        """In the child, before its trainer is made."""
        if self.write_back is not None:
            after(LogWriter, "_lock_and_read", self._set_write_back)
        getattr(self, f"_arm_{self.kind.replace(' ', '_')}")(death)

    def _set_write_back(self, writer: LogWriter, *_: Any) -> None:
        writer._connection.execute(f"PRAGMA wal_autocheckpoint = {self.write_back}")

    def _arm_any_instant(self, death: Death) -> None:
        death.come(self.seconds)

    def _arm_statement(self, death: Death) -> None:
        """At the nth statement that begins with `place`; `COMMIT of a checkpoint`: of a durable commit."""
        seen, durable = [0], [False]

        def trace(sql: str) -> None:
            if sql.startswith("PRAGMA synchronous"):
                durable[0] = sql.endswith(SYNCHRONOUS[journal()][1])
            wanted = self.place.removesuffix(" of a checkpoint")
            if sql.startswith(wanted) and (wanted == self.place or durable[0]):
                seen[0] += 1
                if seen[0] == self.nth:
                    death.come(self.seconds)

        after(LogWriter, "_lock_and_read", lambda writer, *_: writer._connection.set_trace_callback(trace))

    _arm_commit = _arm_checkpoint_commit = _arm_write_back = _arm_statement

    def _arm_commit_to_state(self, death: Death) -> None:
        """Between the log's commit for the nth checkpoint and the host's last file."""
        seen = [0]

        def here(*_: Any) -> None:
            seen[0] += 1
            if seen[0] == self.nth:
                death.come(self.seconds)

        if self.place == "after the commit":
            inner = LogWriter.commit

            def commit(log, state, checkpoint=False, snapshot=None):
                position = inner(log, state, checkpoint, snapshot)
                if checkpoint:
                    here()
                return position

            LogWriter.commit = commit
        elif self.place == "before exgrpo.json":
            before(CheckpointRecord, "write", here)
        elif self.place == "before exgrpo.json is renamed":
            before(
                exgrpo.runtime.checkpoint.os,
                "replace",
                lambda a, b: here() if str(b).endswith("/exgrpo.json") else None,
            )
        elif self.place == "after exgrpo.json":
            after(CheckpointRecord, "write", here)
        else:
            assert self.place == "before trainer_state.json"
            before(TrainerState, "save_to_json", here)

    def _arm_in_the_save(self, death: Death) -> None:
        seen = [0]

        def here(*_: Any, **__: Any) -> None:
            seen[0] += 1
            if seen[0] == self.nth:
                death.come(self.seconds)

        before(ExGRPOTrainer, "_save_checkpoint", here)

    def _arm_torn_file(self, death: Death) -> None:
        """The nth file that is written into checkpoints keeps only a part of its bytes; those after it were not written."""
        files = _Files()

        def written(*_: Any, **__: Any) -> None:
            new = files.new()
            if files.count >= self.nth:
                torn, *later = new[self.nth - 1 - files.count :]  # a negative place: counted from the end
                for path in later:
                    path.unlink()
                if torn.name == "exgrpo.json":  # written beside, then renamed
                    torn = torn.rename(torn.with_name(".exgrpo.json"))
                os.truncate(torn, int(self.part * torn.stat().st_size))
                death.come()

        before(ExGRPOTrainer, "_save_checkpoint", lambda trainer, *_, **__: files.watch(trainer))
        for owner, name in WRITERS:
            after(owner, name, written)

    _arm_written_over = _arm_torn_file

    def _arm_rotation(self, death: Death) -> None:
        inner, seen = shutil.rmtree, [0]

        def rmtree(path, *args, **kwargs):
            if not Path(path).name.startswith("checkpoint-"):
                return inner(path, *args, **kwargs)
            seen[0] += 1
            if seen[0] == self.nth:
                names = os.listdir(path)
                for name in names[: round(self.part * len(names))]:
                    os.unlink(Path(path) / name)
                if self.part == 1:
                    os.rmdir(path)
                death.come()
            return inner(path, *args, **kwargs)

        shutil.rmtree = rmtree

    def _arm_creation(self, death: Death) -> None:
        if self.place == "instant":
            before(exgrpo.log.writer, "create", lambda *_: death.come(self.seconds))
        else:
            wrap = before if self.place == "before the rename" else after
            wrap(os, "replace", lambda *a: death.come() if str(a[-1]).endswith(LOG) else None)

    def _arm_opening(self, death: Death) -> None:
        before(ExperienceSession, "open", lambda *_, **__: death.come(self.seconds))


KINDS = {
    "any instant": "uniform over the run",
    "commit": "0..300 us (with a rollback journal: 3 ms) after a COMMIT, BEGIN or INSERT of the log began",
    "checkpoint commit": "0..300 us after the COMMIT of a checkpoint began",
    "write back": "0..300 us after the WAL's pages began to move into the main file, at the end of training",
    "commit to state": "between the log's commit for a checkpoint and trainer_state.json",
    "in the save": "uniform over the writing of a checkpoint",
    "torn file": "a file of a checkpoint torn",
    "written over": "a file torn while an existing checkpoint of the same step is written over",
    "rotation": "while an old checkpoint is removed",
    "creation": "while the log is made",
    "opening": "while the log is opened, rebuilt and branched to resume",
}

WRITERS = [
    (PreTrainedConfig, "save_pretrained"),
    (GenerationConfig, "save_pretrained"),
    (transformers.modeling_utils, "safe_save_file"),
    (PreTrainedTokenizerBase, "save_pretrained"),
    (torch, "save"),
    (exgrpo.runtime.checkpoint, "save_file"),
    (CheckpointRecord, "write"),
    (TrainerState, "save_to_json"),
]
"""What writes the files of a checkpoint."""


def before(owner: Any, name: str, what: Callable[..., Any]) -> None:
    inner = getattr(owner, name)

    def wrapped(*args, **kwargs):
        what(*args, **kwargs)
        return inner(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, what: Callable[..., Any]) -> None:
    inner = getattr(owner, name)

    def wrapped(*args, **kwargs):
        result = inner(*args, **kwargs)
        what(*args)
        return result

    setattr(owner, name, wrapped)


class _Files:
    """Files of the checkpoint under way, in the order in which they are written."""

    def __init__(self):
        self.count = 0
        self._folder: Path | None = None
        self._known: dict[str, tuple[int, int]] = {}

    def watch(self, trainer: ExGRPOTrainer) -> None:
        self._folder = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
        exgrpo.trl.checkpoint.mark_incomplete(self._folder)  # as it is about to happen: these are written anew
        self._known = self._state()

    def _state(self) -> dict[str, tuple[int, int]]:
        if self._folder is None or not self._folder.is_dir():
            return {}
        return {e.name: (e.stat().st_mtime_ns, e.stat().st_ino) for e in os.scandir(self._folder)}

    def new(self) -> list[Path]:
        """What was written since the last look."""
        state = self._state()
        names = sorted((name for name in state if self._known.get(name) != state[name]), key=lambda name: state[name])
        self._known = state
        self.count += len(names)
        return [self._folder / name for name in names] if self._folder else []


# Attempts ---------------------------------------------------------------------------------------------------------------

HUNG = 3600.0
"""Seconds after which a run counts as hung: so many that a busy machine is not taken for a deadlock."""


@dataclass
class Outcome:
    """How an attempt ended: `finished`, `killed`, `refused` (one of our errors), `failed` (another), `hung`."""

    end: str
    error: str = ""
    message: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)
    seconds: float = 0.0
    lost: int = 0


class Run:
    """A folder in which a run is attempted until it ends.

    Args:
        folder: of the run; made if need be.
        config: of `CONFIGS`.
        scratch: a folder for what is kept about it.
        options: of the run, beside those of the configuration.
    """

    def __init__(self, folder: Path, config: str, scratch: Path, **options: Any):
        self.folder, self.config, self.scratch, self.options = folder, config, scratch, options
        scratch.mkdir(parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.reports = scratch / "reports"
        self.log = folder / options.get("experience_log", LOG)

    def copy(self, folder: Path, scratch: Path) -> "Run":
        shutil.copytree(self.folder, folder)
        new = Run(folder, self.config, scratch, **self.options)
        if self.reports.exists():
            shutil.copyfile(self.reports, new.reports)
        return new

    def start(
        self, kill: Kill | None = None, arrange: Callable[[], None] | None = None, resume: str | None = ""
    ) -> int:
        """Fork a child that trains; its process id."""
        sys.stdout.flush()
        sys.stderr.flush()
        for name in ("result", "said"):
            (self.scratch / name).unlink(missing_ok=True)
        if (pid := os.fork()) == 0:
            try:
                self._train(kill, arrange, resume)
            finally:
                os._exit(1)
        return pid

    def _train(self, kill: Kill | None, arrange: Callable[[], None] | None, resume: str | None) -> None:
        said = os.open(self.scratch / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)  # whatever they were
        warnings.simplefilter("ignore")
        witness = _Witness(os.open(self.reports, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        result = os.open(self.scratch / "result.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)  # while it is allowed
        outcome = Outcome("finished")
        try:
            if kill is not None:
                kill.arm(Death())
            if arrange is not None:
                arrange()
            witness.install()
            trainer = make(self.folder, CONFIGS[self.config] | self.options)
            begun = time.monotonic()
            checkpoint = last_checkpoint(self.folder) if resume == "" else resume
            trainer.train(resume_from_checkpoint=checkpoint)
            outcome.measures = witness.measures | {"train": time.monotonic() - begun}
            outcome.facts, outcome.modules = facts(trainer) | rebuilt(trainer), list(sys.modules)
            if checkpoint and checkpoint.endswith(
                f"checkpoint-{STEPS}"
            ):  # the host restores it before a first step only
                outcome.facts |= dict.fromkeys(NOT_RESTORED, NO_STEP)
        except (ExperienceLogError, CheckpointError) as error:
            outcome = Outcome("refused", type(error).__name__, str(error))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
            outcome = Outcome("failed", type(error).__name__, "".join(traceback.format_exception(error)))
        with os.fdopen(result, "w") as file:
            json.dump(dataclasses.asdict(outcome), file)
        os._exit(0)

    def wait(self, pid: int, begun: float | None = None, timeout: float = HUNG) -> Outcome:
        begun = time.monotonic() if begun is None else begun
        hung = False
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() - begun > timeout:
                os.kill(pid, signal.SIGKILL)
                ended, hung = os.waitpid(pid, 0), True
                break
            time.sleep(0.005)
        seconds = time.monotonic() - begun
        part = self.scratch / "result.part"
        if hung:
            outcome = Outcome("hung", message=(self.scratch / "said").read_text()[-2000:])
        elif os.WIFSIGNALED(ended[1]):
            outcome = Outcome("killed" if os.WTERMSIG(ended[1]) == signal.SIGKILL else "failed", f"signal {ended[1]}")
        elif os.WEXITSTATUS(ended[1]):
            outcome = Outcome("failed", f"exit {ended[1]}", (self.scratch / "said").read_text()[-4000:])
        else:
            outcome = Outcome(**json.loads(part.read_text()))
        outcome.seconds = seconds
        return outcome

    def attempt(
        self,
        kill: Kill | None = None,
        arrange: Callable[[], None] | None = None,
        resume: str | None = "",
        timeout: float = HUNG,
    ) -> Outcome:
        begun = time.monotonic()
        outcome = self.wait(self.start(kill, arrange, resume), begun, timeout)
        outcome.lost = self.lost()
        return outcome

    # What was promised ------------------------------------------------------------------------------------------

    def _reported(self) -> Iterator[dict[str, Any]]:
        if self.reports.exists():
            for line in self.reports.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last one, cut
                    yield json.loads(line)

    def generations(self) -> dict[int, set[str]]:
        """Of each generation the hashes of what was generated and scored, one for each time it was."""
        found: dict[int, set[str]] = {}
        for row in self._reported():
            if "generation" in row:
                found.setdefault(row["generation"], set()).add(row["hash"])
        return found

    def lost(self) -> int:
        """Rows that were promised to be in the file, and are not."""
        found: dict[str, set[tuple[int, int]]] = {}
        with copy_of(self.log, self.scratch / "look") as copy, contextlib.closing(sqlite3.connect(copy)) as connection:
            for table in (*schema.INSERT, "tokens", "embedding"):
                key = "id" if table in (*schema.FACTS, "tokens", "embedding") else "seq"
                with contextlib.suppress(sqlite3.Error, UnicodeDecodeError, OverflowError):
                    found[table] = set(connection.execute(f"SELECT {key}, crc FROM {table}"))

        promised = {
            (table, *row)
            for report in self._reported()
            for table, rows in report.get("rows", {}).items()
            for row in rows
        }
        return sum(tuple(row) not in found.get(table, ()) for table, *row in promised)

    def difference(self, reference: "Reference", outcome: Outcome, damaged: bool = False) -> list[str]:
        """In what a run that ended differs from the one that was never interrupted.

        Args:
            reference: that one.
            outcome: of the last attempt.
            damaged: whether bytes of the file were changed: then what is not needed may be unreadable, if `verify` tells.
        """
        names = [name for name, value in reference.facts.items() if outcome.facts.get(name) not in (value, NO_STEP)]
        for generation, hashes in self.generations().items():
            if hashes != {reference.generations.get(generation)}:
                names.append(f"generation {generation}")
        views = shown(self.log, self.scratch / "look")
        names += [f"view {name}" for name, value in reference.shown.items() if views[name] != value]
        if damaged and names and all(name.startswith(("view", "rebuilt")) for name in names):
            with copy_of(self.log, self.scratch / "look") as copy:
                if verify(copy):
                    return []
        return names


@dataclass
class Reference:
    """The run that was never interrupted, and how often things happen in it."""

    config: str
    facts: dict[str, str]
    shown: dict[str, str]
    generations: dict[int, str]
    measures: dict[str, float]
    seconds: float
    folder: Path


def reference(config: str, root: Path) -> Reference:
    run = Run(root / "reference" / config, config, root / "reference of" / config)
    outcome = run.attempt()
    if outcome.end != "finished" or outcome.lost:
        raise RuntimeError(f"{config}: the uninterrupted run {outcome.end}: {outcome.message}")
    for name in outcome.modules:  # what a run loads late: once for all, and for those that may not read these files
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    same = {outcome.facts[name] for name in ("buffer", "rebuilt", "rebuilt without snapshot")}
    if len(same) != 1:
        raise RuntimeError(f"{config}: the log of the uninterrupted run does not lead to its buffer")
    generations = {number: hashes.pop() for number, hashes in run.generations().items()}
    views = shown(run.log, run.scratch / "look")
    return Reference(config, outcome.facts, views, generations, outcome.measures, outcome.seconds, run.folder)


class _Rows:
    """What a commit would write, as number and checksum of each row; stands for a connection."""

    def __init__(self):
        self.found: dict[str, list[tuple[int, int]]] = {}

    def execute(self, sql: str, row: tuple[Any, ...]) -> None:
        pass  # snapshots, which come and go

    def executemany(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        self.found.setdefault(sql.split()[2], []).extend((row[0], row[-1]) for row in rows)


def _rows_of(made: Commit) -> dict[str, list[tuple[int, int]]]:
    rows = _Rows()
    made.write(rows, np.dtype("<f4"))
    return rows.found


class _Witness:
    """Tells outside which rows each transaction wrote; measures what instants are drawn from."""

    def __init__(self, reports: int):
        self._reports = reports
        self.measures: dict[str, float] = {}

    def _tell(self, what: dict[str, Any]) -> None:
        os.write(self._reports, (json.dumps(what) + "\n").encode())

    def _count(self, name: str, amount: float = 1) -> None:
        self.measures[name] = self.measures.get(name, 0) + amount

    def install(self) -> None:
        write, advantages = LogWriter._write, ReplayStep.advantages

        def writing(log, made):
            write(log, made)
            told = _rows_of(made)
            self._tell({"what": "written", "rows": told})
            self._count("COMMIT of a checkpoint" if made.durable else "COMMIT")
            self._count("INSERT", sum(map(len, told.values())))

        def crediting(step, scored):
            ids = repr([list(map(int, ids)) for ids in scored.completion_ids]).encode()
            rewards, plan = scored.rewards.numpy().tobytes(), scored.batch.plan
            questions = np.asarray(plan.questions, np.int64).tobytes()
            self._tell({"generation": int(plan.iteration), "hash": f"{zlib.crc32(ids + rewards + questions):08x}"})
            return advantages(step, scored)

        LogWriter._write, ReplayStep.advantages = writing, crediting
        files = _Files()
        before(ExGRPOTrainer, "_save_checkpoint", lambda trainer, *_, **__: files.watch(trainer))

        def count_files(*_: Any) -> None:
            self._count("files", len(files.new()))

        for owner, name in WRITERS:
            after(owner, name, count_files)
        self._time(ExGRPOTrainer, "_save_checkpoint", "save")
        self._time(exgrpo.log.writer, "create", "create")
        self._time(ExperienceSession, "open", "start")
        inner = shutil.rmtree

        def rmtree(path, *args, **kwargs):
            self._count("rotations", Path(path).name.startswith("checkpoint-"))
            return inner(path, *args, **kwargs)

        shutil.rmtree = rmtree

    def _time(self, owner: Any, name: str, measure: str) -> None:
        inner = getattr(owner, name)

        def timed(*args, **kwargs):
            begun = time.monotonic()
            result = inner(*args, **kwargs)
            self.measures[measure] = max(self.measures.get(measure, 0), time.monotonic() - begun)
            self._count(f"{measure}s")
            return result

        setattr(owner, name, timed)
