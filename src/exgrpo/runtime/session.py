"""A run's experience across processes and restarts: opened, rebuilt, written, and tied to checkpoints.

The main process writes the log and reads token arrays from it; all processes hold the same index. What only one process can
do is done there, and its result or error is sent to all (`Comm.from_main`).
"""

import logging
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ..archive.merge import committing
from ..archive.transfer import Source, import_experience, source_of  # fmt: skip
from ..errors import CheckpointError, ConfigurationError, DamagedLogError, ExperienceLogError, LogInUseError
from ..experience.events import Event, Listener, PlannerState
from ..experience.quality import embed
from ..experience.replayed import restore, snapshot_of
from ..experience.store import MemoryStore, TrajectoryStore
from ..experience.trajectory import FloatArray, Trajectory
from ..log import FILE_NAME, LogReader, LogWriter, Position, Provenance, log_in, rebuild
from ..log.connection import WriterLock, put_in_place, usable
from ..log.filesystem import is_shared
from ..replay import FreshStream, ReplayedTrajectory, ReplayPlanner
from .batch import NewRows
from .behaviour import check_behaviour, unknown_in_log, without_behaviour
from .checkpoint import CheckpointRecord, SavedStep, how_to_take_weights, load_block, serials_in, unpacked
from .comm import Comm
from .context import RunContext
from .provenance import order_of_data
from .shared_store import SharedStore, heads_of, remote

logger = logging.getLogger(__name__)


@dataclass
class Opened:
    """The result of opening on the main process, for the other processes.

    Args:
        index: snapshot of the buffer, if there are other processes.
        state: of the planner.
        serials: of the stored trajectories in the current iteration; None: no iteration is continued.
        heads: the part of these trajectories that every process holds.
    """

    index: dict[str, Any] | None
    state: PlannerState
    serials: list[int] | None
    heads: tuple[NDArray[Any], NDArray[Any]]


class SessionState(Enum):
    """The state of a session.

    CLOSED: not opened yet. OPEN: memory and log agree, up to the current iteration. UNWRITTEN: the last commit failed, and
    the log lacks events that memory has. AHEAD: an iteration was abandoned halfway, and memory has events that the log must
    not get. FAILED: the first opening failed halfway.
    """

    CLOSED = "closed"
    OPEN = "open"
    UNWRITTEN = "unwritten"
    AHEAD = "ahead"
    FAILED = "failed"


NOTHING_BEGUN = (SessionState.CLOSED, SessionState.FAILED)


