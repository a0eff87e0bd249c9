"""Taking over experience from another log, run or export: matched by content, never by number."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

import numpy as np

from ..errors import ExperienceLogError
from ..experience.buffer import ExperienceBuffer
from ..experience.events import Observed, Retired
from ..experience.replayed import apply
from ..experience.trajectory import FloatArray, Trajectory
from ..log.reader import LogReader
from ..log.rebuild import empty_buffer, rebuild
from ..log.records import Position, Provenance, QuestionRecord, Questions, name_of
from ..log.store import StoredTrajectories
from ..log.writer import INHERITED, LogWriter

CHUNK = 256


@dataclass(frozen=True)
class KnownQuestion:
    """A question of a source: content, latest accuracy, and whether it had retired.

    `scorable` 0: no accuracy is known; `reward_std`: of the group seen at `step`, None: not known.
    """

    record: QuestionRecord
    successes: int
    scorable: int
    step: int
    reward_std: float | None = None
    retired: bool = False


@dataclass(frozen=True)
class KnownTrajectory:
    """A trajectory of a source, its `question` being the place in the source's questions."""

    trajectory: Trajectory
    origin: Provenance


@dataclass
class Source:
    """Experience that can be taken over: what a log holds at a position, or what an export holds.

    Args:
        name: for messages.
        end: optimizer steps done where it ends; ages are counted from there.
        questions: all that were seen.
        trajectories: what is stored, oldest first; read as it is asked for.
        unreadable: ids of trajectories that were skipped because they are damaged.
        origin: of the run that it ends with.
    """

    name: str
    end: int
    questions: Sequence[KnownQuestion]
    trajectories: Iterable[KnownTrajectory]
    unreadable: list[int] = field(default_factory=list)
    origin: Provenance = field(default_factory=Provenance)


@dataclass
class Inherited:
    """A report of what was imported, and why the rest was left out.

    `left_out`: reason -> trajectories. `retired`: questions that stay so. `fresh_again`: questions that had retired,
    and have not here. `ignored`: columns that differ in questions matched all the same: column -> questions.
    """

    taken: int = 0
    questions: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    retired: int = 0
    fresh_again: int = 0
    ignored: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        reasons = "; ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())
        out = f", {self.left_out.total()} left out ({reasons})" if self.left_out else ""
        names = _listed(self.ignored)
        ignored = f"; matched although {names} is another, which no reward function reads" if names else ""
        retired = f", {self.retired} questions stay retired" if self.retired else ""
        fresh = f", {self.fresh_again} questions that had retired are fresh here" if self.fresh_again else ""
        return f"{self.taken} trajectories of {self.questions} questions taken over{retired}{fresh}{out}{ignored}"


def _listed(names: Iterable[str]) -> str:
    listed = [f"column {name!r}" for name in sorted(names)]
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


def source_of(reader: LogReader, position: Position | None = None, skip_damaged: bool = False) -> Source:
    """Return the content of a log at a position, by default at the end of its newest branch.

    Raises:
        DamagedLogError: it cannot be trusted; with `skip_damaged` only where its events cannot, not for tokens.
    """
    position = position or reader.position()
    lineage = reader.lineage(position)
    records = dict(reader.questions())
    store = StoredTrajectories(reader, lineage)
    buffer = empty_buffer(reader, position, store)
    state = rebuild(reader, buffer, position)
    seen: dict[int, tuple[int, float | None]] = {}
    for span in lineage:
        sql = (
            "SELECT question, step, spread, max(seq) FROM observation WHERE branch = ? AND seq <= ? AND scorable > 0 "
            "GROUP BY question"
        )
        seen |= {
            question: (step, reward_std) for question, step, reward_std, _ in reader.rows(sql, (span.branch, span.last))
        }
    numbers = sorted(records)
    place = {number: i for i, number in enumerate(numbers)}
    questions = [
        KnownQuestion(
            records[n],
            int(buffer.questions.successes[n]),
            int(buffer.questions.scorable[n]),
            *seen.get(n, (0, None)),
            retired=bool(buffer.retired[n]),
        )
        for n in numbers
    ]
    origin = Provenance() if position is None else reader.origin_of(position.branch)
    source = Source(str(reader.path), state.step, questions, (), origin=origin)
    source.trajectories = _trajectories(reader, buffer, store, place, source.unreadable if skip_damaged else None)
    return source


