"""The experience log: an append-only SQLite file from which the buffer follows."""

from .connection import FILE_NAME, PRIVATE_NAME, log_in
from .facts import Branch, Origin, PlannerState, Position, QuestionFacts, Questions
from .inherit import Inherited, Source, inherit, source_of
from .reader import LogReader
from .rebuild import rebuild
from .store import StoredTrajectories
from .writer import LogWriter

__all__ = [
    "FILE_NAME", "PRIVATE_NAME", "Branch", "Inherited", "LogReader", "LogWriter", "Origin", "PlannerState", "Position",
    "QuestionFacts", "Questions", "Source", "StoredTrajectories", "inherit", "log_in", "rebuild", "source_of",
]  # fmt: skip