class ExperienceSession:
    """The experience of a run.

    Args:
        context: the run.
        comm: its processes.

    Attributes:
        listeners: see every event, on every process; the log is one of them, on the main process.
        log: the open log, on the main process.
        position: of the last commit, on the main process.
        state: `UNWRITTEN` and `AHEAD` are known on the main process only.
    """

    def __init__(self, context: RunContext, comm: Comm):
        self.context = context
        self.comm = comm
        self.listeners: list[Listener] = []
        self.log: LogWriter | None = None
        self.position: Position | None = None
        self.state = SessionState.CLOSED
        self._under_way: list[Trajectory] = []

    @property
    def _is_main(self) -> bool:
        return self.comm.rank == 0

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def new_planner(self) -> ReplayPlanner:
        """Make a planner with empty experience."""
        context, table = self.context, self.context.questions
        stream = FreshStream(table.permutations(context.seed, context.shuffle), len(table))
        return ReplayPlanner(
            context.config, stream, context.num_generations, context.seed, self._store(), self.tell, context.types,
            context.longest_prefix,
        )  # fmt: skip

    def _store(self) -> TrajectoryStore:
        inner: TrajectoryStore | None = None
        if self._is_main:
            inner = self.log if self.log is not None else MemoryStore()
        if inner is not None and self.comm.world_size == 1:
            return inner
        return SharedStore(self.comm, inner)

    # Opening ----------------------------------------------------------------------------------------------------

    def open(
        self, planner: ReplayPlanner, checkpoint: str | None, record: CheckpointRecord | None, shape: Sequence[int] = ()
    ) -> tuple[ReplayPlanner, SavedStep | None]:
        """Open the log, and begin or continue; called on all processes at once.

        Args:
            planner: that of an earlier call of `train()`, or an empty one.
            checkpoint: the one to continue from, if any.
            record: its record.
            shape: shape of this run's generation blocks.

        Returns:
            The planner to use, and the iteration to continue, if the checkpoint lies within one.

        Raises:
            ConfigurationError, CheckpointError, ExperienceLogError: on every process.
        """
        if self.context.log_path is None:
            if checkpoint is not None:
                raise ConfigurationError(
                    "resume_from_checkpoint needs the experience of the run, but experience_log='none'. Resume without that "
                    f"option if the run had a log; or start {how_to_take_weights(checkpoint)} with empty experience, or set "
                    "preset='on-policy'."
                )
            self.state = SessionState.OPEN
            return planner, None
        if checkpoint is not None and (record is None or record.log is None):
            raise CheckpointError(
                f"{checkpoint} does not say where its experience is: it was saved without replay, with "
                f"experience_log='none' or with save_only_model. Start {how_to_take_weights(checkpoint)} with "
                "experience_from=LOG if there is one; or resume with preset='on-policy'."
            )
        before = self.state
        try:
            opened = self._opened(planner, checkpoint, record, shape)
        except BaseException:
            self._close()
            if before in NOTHING_BEGUN:
                self.state = SessionState.FAILED
            elif self.state is not SessionState.UNWRITTEN:
                self.state = before
            raise
        self.state = SessionState.OPEN
        return opened

    def _opened(
        self, planner: ReplayPlanner, checkpoint: str | None, record: CheckpointRecord | None, shape: Sequence[int]
    ) -> tuple[ReplayPlanner, SavedStep | None]:
        comm, before = self.comm, self.state
        again = before not in NOTHING_BEGUN and checkpoint is None
        comm.from_main(lambda: self._open(planner, checkpoint, record))
        ahead = again and comm.from_main(lambda: self.state is SessionState.AHEAD)
        if again and not ahead:
            planner.buffer.store = self._store()
            comm.from_main(lambda: self._go_on(planner))
            return planner, None
        if checkpoint is not None or before is SessionState.FAILED or ahead:
            planner = self.new_planner()
        planner.buffer.store = self._store()
        opened = comm.from_main(lambda: self._begin(planner, checkpoint, record, ahead, shape))
        if not self._is_main:
            if opened.index is not None:
                restore(planner.buffer, opened.index)
            planner.restore(opened.state)
        if checkpoint is None or opened.serials is None:
            return planner, None
        held = self._under_way if self._is_main else remote(*opened.heads)
        self._under_way = []
        choices = {s: ReplayedTrajectory(s, t) for s, t in zip(opened.serials, held, strict=True)}
        saved = load_block(Path(checkpoint), comm.rank, self.context.device)
        return planner, unpacked(saved, choices, self.context.device)

    def _open(self, planner: ReplayPlanner, checkpoint: str | None, record: CheckpointRecord | None) -> None:
        path = self.context.log_path
        assert path is not None
        if checkpoint is not None and record is not None and record.log is not None:
            restore_copy(Path(checkpoint) / FILE_NAME, path, Position(**record.log))
        if checkpoint is not None and not path.is_file():
            raise CheckpointError(
                f"{checkpoint} belongs to an experience log, but there is none at {path}. Put it there, or set experience_log "
                f"to where it is; or start {how_to_take_weights(checkpoint)} with empty experience."
            )
        if self.log is not None and self.log.writing and checkpoint is None:
            self.commit(planner)
        if self.log is not None:  # of an earlier call of train()
            self._close()
        self.log = LogWriter(path, self.context.questions, self.context.config.logp_dtype)
        self.listeners.append(self.log)

    def _close(self) -> None:
        if self.log is not None:
            log, self.log = self.log, None
            self.listeners.remove(log)
            log.close()

    def _go_on(self, planner: ReplayPlanner) -> None:
        """Continue in another call of `train()`: the experience is in memory, the log goes on where it was left."""
        assert self.log is not None
        if self.position is None or self.state is SessionState.UNWRITTEN:
            raise ExperienceLogError(
                f"{self.log.path} lacks the events since its last commit, which failed. Make a new trainer and resume from "
                "the last checkpoint."
            )
        self.log.begin(self.context.provenance(), self.position, self._step)
        self.commit(planner)

    def _begin(
        self,
        planner: ReplayPlanner,
        checkpoint: str | None,
        record: CheckpointRecord | None,
        ahead: bool,
        shape: Sequence[int],
    ) -> Opened:
        assert self.log is not None
        origin = self.context.provenance()
        if (tokenizer := self.context.tokenizer()) is not None:
            self.log.add_tokenizer(origin.tokenizer, tokenizer)
        serials: list[int] | None = None
        if checkpoint is not None:
            serials = self._resume(planner, origin, checkpoint, record, shape)
        elif ahead and self.position is not None:
            planner.restore(self._rebuild(planner, origin, self.position))
            logger.warning("The generation that was abandoned halfway is not in the log, and is planned again.")
        else:
            self._start_anew(planner, origin)
        with self.log.at_step(self._step):
            planner.buffer.shrink()
        self.commit(planner)
        shared = self.comm.world_size > 1
        return Opened(
            snapshot_of(planner.buffer) if shared else None,
            self._state(planner),
            serials,
            heads_of(self._under_way),
        )

    def _start_anew(self, planner: ReplayPlanner, origin: Provenance) -> None:
        assert self.log is not None
        position = self.log.reader.position()
        if position is not None and position.seq and self.context.experience_from is None:
            logger.warning(
                "%s holds the experience of an earlier run. It stays there; this run starts with none, on a branch of its own. "
                "To continue that run: train(resume_from_checkpoint=True); to start from what it holds: experience_from=%r.",
                self.log.path,
                str(self.log.path),
            )
        path = self.context.experience_from
        if path is not None:
            check_behaviour(self.context.config, self.context.objective, without_behaviour(path), path)
        self.log.begin(origin, None, self._step)
        if path is not None:
            with open_source(path) as source:
                self._import(planner, origin, source, self.context.keep_retired)

    def _import(self, planner: ReplayPlanner, origin: Provenance, source: Source, keep_retired: bool = False) -> None:
        assert self.log is not None
        source = replace(source, trajectories=committing(source.trajectories, self.log, self._state(planner)))
        report = import_experience(
            source, planner.buffer, self.log, origin, self._step, self.context.rescore, self.context.bounds(),
            reads=self.context.columns_read(), keep_retired=keep_retired,
        )  # fmt: skip
        logger.warning("Experience from %s: %s.", source.name, report)

    def _resume(
        self,
        planner: ReplayPlanner,
        origin: Provenance,
        checkpoint: str,
        record: CheckpointRecord | None,
        shape: Sequence[int],
    ) -> list[int] | None:
        """Restore the run of a checkpoint; return the serials of its current iteration's stored trajectories.

        None where there is no iteration that training can continue in.
        """
        assert self.log is not None
        assert record is not None and record.log is not None
        position = Position(**record.log)
        reader, step = self.log.reader, self._step
        reader.lineage(position)  # raises if it is not there
        check_behaviour(self.context.config, self.context.objective, unknown_in_log(reader), str(reader.path))
        before = reader.origin_of(position.branch)
        changed = before.differences(origin)
        if before.questions != origin.questions and "tokenizer" not in changed and "chat template" not in changed:
            changed.append("dataset")
        changed = [what for what in changed if what != "model"]
        if changed:
            logger.warning(
                "Resuming from %s under another %s: not bit-equal. Experience is matched by content, and the passes over "
                "the data start over%s.",
                checkpoint,
                ", another ".join(changed),
                "; the rest of the generation under way is left out" * record.in_block,
            )
            state = reader.state(position)
            self.log.begin(origin, None, step, f"continues {checkpoint} under another {', '.join(changed)}")
            planner.restore(replace(state, step=step, pass_number=0, cursor=0, deferred=()))
            self._import(planner, origin, source_of(reader, position), keep_retired=True)
            return None
        end = reader.end()
        state = self._rebuild(planner, origin, position)
        if order_of_data(before) != order_of_data(origin):
            logger.warning("The seed or the shuffling changed: the passes over the data start over.")
            state = replace(state, pass_number=0, cursor=0, deferred=())
        planner.restore(state)
        logger.warning(
            "Resumed from %s with %d trajectories of %d questions%s.",
            checkpoint,
            len(planner.buffer),
            planner.buffer.num_replayable,
            f"; {end - position.seq} later events of the log are left on a branch of their own" * (end > position.seq),
        )
        if not record.in_block:
            return None
        folder, ranks = Path(checkpoint), range(record.world_size)
        serials = sorted(set[int]().union(*(serials_in(folder, rank) for rank in ranks)))
        if record.shape == list(shape):
            self._under_way = self.log.get_many(serials)
            return serials
        self._admit_rest(planner, folder, record.world_size, serials)
        return None

    def _rebuild(self, planner: ReplayPlanner, origin: Provenance, position: Position) -> PlannerState:
        """Restore a planner from a position, on a new branch that continues it; return its other state."""
        assert self.log is not None
        reader = self.log.reader
        self.log.begin(origin, position, self._step)
        questions = self.log.question_map
        state = rebuild(reader, planner.buffer, position, questions)
        if planner.diversity is not None:
            for _, question, vector in reader.embeddings(reader.lineage(position), origin.embedding):
                planner.diversity.add(questions.question_of(question), vector)
        return state

    def _admit_rest(self, planner: ReplayPlanner, folder: Path, ranks: int, serials: list[int]) -> None:
        """Store the rest of an iteration whose batch has another shape now, and is not continued.

        The rows of one process after the other, so that one file is in memory at a time.
        """
        assert self.log is not None
        choices = {s: ReplayedTrajectory(s, t) for s, t in zip(serials, self.log.get_many(serials), strict=True)}
        stored = 0
        for rank in range(ranks):
            part = unpacked(load_block(folder, rank), choices)
            if not part.finished:
                new = NewRows.of(part.scored, self._embedded(part))
                stored += planner.admit(new.trajectories(part.scored, part.stats), part.scored.groups)
        logger.warning(
            "The checkpoint lies within a generation whose batch was made for %d processes or other options. Its remaining "
            "updates are left out, its %d new successes are stored, and the next generation begins.",
            ranks,
            stored,
        )

    def _embedded(self, part: SavedStep) -> dict[int, FloatArray]:
        """Return the embeddings of what a process would have stored, by row; empty where quality is not used."""
        rows = part.scored.to_admit
        if self.context.embedder is None or not rows:
            return {}
        return dict(zip(rows, embed(self.context.embedder, self.context.decode(part.scored.ids_of(rows))), strict=True))

    # While training ---------------------------------------------------------------------------------------------

    def _state(self, planner: ReplayPlanner) -> PlannerState:
        progress = self.context.progress()
        return planner.state(progress.step, progress.generated_tokens)

    @property
    def _step(self) -> int:
        return self.context.progress().step

    def commit(self, planner: ReplayPlanner, checkpoint: bool = False) -> Position | None:
        """Write down what happened; on the main process."""
        if self.log is None:
            return None
        snapshot = snapshot_of(planner.buffer) if checkpoint else None
        self.state = SessionState.UNWRITTEN
        self.position = self.log.commit(self._state(planner), checkpoint, snapshot)
        self.state = SessionState.OPEN
        return self.position

    def checkpoint(self, planner: ReplayPlanner, folder: Path) -> dict[str, Any] | None:
        """Commit for a checkpoint in a folder; every process gets the position, or the error that makes it fail."""
        if self.context.log_path is None:
            return None
        position = self.comm.from_main(lambda: self._commit_and_copy(planner, folder))
        return None if position is None else asdict(position)

    def _commit_and_copy(self, planner: ReplayPlanner, folder: Path) -> Position | None:
        position = self.commit(planner, checkpoint=True)
        if self.log is not None and is_shared(folder) and not is_shared(self.log.path):  # a path of this machine only
            self.log.copy_to(folder / FILE_NAME)
        return position

    def close(self, planner: ReplayPlanner, done: bool) -> None:
        """Release the log when training is over for now; `done` if nothing went wrong.

        An iteration that was abandoned before its results were written leaves nothing in the log.
        """
        if self.log is None:
            return
        try:
            ahead = not done and self.state is SessionState.OPEN and self.log.waits
            try:
                if ahead:
                    self.state = SessionState.AHEAD
                else:
                    self.commit(planner)
            finally:
                self.log.pause()
        except ExperienceLogError:
            if done:
                raise
            logger.exception("What happened since the last commit of %s could not be written.", self.log.path)


