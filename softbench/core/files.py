"""Writing files atomically, and the error if that fails."""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path

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
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(file.name).unlink()
            raise


def no_link(path: str, flags: int) -> int:
    """An opener for `open` that raises OSError for a symbolic link, which may name a file of another folder."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
