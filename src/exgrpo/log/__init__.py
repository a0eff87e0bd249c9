"""The experience log: an append-only SQLite file from which the buffer follows."""

from .connection import FILE_NAME, PRIVATE_NAME, log_in
from .reader import LogReader
from .rebuild import rebuild
from .records import Branch, Position, Provenance, QuestionRecord, Questions
from .store import StoredTrajectories
from .writer import LogWriter

__all__ = [
    "FILE_NAME",
    "PRIVATE_NAME",
    "Branch",
    "LogReader",
    "LogWriter",
    "Position",
    "Provenance",
    "QuestionRecord",
    "Questions",
    "StoredTrajectories",
    "log_in",
    "rebuild", ]  # fmt: skip
