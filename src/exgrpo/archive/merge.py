"""Bringing experience together: several logs into one, and exports into logs."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import ConfigurationError, ExperienceLogError
from ..experience.buffer import ExperienceBuffer
from ..experience.events import PlannerState, Retired
from ..experience.replayed import snapshot_of
from ..log.connection import WriterLock, damaged, put_in_place
from ..log.reader import LogReader
from ..log.rebuild import rebuild
from ..log.records import Position, Provenance, QuestionRecord, name_of
from ..log.snapshot import config_of
from ..log.writer import INHERITED, LogWriter
from .exported import read_export
from .transfer import Inherited, KnownTrajectory, Source, import_experience, source_of

TOKENS_PER_COMMIT = 4_000_000
UNBOUNDED = (1 << 31) - 1


class ListedQuestions:
    """Questions from a list, as a log writer needs them."""

    def __init__(self, records: Sequence[QuestionRecord]):
        self._records = records
        self.keys = tuple(question.key for question in records)

    def record(self, question: int) -> QuestionRecord:
        return self._records[question]


@dataclass
class Gathered:
    """A report of what came into a log.

    Args:
        into: the log.
        branch: its new branch.
        sources: of each source its name and what was taken over.
        trajectories, questions: stored now in all.
        warnings: what a user should know.
    """

    into: Path
    branch: int
    sources: list[tuple[str, Inherited]] = field(default_factory=list)
    trajectories: int = 0
    questions: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _From:
    """A source, under which circumstances its run ended, and where its tokenizers are."""

    source: Source
    origin: Provenance
    started: str = ""
    tokenizer: Callable[[str], str | None] = lambda digest: None


def merge(paths: Sequence[Path | str], into: Path | str) -> Gathered:
    """Merge what several logs hold now into a new log, each imported in turn as by `experience_from`.

    Where two know the same question, the accuracy of the later one counts; steps are counted back from where each
    ended.

    Questions of a log with another tokenizer or chat template than the newest one has are left out, with a report.

    Args:
        paths: of the logs.
        into: of the new one.

    Raises:
        ConfigurationError: two are the same.
        ExperienceLogError: `into` exists, or a log cannot be read.
    """
    into = Path(into)
    _refuse_existing(into)
    with contextlib.ExitStack() as stack:
        found, ends = list[_From](), dict[Position | None, Path | str]()
        for path in paths:
            reader = stack.enter_context(LogReader(path))
            if (end := reader.position()) in ends:
                raise ConfigurationError(
                    f"{path} holds the same as {ends[end]}: name each log once, or what was observed would count twice."
                )
            ends[end] = path
            found.append(_from_log(reader))
        origin = max(reversed(found), key=lambda one: one.started).origin
        return _new_log(found, origin, into, "merged")


def import_folder(folder: Path | str, into: Path | str) -> Gathered:
    """Import an export into a log: a new one, or a new branch that continues the newest of an existing one.

    Args:
        folder: that `export` wrote.
        into: path of the log.

    Raises:
        ExperienceLogError: the folder is no export, or a row of it is not as it must be; the log is then as it was.
        LogInUseError: a trainer writes the log.
    """
    into = Path(into)
    export = read_export(folder)
    found = _From(export.source, export.origin, tokenizer=export.tokenizer)
    export.tokenizer(export.origin.tokenizer)  # raises if it cannot be read
    if into.exists():
        for _ in export.source.trajectories:  # all of it, before anything is written
            pass
    return _import(found, into)


def import_source(source: Source, tokenizer: str | None, into: Path | str) -> Gathered:
    """Import experience in memory into a log, wholly or not at all.

    The log is new, or gets a new branch that continues its newest.

    Args:
        source: what to take over.
        tokenizer: of its origin, as JSON of the `tokenizers` library.
        into: path of the log.

    Raises:
        ExperienceLogError, DamagedLogError: the log cannot be used.
        LogInUseError: a trainer writes it.
    """
    here = source.origin.tokenizer
    found = _From(source, source.origin, tokenizer=lambda digest: tokenizer if digest == here else None)
    return _import(found, Path(into), at_once=True)


def _import(found: _From, into: Path, at_once: bool = False) -> Gathered:
    if not into.exists():
        return _new_log([found], found.origin, into, "imported")
    with LogReader(into) as reader:
        records = [question for _, question in reader.questions()]
        position = reader.position()
        if position is None:
            raise damaged(into, "it has no branch")
        origin = reader.origin_of(position.branch)
    questions = ListedQuestions(_union(records, [found], origin))
    with contextlib.closing(LogWriter(into, questions)) as log:
        position = log.reader.position()
        buffer = _buffer(log, origin)
        state = rebuild(log.reader, buffer, position, log.question_map)
        log.begin(origin, position, state.step, f"imported {found.source.name}")
        buffer.listener = log
        return _take_over([found], buffer, log, origin, state, at_once)


def _from_log(reader: LogReader) -> _From:
    position = reader.position()
    if position is None:
        raise ExperienceLogError(f"{reader.path} holds nothing yet: nothing to merge.")
    branch = reader.branches[position.branch]
    return _From(source_of(reader, position), reader.origins()[branch.origin], branch.started, reader.tokenizer)


def _refuse_existing(into: Path) -> None:
    if into.exists():
        raise ExperienceLogError(f"{into} exists already. Give the path of a new file.")


def _union(records: Sequence[QuestionRecord], found: Sequence[_From], origin: Provenance) -> list[QuestionRecord]:
    """Return all questions once: those of the log, then those of sources in which token ids mean the same."""
    known = {question.key: question for question in records}
    for one in found:
        if (one.origin.tokenizer, one.origin.template) == (origin.tokenizer, origin.template):
            for question in one.source.questions:
                known.setdefault(question.record.key, question.record)
    return list(known.values())


def _buffer(log: LogWriter, origin: Provenance) -> ExperienceBuffer:
    """Return a buffer without bounds: a run's own capacities apply when it opens the log."""
    n = len(log.questions.keys)
    config = replace(config_of(origin), capacity=UNBOUNDED, capacity_per_question=UNBOUNDED)
    return ExperienceBuffer(n, max(1, origin.num_generations), config, store=log)


