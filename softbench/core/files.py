"""Writing files atomically, and the error if that fails."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from softbench.core.errors import ResultsError, SoftbenchError, StorageError

FULL = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space of that quota",
    errno.EROFS: "choose a folder on another disk",
    errno.EFBIG: "raise the limit of a file's size: ulimit -f",
}
"""The next step after an error of the disk, which is no error of the command line."""


def not_written(what: object, error: OSError) -> SoftbenchError:
    """The error if `what` (a file, or a flag and its value) cannot be written: a StorageError for a full disk, else a ResultsError."""
    text = f"{what}: cannot be written: {error.strerror}"
    return StorageError(f"{text}; {FULL[error.errno]}") if error.errno in FULL else ResultsError(text)


def replace_file(path: Path, content: str | bytes) -> None:
    """Replace a file atomically: at any moment it is the complete old or new file."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces the one at `path` when the block ends, at once. An exception leaves the old file."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(file.name).unlink()
            raise


def reject_folder(path: Path) -> None:
    """Raises ResultsError for what is not a file of results."""
    if path.is_dir():
        raise ResultsError(f"{path}: is a folder; name a file in it: softbench runs {path} lists them")
    if path.exists() and not path.is_file():
        raise ResultsError(f"{path}: is not a file")


def no_link(path: str, flags: int) -> int:
    """An opener for `open` that raises OSError for a symbolic link, which may name a file of another folder."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""What `flock` says on a file system without locks: NFS without its lock daemon, Lustre that was mounted without `flock`."""


def lock(file: IO[bytes], how: int) -> bool:
    """Lock a file as `fcntl.flock`. False if its file system has no locks; two processes may then use the file at once.

    Raises:
        BlockingIOError: another process has the lock, and `how` has LOCK_NB.
    """
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True
