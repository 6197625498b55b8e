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
    """A plugin source: an entry point or a file."""

    kind: str
    """`entry point` or `file`."""
    label: str
    """The entry point's name or the file's stem: the name of a backend that is not loaded yet."""
    target: str
    """`module:attribute`, or the file's absolute path."""
    shown: str
    """For messages: the distribution, or the file as the user wrote it."""
    alias: str = ""
    """The name that the user gives its backend, so that two versions of a file can run side by side."""

    @property
    def own(self) -> bool:
        """True for softbench's own backends, false for a plugin."""
        return self.kind != "file" and self.target.startswith("softbench.")


def origins(plugins: Iterable[Path]) -> tuple[PluginSource, ...]:
    """Every plugin source: entry points of all installed distributions (not imported here), then the files.

    Raises:
        UsageError: a file does not exist, or there is no entry point because softbench is not installed.
    """
    found = []
    for point in metadata.entry_points(group=GROUP):
        shown = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        found.append(PluginSource("entry point", safe_name(point.name), point.value, one_line(shown)))
    if not found:
        raise UsageError("softbench is not installed, so its backends are not registered; run: pip install -e .")
    for given in plugins:
        alias, path = split_alias(given)
        if alias == ALL:
            raise UsageError(f"--plugin {given}: '{ALL}' names every backend; give this one another name")
        try:
            there = path.is_file()
        except OSError as error:
            raise UsageError(f"--plugin {path}: {error.strerror}") from None
        if not there:
            raise UsageError(f"--plugin {path}: no such file")
        found.append(PluginSource("file", alias or safe_name(path.stem), str(path.resolve()), one_line(str(given)), alias))
    return tuple(found)


def safe_name(text: str) -> str:
    """A file's name as a valid backend name, for tables and files."""
    return text if NAME.fullmatch(text) else re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:64] or "plugin"


def split_alias(given: Path, base: Path = Path()) -> tuple[str, Path]:
    """Splits `[NAME=]FILE` into the name (or an empty text) and the file, which is relative to `base`.

    The name ends at the first `=`. An existing file whose own name has a `=` is taken as it is.
    """
    alias, equals, rest = str(given).partition("=")
    try:
        exists = (base / given).is_file()
    except OSError:
        exists = False
    return (alias, base / rest) if equals and NAME.fullmatch(alias) and not exists else ("", base / given)


def beside(base: Path, given: str) -> Path:
    """`[NAME=]FILE` with the file relative to `base`."""
    alias, path = split_alias(Path(given), base)
    return Path(f"{alias}={path}") if alias else path


def absolute(given: Path) -> Path:
    """`[NAME=]FILE` with the file's absolute path."""
    alias, path = split_alias(given)
    return Path(f"{alias}={path.resolve()}") if alias else path.resolve()