def restore_copy(copy: Path, path: Path, position: Position) -> None:
    """Move a checkpoint's copy of a log into place, where the log is missing or ends before the checkpoint."""
    if not copy.is_file():
        return
    if path.is_file():
        try:
            with LogReader(path) as reader:
                reader.lineage(position)
            return
        except LogInUseError:
            raise
        except ExperienceLogError as error:
            if isinstance(error.__cause__, (sqlite3.Error, MemoryError)) and not isinstance(error, DamagedLogError):
                raise  # an error of locks, memory or the file system, not of the log
            why = str(error)
    else:
        why = "it is not there"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(path)
    lock.acquire()
    try:
        beside = path.with_name(f".{path.name}.copy")
        shutil.copyfile(copy, beside)
        put_in_place(beside, path)
    finally:
        lock.release()
    logger.warning("%s is taken from the checkpoint's copy, %s (%s).", path, copy, why)


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """Open a source by its path: an output directory, a log, or an exported folder."""
    with usable(Path(path)):
        place = Path(path).expanduser()
        if place.is_dir() and log_in(place).is_file():
            place = log_in(place)
        is_folder = place.is_dir()
    if is_folder:
        from ..archive.parquet import read_folder

        yield read_folder(place)
    else:
        with LogReader(place) as reader:
            yield source_of(reader)