def _trajectories(
    reader: LogReader,
    buffer: ExperienceBuffer,
    store: StoredTrajectories,
    place: dict[int, int],
    unreadable: list[int] | None,
) -> Iterator[KnownTrajectory]:
    origins = reader.origins()
    for serial in np.sort(buffer.column("serial")[buffer.live_slots()]).tolist():
        number = store.id_of(serial)
        try:
            trajectory = reader.trajectory(number)
        except ExperienceLogError:
            if unreadable is None:
                raise
            unreadable.append(number)
            continue
        (origin,) = next(reader.rows("SELECT origin FROM trajectory WHERE id = ?", (number,)))
        yield KnownTrajectory(replace(trajectory, question=place[trajectory.question]), origins[origin])


@dataclass(frozen=True)
class Bounds:
    """Limits that imported trajectories must satisfy.

    Token ids below `vocabulary`, `rewards` of them each, and whatever this run `admits`, by default right ones.
    """

    vocabulary: int
    rewards: int
    admits: Callable[[Trajectory], bool] = attrgetter("correct")

    def left_out(self, known: KnownTrajectory) -> str | None:
        if not self.admits(known.trajectory):
            return "that this run would not store"
        if int(known.trajectory.completion_ids.max()) >= self.vocabulary:
            return "with token ids beyond the model's vocabulary"
        return (
            None if len(known.trajectory.rewards) == self.rewards else "with another number of rewards than functions"
        )


Rescore = Callable[[Sequence[Trajectory]], Sequence[FloatArray | None]]


def import_experience(
    source: Source,
    buffer: ExperienceBuffer,
    log: LogWriter,
    origin: Provenance,
    step: int = 0,
    rescore: Rescore | None = None,
    bounds: Bounds | None = None,
    stored: Callable[[Trajectory], None] = lambda trajectory: None,
    reads: Collection[str] | None = None,
    keep_retired: bool = False,
) -> Inherited:
    """Import a source's experience into a buffer and its log, as if stored here before the run began.

    A question is the same if its content hash is: prompt ids (tokenizer and chat template with them) and all columns; or,
    under the same tokenizer and chat template, if its prompt is, and all columns that reward functions read. Steps are
    counted back from where the source ended, so that its newest trajectory has age 0 and a negative step now. Entropies
    are those of another policy: they are forgotten, and measured again when they matter; so are embeddings and qualities of
    another encoder, and advantages under other reward functions. What had retired there has no trajectories, and is fresh
    here unless it is to stay retired: under other reward functions it never does, nor where something of it is stored here.

    Args:
        source: what to take over.
        buffer: into which; its capacities hold.
        log: among what listens to the buffer.
        origin: of this run.
        step: optimizer steps done here.
        rescore: gives new rewards for trajectories whose reward functions were others; None for one that is not right
            under the new ones.
        bounds: of this run's model and reward functions.
        stored: is told of each trajectory that is stored, in order: what measures diversity must see these embeddings, as
            `LogReader.embeddings` gives them to a run that is resumed.
        reads: columns that this run's reward functions read; None: it cannot be told, and all of them count.
        keep_retired: whether questions that had retired stay so.

    Returns:
        What was taken over, and what was left out for which reason.
    """
    report = Inherited()
    same_words = (source.origin.tokenizer, source.origin.template) == (origin.tokenizer, origin.template)
    matches = _Matches(source.questions, log.questions, reads, same_words, report)
    for question, index in zip(source.questions, matches.index_of, strict=True):
        if index is not None and question.scorable:
            at = step + question.step - source.end
            reward_std = np.nan if question.reward_std is None else question.reward_std
            event = Observed(INHERITED, at, index, question.successes, question.scorable, 0, False, reward_std)
            buffer.listener(event)
            apply(buffer, event)
    had_retired = [i for q, i in zip(source.questions, matches.index_of, strict=True) if i is not None and q.retired]
    before, admitted, touched = len(buffer), 0, set[int]()
    for chunk in _chunks(source.trajectories):
        matching = _matching(chunk, matches, step - source.end, origin, report)
        fitting = []
        for known in _with_rewards(matching, origin, rescore, report):
            if bounds is not None and (reason := bounds.left_out(known)) is not None:
                report.left_out[reason] += 1
            else:
                fitting.append(known)
        for made_by, group in groupby(fitting, attrgetter("origin")):
            trajectories = [known.trajectory for known in group]
            with log.origin_of_others(made_by):
                serials = buffer.admit(trajectories)
            new = [t for t, serial in zip(trajectories, serials, strict=True) if serial is not None]
            for trajectory, serial in zip(trajectories, serials, strict=True):
                if serial is None:
                    retired = buffer.retired[trajectory.question]
                    report.left_out["whose question has retired here" if retired else "already stored"] += 1
            admitted += len(new)
            touched.update(t.question for t in new)
            for trajectory in new:
                stored(trajectory)
    for index in had_retired:
        if keep_retired and source.origin.rewards == origin.rewards and not buffer.count[index]:
            if not buffer.retired[index]:
                buffer.retire(index)
                buffer.listener(Retired(INHERITED, step, index))
            report.retired += 1
        else:
            report.fresh_again += not buffer.retired[index]
    report.taken, report.questions = len(buffer) - before, int((buffer.count[sorted(touched)] > 0).sum())
    if lost := admitted - report.taken:
        report.left_out["pushed out by newer ones, over the capacity"] = lost
    if source.unreadable:
        report.left_out["damaged"] += len(source.unreadable)
    return report