def _new_log(found: Sequence[_From], origin: Provenance, into: Path, verb: str) -> Gathered:
    """Write a new log beside its place, and move it there once it is complete."""
    beside = into.with_name(f".{into.name}.new")
    _remove_unfinished(beside)
    try:
        with contextlib.closing(LogWriter(beside, ListedQuestions(_union([], found, origin)))) as log:
            log.begin(origin, note=f"{verb} {', '.join(one.source.name for one in found)}")
            buffer = _buffer(log, origin)
            buffer.listener = log
            report = _take_over(found, buffer, log, origin, PlannerState())
        _refuse_existing(into)
        put_in_place(beside, into)
        report.into = into
    finally:
        with contextlib.suppress(ExperienceLogError):
            _remove_unfinished(beside)
    return report


def _remove_unfinished(beside: Path) -> None:
    """Remove files of processes that were killed or failed here, not of one that is still writing."""
    if not beside.parent.is_dir():
        return
    lock = WriterLock(beside)
    lock.acquire()
    lock.release()
    for suffix in ("", "-wal", "-shm", "-journal", ".lock"):
        Path(f"{beside}{suffix}").unlink(missing_ok=True)


def _take_over(
    found: Sequence[_From],
    buffer: ExperienceBuffer,
    log: LogWriter,
    origin: Provenance,
    state: PlannerState,
    at_once: bool = False,
) -> Gathered:
    report = Gathered(log.path, log.reader.head or 0)
    for one in found:
        if (text := one.tokenizer(origin.tokenizer)) is not None:
            log.add_tokenizer(origin.tokenizer, text)
        if one.origin.architecture != origin.architecture:
            report.warnings.append(
                f"{one.source.name} was made by another model ({name_of(one.origin.model) or 'unnamed'}) than "
                f"{name_of(origin.model) or 'this'}: "
                "its trajectories are taken over all the same, as those of another policy."
            )
        source = one.source
        if not at_once:
            source = replace(source, trajectories=committing(source.trajectories, log, state))
        report.sources.append((one.source.name, import_experience(source, buffer, log, origin, state.step)))
    _retire(found, buffer, log, origin, state, report)
    log.commit(state, snapshot=snapshot_of(buffer))
    report.trajectories, report.questions = len(buffer), int((buffer.count > 0).sum())
    return report


def _retire(
    found: Sequence[_From],
    buffer: ExperienceBuffer,
    log: LogWriter,
    origin: Provenance,
    state: PlannerState,
    report: Gathered,
) -> None:
    """Retire questions that the last source that knew them had retired, if no trajectory of theirs came in."""
    here = {key: index for index, key in enumerate(log.questions.keys)}
    said = dict[int, bool]()
    for one in found:
        if one.source.origin.rewards == origin.rewards:
            known = (q for q in one.source.questions if q.record.key in here and (q.scorable or q.retired))
            said |= {here[q.record.key]: q.retired for q in known}
    for index in sorted(index for index, retired in said.items() if retired):
        if not buffer.count[index] and not buffer.retired[index]:
            buffer.retire(index)
            buffer.listener(Retired(INHERITED, state.step, index))
    for one, (_, inherited) in zip(found, report.sources, strict=True):
        had = [here[q.record.key] for q in one.source.questions if q.retired and q.record.key in here]
        inherited.retired = sum(bool(buffer.retired[index]) for index in had)
        inherited.fresh_again = len(had) - inherited.retired


def committing(
    trajectories: Iterable[KnownTrajectory], log: LogWriter, state: PlannerState
) -> Iterator[KnownTrajectory]:
    """Yield trajectories, and commit now and then, so that uncommitted ones do not fill the memory."""
    tokens = 0
    for known in trajectories:
        yield known
        tokens += len(known.trajectory)
        if tokens >= TOKENS_PER_COMMIT:
            log.commit(state)
            tokens = 0
