"""Where backends come from: entry points and plugin files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from softbench.core.errors import UsageError
from softbench.core.text import one_line
from softbench.core.validate import NAME

GROUP = "softbench.backends"
ALL = "all"
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".h"}


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A door that backends come through."""

    kind: str
    """`entry point` or `file`."""
    label: str
    """The entry point's name, or the file's stem: what a backend is called until it could be loaded."""
    target: str
    """`module:attribute`, or the file's absolute path."""
    shown: str
    """For people: the distribution, or the file as the user wrote it."""
    alias: str = ""
    """What the user wants its backend to be called: two versions of one file may stand side by side."""

    @property
    def own(self) -> bool:
        """True of softbench's own backends, false of a plugin."""
        return self.kind != "file" and self.target.startswith("softbench.")


def origins(plugins: Iterable[Path]) -> tuple[PluginSource, ...]:
    """Every door: entry points of all installed distributions (not imported here), then the files.

    Raises:
        UsageError: a file that is not there, or no entry point at all (softbench is not installed).
    """
    found = []
    for point in metadata.entry_points(group=GROUP):
        shown = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        found.append(PluginSource("entry point", safe_name(point.name), point.value, one_line(shown)))
    if not found:
        raise UsageError("softbench is not installed, so its backends are not registered; run: pip install -e .")
    for given in plugins:
        alias, path = _aliased(given)
        try:
            there = path.is_file()
        except OSError as error:
            raise UsageError(f"--plugin {path}: {error.strerror}") from None
        if not there:
            raise UsageError(f"--plugin {path}: no such file")
        found.append(PluginSource("file", alias or safe_name(path.stem), str(path.resolve()), one_line(str(given)), alias))
    return tuple(found)


def safe_name(text: str) -> str:
    """A file's name as one that a backend could have: it goes into tables and files."""
    return text if NAME.fullmatch(text) else re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:64] or "plugin"


def _aliased(given: Path) -> tuple[str, Path]:
    """`new=my/softmax.py` as `new` and the file; a file whose very name has a `=` keeps it."""
    alias, equals, rest = str(given).partition("=")
    try:
        whole = given.is_file()
    except OSError:
        whole = False
    if equals and not whole and alias == ALL:
        raise UsageError(f"--plugin {given}: '{ALL}' names every backend; give this one another name")
    return (alias, Path(rest)) if equals and NAME.fullmatch(alias) and not whole else ("", given)
