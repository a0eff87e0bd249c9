"""The file system that a log lies on, and the SQLite journal that works there.

A write-ahead log needs memory that processes share through a file, and locks on that file: network and cluster file systems
may give neither. A rollback journal needs locks on the log alone; where there are none of these either, SQLite's are left
out, and the lock of the one process that writes must do.
"""

import errno
import logging
import os
import re
import tempfile
from functools import cache
from pathlib import Path

from ..errors import ConfigurationError

logger = logging.getLogger(__name__)

WAL, ROLLBACK, UNLOCKED = JOURNALS = ("wal", "rollback", "unlocked")
"""A write-ahead log; a rollback journal; a rollback journal without SQLite's locks."""

VARIABLE = "EXGRPO_LOG_JOURNAL"
"""Environment variable that overrides the detection here."""

SHARED = {
    "9p", "afs", "beegfs", "beegfs_nodev", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
}  # fmt: skip
LACKS_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
MOUNTS = Path("/proc/self/mounts")


def kind_of(path: Path) -> str:
    """Return the kind of file system that a file lies on, or will lie on; empty where unknown."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    place, kind, length = path.resolve(), "", -1
    for line in lines:
        _, mount, found, *_ = line.split(" ")
        mount = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), mount)
        if place.is_relative_to(mount) and len(mount) >= length:  # later mounts cover earlier ones
            kind, length = found, len(mount)
    return kind


def is_shared(path: Path) -> bool:
    """Return whether a file lies on a network or cluster file system, or on one in user space."""
    kind = kind_of(path)
    return kind in SHARED or (kind.startswith("fuse") and kind != "fuseblk")


def lock_error(folder: Path) -> OSError | None:
    """Return why files in a folder cannot be locked; None if they can, or if it cannot be tried."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".experience.lock-") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error if error.errno in LACKS_LOCKS else None
    return None


def journal_for(path: Path) -> str:
    """Return the journal for a log that is written here; log it, once, where it is not a write-ahead log."""
    if given := os.environ.get(VARIABLE):
        if given not in JOURNALS:
            raise ConfigurationError(f"{VARIABLE} must be one of {', '.join(JOURNALS)}, but is {given!r}.")
        return given
    if error := lock_error(path.parent):
        say_once(
            f"{path.parent} is on a file system that refuses locks ({error}). The log is kept there with a rollback journal "
            "and without SQLite's locks: do not read it while it is written. experience_log=PATH puts it on a local disk."
        )
        return UNLOCKED
    if is_shared(path):
        say_rollback(path, f"its file system is {kind_of(path)}")
        return ROLLBACK
    return WAL


def say_rollback(path: Path, why: str) -> None:
    say_once(
        f"{path} is kept with a rollback journal in place of a write-ahead log, since {why}: what reads it waits while a "
        "commit is written. experience_log=PATH puts it on a local disk."
    )


@cache
def say_once(text: str) -> None:
    logger.warning("%s", text)
