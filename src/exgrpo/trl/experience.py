"""A trainer's experience across processes and restarts: opened, rebuilt, written down, tied to checkpoints.

The main process writes the log and reads token arrays from it; all processes hold the same index. What only one can do is
done there, and its outcome, or its error, reaches all (`on_main`).
"""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..archive.merge import committing
from ..archive.transfer import Source, inherit, source_of  # fmt: skip
from ..errors import CheckpointError, ConfigurationError, ExperienceLogError, LogInUseError
from ..experience.events import Event, Listener, PlannerState
from ..experience.quality import Diversity, embed
from ..experience.replayed import restore, snapshot_of
from ..experience.store import MemoryStore, TrajectoryStore
from ..log import FILE_NAME, LogReader, LogWriter, Origin, Position, log_in, rebuild
from ..log.connection import WriterLock, put_in_place
from ..log.filesystem import is_shared
from ..replay import FreshStream, ReplayPlanner
from ..replay import ReplayedTrajectory as Choice
from . import origin as origins
from .checkpoint import CheckpointFacts, SavedBlock, load_block, serials_of, unpacked
from .generation import Generation, merge
from .processes import SharedStore, on_main

logger = logging.getLogger(__name__)


@dataclass
class Opened:
    """What the main process found, for the others.

    Args:
        index: snapshot of the buffer, where there are others.
        state: of the planner.
        diversity: what was embedded of each question, where quality is used and there are others.
        choices: stored trajectories of the generation under way, by serial; None: it is not learned from on.
    """

    index: dict[str, Any] | None
    state: PlannerState
    choices: dict[int, Choice] | None
    diversity: Diversity | None = None


