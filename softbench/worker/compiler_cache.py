"""Removes from torch's caches what a killed compiler left: Inductor takes every file that exists for a whole one.

A torn library fails with "file too short" in each later run. If it is one with which Inductor asks for the CPU's vector instructions, later
kernels have none, or do not compile. Triton and softbench's own kernels rename a file when it is complete. `load_inline` waits without end
for a lock whose process was killed.
"""

from __future__ import annotations

import getpass
import os
import re
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path

SETTLED_SECONDS = 2.0
"""A linker writes a library within milliseconds, so an older torn one has no writer any more."""
LOCAL = "/"
"""A folder whose file system no other host or container writes to."""
SHARED_SECONDS = 3600.0
"""A build takes less."""
ELF_HEADER = struct.Struct("<4s36xQ10xHH2x")
"""Magic number, place of the section headers, and their size and number; they are the end of a library (ELF-64)."""
TORN_HEADER = re.compile(r"cannot read \S+\.gch|while reading precompiled header")
"""gcc about a precompiled header, which has no end that could be looked for."""


def remove_libraries() -> None:
    """Remove torn libraries. One that may still be written is looked at again after SETTLED_SECONDS."""
    for path in _folder(os.environ.get("TORCHINDUCTOR_CACHE_DIR")).glob("??/*.so"):
        with suppress(OSError):
            if is_torn(path):
                time.sleep(max(0.0, min(SETTLED_SECONDS, path.stat().st_mtime + SETTLED_SECONDS - time.time())))
                if is_torn(path):
                    path.unlink()


def remove_locks() -> None:
    """Remove the locks of torch.utils.cpp_extension that no process holds. A holder has its lock open.

    Those of other users, hosts and containers cannot be seen. So a lock of another user stays, and one on another file system than that
    of the root, which may be shared, stays for SHARED_SECONDS.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    root, alone = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache), Path(LOCAL).stat().st_dev
    locks = {lock: seen for lock in (*root.glob("*/lock"), *root.glob("*/*/lock")) if (seen := _seen(lock))}
    held = set[object]()
    for process in Path("/proc").iterdir() if locks else ():
        with suppress(OSError):
            held.update(map(_seen, (process / "fd").iterdir()))
    for lock, seen in locks.items():
        device, _, user, changed = seen
        visible = os.getuid() in (0, user) and (device == alone or time.time() - changed > SHARED_SECONDS)
        if visible and seen not in held and _seen(lock) == seen:  # the lock may be another one meanwhile
            with suppress(OSError):
                lock.unlink()


def _seen(file: Path) -> tuple[int, int, int, float] | None:
    """The device and number of a lock, its owner and the time of its last change; None if the file, or what its link names, is no lock."""
    with suppress(OSError):
        if (file.readlink() if file.is_symlink() else file).name == "lock":  # another's file system may not answer
            found = file.stat()
            return found.st_dev, found.st_ino, found.st_uid, found.st_mtime
    return None


def is_torn(path: Path) -> bool:
    """True if the library is not complete. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        start = file.read(ELF_HEADER.size)
    if len(start) < ELF_HEADER.size:
        return True
    magic, place, size, number = ELF_HEADER.unpack(start)
    return bool(magic != b"\x7fELF" or place + size * number > path.stat().st_size)


def removed_headers(error: Exception) -> bool:
    """True if the error is gcc's about a torn precompiled header. All of them are then removed, and the next compilation does without."""
    if not TORN_HEADER.search(str(error)):
        return False
    for path in _folder().glob("precompiled_headers/*.gch"):
        with suppress(OSError):
            path.unlink()
    return True


def _folder(given: str | None = None) -> Path:
    """Inductor's folder, as `torch._inductor.runtime.cache_dir_utils` names it. Precompiled headers are always in its default one."""
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):
        user = f"uid_{os.getuid()}"
    return Path(given or Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)))
