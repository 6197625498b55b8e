"""Writing files atomically, and the error if that fails."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import IO

from softbench.core.errors import ResultsError, SoftbenchError, StorageError

FULL = {
    errno.ENOSPC: "free space on that disk",
    errno.EDQUOT: "free space of that quota",
    errno.EROFS: "choose a folder on another disk",
    errno.EFBIG: "raise the limit of a file's size: ulimit -f",
}
"""The next step after an error of the disk, which is no error of the command line."""
SYNC_SECONDS = 1.0
"""What a crash of the host can take of a journal."""


def not_written(what: object, error: OSError) -> SoftbenchError:
    """The error if `what` (a file, or a flag and its value) cannot be written: a StorageError for a full disk, else a ResultsError."""
    text = f"{what}: cannot be written: {error.strerror}"
    return StorageError(f"{text}; {FULL[error.errno]}") if error.errno in FULL else ResultsError(text)


def replace_file(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Replace a file atomically: at any moment it is the complete old or new file. `durable`: as `replacing`."""
    with replacing(path, durable=durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, *, durable: bool = False) -> Iterator[IO[bytes]]:
    """A file that replaces the one at `path` when the block ends, at once. An exception leaves the old file.

    `durable`: the new file is on the disk when the block has ended, so that a crash of the host cannot take it back.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
            if durable:
                sync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                Path(file.name).unlink()
            raise


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files on the disk. Errors are ignored: some file systems cannot."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


class Syncing:
    """Puts what is written to a file on the disk within a second, and not more often: an fsync takes milliseconds."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._timer: Timer | None = None
        self._error: OSError | None = None

    def soon(self) -> None:
        """The file was written.

        Raises:
            OSError: an earlier fsync failed, so that the disk may lack what was written.
        """
        if self._error:
            raise self._error
        if self._timer is None:
            self._timer = Timer(SYNC_SECONDS, self._sync)
            self._timer.daemon = True
            self._timer.start()

    def _sync(self) -> None:
        self._timer = None  # before the fsync: what is written during it needs another one
        try:
            os.fsync(self._file.fileno())
        except ValueError:  # closed
            pass
        except OSError as error:
            self._error = None if error.errno in (errno.EINVAL, errno.EBADF) else error  # a pipe, or closed

    def close(self) -> None:
        """Put the rest on the disk, and end the thread. Errors are ignored."""
        if timer := self._timer:
            timer.cancel()
            timer.join()
            self._sync()


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