class ExperienceKeeper:
    """Keeps the experience of a trainer with replay.

    Args:
        trainer: an `ExGRPOTrainer` with a table of questions.

    Attributes:
        listeners: see every event, on every process; the log is one of them, on the main process.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer
        self.config = trainer.args
        self.accelerator = trainer.accelerator
        self.listeners: list[Listener] = []
        self.log: LogWriter | None = None  # of the main process
        self.position: Position | None = None  # of the last commit
        self._started = False
        self._failed = False  # to start, half way
        self._has_begun = False  # the log that is open
        self._all_is_written = False
        self._is_ahead = False  # memory, of the log: a generation was given up half way

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def new_planner(self) -> ReplayPlanner:
        """A planner that remembers nothing yet."""
        trainer, config = self.trainer, self.config
        table = trainer.questions
        stream = FreshStream(table.permutations(config.seed, trainer.shuffle_dataset), len(table))
        return ReplayPlanner(
            config.replay, stream, trainer.num_generations, config.seed, self._store(), self.tell, trainer.types
        )

    def _store(self) -> TrajectoryStore:
        inner: TrajectoryStore | None = None
        if self.accelerator.is_main_process:
            inner = self.log if self.log is not None else MemoryStore()
        if inner is not None and self.accelerator.num_processes == 1:
            return inner
        return SharedStore(self.accelerator, inner)

    # Opening ----------------------------------------------------------------------------------------------------

    def start(
        self, planner: ReplayPlanner, checkpoint: str | None, facts: CheckpointFacts | None
    ) -> tuple[ReplayPlanner, Generation | None]:
        """Open the log, and begin or continue: on all processes at once.

        Args:
            planner: of an earlier call of `train()`, which goes on; or one that remembers nothing.
            checkpoint: that the run continues from.
            facts: what it says.

        Returns:
            The planner to use, and the generation that is being learned from, if the checkpoint lies within one.

        Raises:
            ConfigurationError, CheckpointError, ExperienceLogError: on every process.
        """
        again = self._started and checkpoint is None
        if not self.config.keeps_log:
            if checkpoint is not None:
                raise ConfigurationError(
                    "resume_from_checkpoint needs the experience of the run, but experience_log='none'. Resume without that "
                    "option if the run had a log; or start from the checkpoint's weights (model=CHECKPOINT) with empty "
                    "experience, or set preset='on-policy'."
                )
            self._started = True
            return planner, None
        if checkpoint is not None and (facts is None or facts.log is None):
            raise CheckpointError(
                f"{checkpoint} does not say where its experience is: it was saved without replay, with "
                "experience_log='none' or with save_only_model. Start from its weights (model=CHECKPOINT), with "
                "experience_from=LOG if there is one; or resume with preset='on-policy'."
            )
        on_main(self.accelerator, lambda: self._open(planner, checkpoint, facts))
        ahead = again and on_main(self.accelerator, lambda: self._is_ahead)
        if again and not ahead:
            planner.buffer.store = self._store()
            on_main(self.accelerator, lambda: self._go_on(planner))
            return planner, None
        if checkpoint is not None or self._failed or ahead:
            planner = self.new_planner()
        self._failed = True
        planner.buffer.store = self._store()
        opened = on_main(self.accelerator, lambda: self._begin(planner, checkpoint, facts, ahead))
        if not self.accelerator.is_main_process:
            if opened.index is not None:
                restore(planner.buffer, opened.index)
            planner.restore(opened.state)
            planner.diversity = opened.diversity
        self._started, self._failed, self._is_ahead = True, False, False
        if checkpoint is None or opened.choices is None:
            return planner, None
        saved = load_block(Path(checkpoint), self.accelerator.process_index, self.accelerator.device)
        return planner, unpacked(saved, opened.choices, self.accelerator.device)

    def _open(self, planner: ReplayPlanner, checkpoint: str | None, facts: CheckpointFacts | None) -> None:
        path = self.config.experience_path
        if checkpoint is not None and facts is not None and facts.log is not None:
            restore_copy(Path(checkpoint) / FILE_NAME, path, Position(**facts.log))
        if checkpoint is not None and not path.is_file():
            raise CheckpointError(
                f"{checkpoint} belongs to an experience log, but there is none at {path}. Put it there, or set experience_log "
                "to where it is; or start from the checkpoint's weights (model=CHECKPOINT) with empty experience."
            )
        if self.log is not None and self.log.writing and checkpoint is None:
            self.commit(planner)
        if self.log is not None:  # of an earlier call of train()
            self._close()
        self._has_begun = False
        self.log = LogWriter(path, self.trainer.questions, self.config.logp_dtype)
        self.listeners.append(self.log)

    def _close(self) -> None:
        if self.log is not None:
            log, self.log = self.log, None
            self.listeners.remove(log)
            log.close()

    def _go_on(self, planner: ReplayPlanner) -> None:
        """Another call of `train()`: the experience is in memory, the log continues where it was left."""
        assert self.log is not None
        if self.position is None or not self._all_is_written:
            raise ExperienceLogError(
                f"{self.log.path} lacks what happened since its last commit, which failed. Make a new trainer and resume from "
                "the last checkpoint."
            )
        origin = origins.describe(self.trainer, origins.tokenizer_json(self.trainer))
        self.log.begin(origin, self.position, self.trainer._optimizer_step)
        self.commit(planner)

    def _begin(
        self, planner: ReplayPlanner, checkpoint: str | None, facts: CheckpointFacts | None, ahead: bool
    ) -> Opened:
        assert self.log is not None
        tokenizer = origins.tokenizer_json(self.trainer)
        origin = origins.describe(self.trainer, tokenizer)
        if tokenizer is not None:
            self.log.add_tokenizer(origin.tokenizer, tokenizer)
        choices: dict[int, Choice] | None = None
        if checkpoint is not None:
            choices = self._resume(planner, origin, checkpoint, facts)
        elif ahead and self.position is not None:
            planner.restore(self._rebuild(planner, origin, self.position))
            logger.warning("The generation that was given up half way is not in the log, and is planned anew.")
        else:
            self._start_anew(planner, origin)
        with self.log.at_step(self.trainer._optimizer_step):
            planner.buffer.shrink()
        self.commit(planner)
        shared = self.accelerator.num_processes > 1
        return Opened(
            snapshot_of(planner.buffer) if shared else None,
            self._state(planner),
            choices,
            planner.diversity if shared else None,
        )

    def _start_anew(self, planner: ReplayPlanner, origin: Origin) -> None:
        assert self.log is not None
        position = self.log.reader.position()
        if position is not None and position.seq and self.config.experience_from is None:
            logger.warning(
                "%s holds the experience of an earlier run. It stays there; this run starts with none, on a branch of its own. "
                "To continue that run: train(resume_from_checkpoint=True); to start from what it holds: experience_from=%r.",
                self.log.path,
                str(self.log.path),
            )
        self.log.begin(origin, None, self.trainer._optimizer_step)
        if (path := self.config.experience_from) is not None:
            with open_source(path) as source:
                self._inherit(planner, origin, source)

    def _inherit(self, planner: ReplayPlanner, origin: Origin, source: Source, keep_retired: bool = False) -> None:
        assert self.log is not None
        step = self.trainer._optimizer_step
        source = replace(source, trajectories=committing(source.trajectories, self.log, self._state(planner)))
        report = inherit(
            source, planner.buffer, self.log, origin, step, origins.rescorer(self.trainer), origins.bounds(self.trainer),
            reads=origins.reads(self.trainer), keep_retired=keep_retired,
        )  # fmt: skip
        logger.warning("Experience from %s: %s.", source.name, report)

    def _resume(
        self, planner: ReplayPlanner, origin: Origin, checkpoint: str, facts: CheckpointFacts | None
    ) -> dict[int, Choice] | None:
        """Become what the checkpoint's run was. Returns the stored trajectories of the generation under way, or None where
        there is none that can be learned from on."""
        assert self.log is not None
        assert facts is not None and facts.log is not None
        position = Position(**facts.log)
        reader, step = self.log.reader, self.trainer._optimizer_step
        reader.lineage(position)  # is it there?
        before = reader.origin_of(position.branch)
        changed = before.differences(origin)
        if before.questions != origin.questions and "tokenizer" not in changed and "chat template" not in changed:
            changed.append("dataset")
        changed = [what for what in changed if what != "model"]
        if changed:
            logger.warning(
                "Resuming from %s under another %s: not bit-equal. Experience is matched by content, and the passes over "
                "the data start anew%s.",
                checkpoint,
                ", another ".join(changed),
                "; the rest of the generation under way is left out" * facts.in_block,
            )
            state = reader.state(position)
            self.log.begin(origin, None, step, f"continues {checkpoint} under another {', '.join(changed)}")
            planner.restore(replace(state, step=step, pass_number=0, cursor=0, deferred=()))
            self._inherit(planner, origin, source_of(reader, position), keep_retired=before.rewards == origin.rewards)
            return None
        end = reader.end()
        state = self._rebuild(planner, origin, position)
        if origins.order_of_data(before) != origins.order_of_data(origin):
            logger.warning("Another seed or shuffling than before: the passes over the data start anew.")
            state = replace(state, pass_number=0, cursor=0, deferred=())
        planner.restore(state)
        logger.warning(
            "Resumed from %s with %d trajectories of %d questions%s.",
            checkpoint,
            len(planner.buffer),
            planner.buffer.num_replayable,
            f"; {end - position.seq} later events of the log are left on a branch of their own" * (end > position.seq),
        )
        if not facts.in_block:
            return None
        saved = [load_block(Path(checkpoint), rank) for rank in range(facts.world_size)]
        serials = sorted({serial for block in saved for serial in serials_of(block)})
        choices = {s: Choice(s, t) for s, t in zip(serials, self.log.get_many(serials), strict=True)}
        if facts.shape == self.trainer.block_shape:
            return choices
        self._admit_rest(planner, saved, choices)
        return None

    def _rebuild(self, planner: ReplayPlanner, origin: Origin, position: Position) -> PlannerState:
        """Give a planner the experience of a position, on a branch that continues it; what else it was there."""
        assert self.log is not None
        reader = self.log.reader
        self.log.begin(origin, position, self.trainer._optimizer_step)
        indices = self.log.indices()
        state = rebuild(reader, planner.buffer, position, indices)
        if planner.diversity is not None:
            for _, question, vector in reader.embeddings(reader.lineage(position), origin.embedding):
                planner.diversity.add(int(indices[question]), vector)
        return state

    def _admit_rest(self, planner: ReplayPlanner, saved: list[SavedBlock], choices: dict[int, Choice]) -> None:
        """A batch that was cut otherwise is not learned from on, but its successes are stored."""
        parts = [unpacked(block, choices) for block in saved]
        stored = 0
        if not parts[0].admitted:
            for part in parts:
                if self.trainer.embedder is not None and part.wanted:
                    vectors = embed(self.trainer.embedder, self.trainer.texts_of(part))
                    part.embeddings |= zip(part.wanted, vectors, strict=True)
            harvest = merge([part.harvest() for part in parts])
            stored = planner.admit(parts[0].trajectories(harvest), parts[0].groups())
        logger.warning(
            "The checkpoint lies within a generation whose batch was cut for %d processes and other options. Its remaining "
            "updates are left out, its %d new successes are stored, and the next generation begins.",
            len(saved),
            stored,
        )

    # While training ---------------------------------------------------------------------------------------------

    def _state(self, planner: ReplayPlanner) -> PlannerState:
        return planner.state(self.trainer._optimizer_step, self.trainer.generated_tokens)

    def commit(self, planner: ReplayPlanner, checkpoint: bool = False) -> Position | None:
        """Write down what happened; on the main process."""
        if self.log is None:
            return None
        snapshot = snapshot_of(planner.buffer) if checkpoint else None
        self._has_begun, self._all_is_written = True, False
        self.position = self.log.commit(self._state(planner), checkpoint, snapshot)
        self._all_is_written = True
        return self.position

    def checkpoint(self, planner: ReplayPlanner, folder: Path) -> dict[str, Any] | None:
        """Commit for a checkpoint in a folder; every process gets the position, or the error that makes the checkpoint
        fail."""
        if not self.config.keeps_log:
            return None
        position = on_main(self.accelerator, lambda: self._commit_and_copy(planner, folder))
        return None if position is None else asdict(position)

    def _commit_and_copy(self, planner: ReplayPlanner, folder: Path) -> Position | None:
        position = self.commit(planner, checkpoint=True)
        if self.log is not None and is_shared(folder) and not is_shared(self.log.path):  # of this machine alone
            self.log.copy_to(folder / FILE_NAME)
        return position

    def pause(self, planner: ReplayPlanner, done: bool) -> None:
        """Training is over for now: free the log for others; `done` if nothing went wrong. A generation that was given up
        before its results were written leaves nothing in the log."""
        if self.log is None or not self._has_begun:
            self._close()
            return
        try:
            self._is_ahead = not done and self._all_is_written and self.log.waits
            try:
                if not self._is_ahead:
                    self.commit(planner)
            finally:
                self.log.pause()
        except ExperienceLogError:
            if done:
                raise
            logger.exception("What happened since the last commit of %s could not be written.", self.log.path)


def restore_copy(copy: Path, path: Path, position: Position) -> None:
    """Where a log is gone, or does not reach a checkpoint's position, put the checkpoint's copy in its place."""
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
            why = str(error)
    else:
        why = "it is not there"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = WriterLock(path)
    lock.acquire()
    try:
        if path.is_file():
            os.replace(path, path.with_name(f"{path.name}.left-behind"))
        beside = path.with_name(f".{path.name}.copy")
        shutil.copyfile(copy, beside)
        put_in_place(beside, path)
    finally:
        lock.release()
    logger.warning("%s is taken from the checkpoint's copy, %s (%s).", path, copy, why)


@contextmanager
def open_source(path: str) -> Iterator[Source]:
    """A source by its path: an output directory, a log, or an exported folder."""
    place = Path(path).expanduser()
    if place.is_dir() and log_in(place).is_file():
        place = log_in(place)
    if place.is_dir():
        from ..archive.parquet import read_folder

        yield read_folder(place)
    else:
        with LogReader(place) as reader:
            yield source_of(reader)