class _Matches:
    """The map from a source's questions to this run's.

    Attributes:
        index_of: of each question of the source its number in this run, or None.
        others: of questions that have the same prompt here, but are others, why; by their place in the source.
        by_prompt: places in the source of questions whose content hash is another one here.
    """

    def __init__(
        self,
        known: Sequence[KnownQuestion],
        questions: Questions,
        reads: Collection[str] | None,
        same_words: bool,
        report: Inherited,
    ):
        here = {key: index for index, key in enumerate(questions.keys)}
        self.index_of = [here.get(question.record.key) for question in known]
        self.others: dict[int, str] = {}
        self.by_prompt = set[int]()
        unmatched = [place for place, index in enumerate(self.index_of) if index is None]
        if not unmatched or not same_words:
            return
        free: dict[str, list[tuple[int, dict[str, str]]]] = {}
        for index in sorted(set(range(len(questions.keys))) - set(self.index_of)):
            record = questions.record(index)
            if record.prompt is not None:
                free.setdefault(record.prompt, []).append((index, _columns(record)))
        for place in unmatched:
            there = _columns(known[place].record)
            candidates = free.get(known[place].record.prompt or "", [])
            for candidate in candidates:
                index, columns = candidate
                differ = {name for name in {*there, *columns} if there.get(name) != columns.get(name)}
                if not (wrong := differ & set(columns if reads is None else reads)):
                    candidates.remove(candidate)
                    self.index_of[place] = index
                    self.by_prompt.add(place)
                    report.ignored.update(differ)
                    break
                self.others.setdefault(place, f"whose question has another {_listed(wrong)} in this dataset")


def _columns(record: QuestionRecord) -> dict[str, str]:
    """Return each column's value as JSON."""
    columns = json.loads(record.columns or "{}")
    return {name: json.dumps(value, sort_keys=True) for name, value in columns.items()}


def _matching(
    chunk: Sequence[KnownTrajectory], matches: _Matches, shift: int, origin: Provenance, report: Inherited
) -> list[KnownTrajectory]:
    """Return trajectories of this run for those whose token ids and question mean the same here."""
    matching = []
    for known in chunk:
        trajectory, place = known.trajectory, known.trajectory.question
        index = matches.index_of[place]
        if known.origin.tokenizer != origin.tokenizer:
            report.left_out["made with another tokenizer"] += 1
        elif (index is None or place in matches.by_prompt) and known.origin.template != origin.template:
            report.left_out["made with another chat template"] += 1
        elif index is None:
            report.left_out[matches.others.get(place, "whose question is not in this dataset")] += 1
        else:
            at = trajectory.step + shift
            moved = replace(trajectory, question=index, step=at, entropy=np.nan, entropy_step=None)
            if name_of(known.origin.embedding) != name_of(origin.embedding):
                moved = replace(moved, quality=np.nan, embedding=None)
            matching.append(KnownTrajectory(moved, known.origin))
    return matching


def _chunks(items: Iterable[KnownTrajectory]) -> Iterator[list[KnownTrajectory]]:
    chunk: list[KnownTrajectory] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _with_rewards(
    chunk: Sequence[KnownTrajectory], origin: Provenance, rescore: Rescore | None, report: Inherited
) -> Iterator[KnownTrajectory]:
    """Yield trajectories with rewards of this run's functions.

    Those scored by the same functions as they are; of others, in their order, those that are right under this run's
    functions.
    """
    others = [known.trajectory for known in chunk if known.origin.rewards != origin.rewards]
    if others and rescore is None:
        report.left_out["scored by other reward functions"] += len(others)
        scores: Iterator[FloatArray | None] = iter([None] * len(others))
    else:
        scores = iter(rescore(others) if others and rescore is not None else [])
    for known in chunk:
        if known.origin.rewards == origin.rewards:
            yield known
            continue
        rewards = next(scores)
        if rewards is not None:
            was = known.trajectory
            quality = was.quality if was.correct else np.nan  # success is part of the quality
            scored = replace(was, rewards=np.asarray(rewards), correct=True, advantage=np.nan, quality=quality)
            yield KnownTrajectory(scored, replace(known.origin, rewards=origin.rewards))
        elif rescore is not None:
            report.left_out["not right under this run's reward functions"] += 1
