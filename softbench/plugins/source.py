"""Where backends come from: entry points, plugin files, and functions of files or modules."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from softbench.core.case import NAME, safe_name
from softbench.core.errors import UsageError
from softbench.core.text import did_you_mean_file, one_line

GROUP = "softbench.backends"
ALL = "all"
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".h"}
FILE, MODULE, ENTRY_POINT = "file", "module", "entry point"
NO_FUNCTION = "has no function "
"""How a worker says that a source lacks the function that the user named."""
_FUNCTION = re.compile(r"(?P<place>.+):(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)")
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A plugin source: an entry point, a file, or a function of a file or a module."""

    kind: str
    """`entry point`, `file`, or `module` for a function of an importable module."""
    label: str
    """The name of the entry point, the function, or the file without suffix: the name of a backend that is not loaded yet."""
    target: str
    """`module:attribute`, the file's absolute path, or the module's name."""
    shown: str
    """For messages: the distribution, or the file as the user wrote it."""
    alias: str = ""
    """The name that the user gives its backend, so that two versions of a file can run side by side."""
    function: str = ""
    """The function that is the backend, by its qualified name; empty if the file or entry point has backends."""
    python: str = ""
    """The interpreter of the environment whose packages it has; empty for that of softbench."""

    @property
    def given(self) -> bool:
        """True if the user named the source, and it is not an entry point."""
        return self.kind != ENTRY_POINT

    @property
    def file(self) -> Path | None:
        """The file of a source that the user named."""
        return Path(self.target) if self.kind == FILE else module_file(self.target) if self.kind == MODULE else None

    @property
    def builds_at_import(self) -> bool:
        """True if its file uses torch.utils.cpp_extension, whose `load_inline` compiles for minutes when the file is imported."""
        with suppress(OSError):
            return (file := self.file) is not None and "cpp_extension" in file.read_text("utf-8", "replace")
        return False

    @property
    def own(self) -> bool:
        """True for softbench's own backends, false for a plugin."""
        return not self.given and self.target.startswith("softbench.")


def origins(plugins: Iterable[Path]) -> tuple[PluginSource, ...]:
    """Every plugin source: entry points of all installed distributions (not imported here), then the files.

    Raises:
        UsageError: a file or module does not exist, or there is no entry point because softbench is not installed.
    """
    found = []
    shown_of = cache(lambda distribution: f"{distribution.name} {distribution.version}")  # each parses the distribution's README too
    for point in metadata.entry_points(group=GROUP):
        shown = shown_of(point.dist) if point.dist else point.value
        found.append(PluginSource("entry point", safe_name(point.name), point.value, one_line(shown)))
    if not found:
        raise UsageError("softbench is not installed, so its backends are not registered; run: pip install -e .")
    return (*found, *map(source_of, plugins))


def source_of(plugin: Path, at: str = "--plugin") -> PluginSource:
    """The source of a plugin. Raises as `origins`; an error begins with `at`."""
    alias, path = split_alias(plugin)
    if alias == ALL:
        raise UsageError(f"{at} {plugin}: '{ALL}' names every backend; give this one another name")
    place, function = split_function(path)
    label, shown = alias or safe_name(function.rpartition(".")[2] or place.stem), one_line(str(plugin))
    if _is_module(path):
        if module_file(str(place)) is None:
            raise UsageError(f"{at} {path}: Python finds no module {place}; give its file: FILE.py:{function}")
        return PluginSource(MODULE, label, str(place), shown, alias, function)
    try:
        there = place.is_file() or bool(not function and place.is_dir() and any(place.glob("*/*_implementation*.py")))
    except OSError as error:
        raise UsageError(f"{at} {path}: {error.strerror}") from None
    if not there:
        if place.is_dir():
            raise UsageError(f"{at} {path}: is a folder; name a Python file in it")
        name, _, rest = str(plugin).partition("=")
        if not alias and _is_file(Path(rest)):
            raise UsageError(f"{at} {plugin}: '{name}' cannot name a backend; names consist of letters, digits and . _ : + -")
        raise UsageError(f"{at} {path}: no such file{did_you_mean_file(place)}")
    python = json.loads(place.read_text("utf-8"))["python"] if place.suffix == ".targets" else ""  # softbench itself writes these
    return PluginSource(FILE, label, str(place.resolve()), shown, alias, function, python)


def import_file(path: Path) -> ModuleType:
    """Import a plugin's file, a module of this process only."""
    if path.suffix == ".json":
        from softbench.plugins.flashinfer_solution import solution

        return solution(path)
    spec = spec_from_file_location(f"softbench_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError("is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(path.parent))  # a plugin may come with helpers beside it
    spec.loader.exec_module(module)
    return module


def module_file(module: str) -> Path | None:
    """The source file of a module, found without importing its package; None if there is none.

    A package that is loaded may have changed its search path, as `softbench.kernels` does in a checkout.
    """
    first, *rest = module.split(".")
    try:
        spec = find_spec(first)
        for depth in range(1, len(rest) + 1):
            loaded = sys.modules.get(".".join((first, *rest[: depth - 1])))
            folders = getattr(loaded, "__path__", None) or (spec.submodule_search_locations if spec else None)
            spec = PathFinder.find_spec(".".join((first, *rest[:depth])), folders) if folders else None
    except (ImportError, ValueError):  # ValueError: a loaded module without a spec
        return None
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


def split_alias(given: Path, base: Path = Path()) -> tuple[str, Path]:
    """Splits `[NAME=]FILE` into the name (or an empty text) and the file, which is relative to `base`.

    The name ends at the first `=`. An existing file whose own name has a `=` is taken as it is. In place of FILE there may be
    `FILE:FUNCTION` or `MODULE:FUNCTION`.
    """
    alias, equals, rest = str(given).partition("=")
    named = equals and NAME.fullmatch(alias) and not _is_file(base / given)
    path = Path(rest) if named else given
    return alias if named else "", path if _is_module(path) else base / path


def split_function(path: Path) -> tuple[Path, str]:
    """Splits `FILE:FUNCTION` or `MODULE:FUNCTION`; the function is empty without one. An existing file is taken as it is."""
    found = _FUNCTION.fullmatch(str(path))
    return (Path(found["place"]), found["name"]) if found and not _is_file(path) else (path, "")


def _is_module(path: Path) -> bool:
    """True for `MODULE:FUNCTION`."""
    place, function = split_function(path)
    return bool(function and _DOTTED.fullmatch(str(place))) and place.suffix != ".py"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def beside(base: Path, given: str) -> Path:
    """`[NAME=]FILE` with the file relative to `base`."""
    alias, path = split_alias(Path(given), base)
    return Path(f"{alias}={path}") if alias else path


def absolute(given: Path) -> Path:
    """`[NAME=]FILE` with the file's absolute path."""
    alias, path = split_alias(given)
    whole = path if _is_module(path) else path.resolve()
    return Path(f"{alias}={whole}") if alias else whole
