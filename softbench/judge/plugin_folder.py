"""The folder that a plugin's process may write to. A plugin may leave anything there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def plugin_folder() -> Iterator[str]:
    """A temporary folder, which is removed at the end. Its processes have ended then."""
    folder = TemporaryDirectory(prefix="softbench-plugin-", ignore_cleanup_errors=True)
    try:
        yield folder.name
    finally:
        with suppress(RecursionError):
            folder.cleanup()
        if Path(folder.name).exists():  # its folders are too deep for Python
            subprocess.run(["chmod", "-R", "u+rwx", folder.name], stderr=subprocess.DEVNULL, check=False)
            subprocess.run(["rm", "-rf", folder.name], stderr=subprocess.DEVNULL, check=False)
