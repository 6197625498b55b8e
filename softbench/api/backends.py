"""The backends of a call: names, patterns, plugin files and functions, and where a worker finds each function."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from inspect import unwrap
from operator import attrgetter
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from softbench.core.case import safe_name
from softbench.core.errors import UsageError
from softbench.core.text import one_line
from softbench.plugins.source import GROUP, module_file, split_alias, split_function

Backend = str | PathLike[str] | Callable[..., Any]
"""A name or pattern of backends, a plugin file (`my_kernels.py`, `new=my_kernels.py`), or a function that a worker can import."""


class Given(NamedTuple):
    """The backends of a call."""

    names: tuple[str, ...]
    """Their names or patterns, in order. For a file without a name, its path stands here and selects all its backends."""
    labels: tuple[str, ...]
    """The same names, with the name of a file in place of its path."""
    plugins: tuple[Path, ...]
    """Each `[NAME=]FILE`, `[NAME=]FILE:FUNCTION` or `[NAME=]MODULE:FUNCTION`."""


def given(backends: Sequence[Backend], *, one_each: bool = False) -> Given:
    """The backends of a call. A function's name that is taken gets its module in front, or a number.

    `one_each`: each file has one backend, which gets the file's name.

    Raises:
        UsageError: one is no backend, or a function that no worker can import.
    """
    known = {point.name for point in metadata.entry_points(group=GROUP)}
    names: list[str] = []
    labels: list[str] = []
    plugins: list[Path] = []
    for backend in backends:
        if isinstance(backend, str) and not _is_file(backend):
            names.append(backend)
            labels.append(backend)
            continue
        taken = {*known, *names}
        if isinstance(backend, str | PathLike):
            alias, path = split_alias(Path(backend))
            file, function = split_function(path)
            if function and not alias:
                plugin, name = _named(str(path), taken)
            else:
                alias = alias or (_free([safe_name(file.stem)], taken) if one_each else "")
                plugin, name = (f"{alias}={path}", alias) if alias else (str(path), str(file.resolve()))
            label = safe_name(file.stem) if name == str(file.resolve()) else name
        elif callable(backend):
            plugin, name = _named(place(backend), taken)
            label = name
        else:
            raise UsageError(f"{one_line(repr(backend), 80)} is no backend; give a name, a file, or a function")
        names.append(name)
        labels.append(label)
        plugins.append(Path(plugin))
    return Given(tuple(names), tuple(labels), tuple(dict.fromkeys(plugins)))


def _is_file(text: str) -> bool:
    """True for `[NAME=]FILE.py` and `[NAME=]FILE.py:FUNCTION`; else the text is a name or pattern."""
    return split_function(split_alias(Path(text))[1])[0].suffix == ".py"


def _named(where: str, taken: set[str]) -> tuple[str, str]:
    """A function's plugin and the name of its backend, which is not taken."""
    name = _free(_names(where), taken)
    return where if name == _names(where)[0] else f"{name}={where}", name


def _names(where: str) -> list[str]:
    """The names of a function's backend: the function's, and that with its module."""
    module, _, function = where.rpartition(":")
    stem = Path(module).stem if module.endswith(".py") else module
    return [safe_name(function.rpartition(".")[2]), safe_name(f"{stem}.{function}"[-64:])]


def _free(names: Sequence[str], taken: set[str]) -> str:
    """The first name that is not taken; the last ones are the first with a number."""
    numbered = (f"{names[0][:60]}-{number}" for number in range(2, 1000))
    return next(name for name in (*names, *numbered) if name not in taken)


TOP_LEVEL = "at the top level of a file"


def place(function: Callable[..., Any]) -> str:
    """Where a worker imports the function: a file relative to the folder of this process, or a module of a package.

    Raises:
        UsageError: it has no name by which it can be imported; with the way to give it one.
    """
    name = str(getattr(function, "__qualname__", ""))
    if name.endswith("<lambda>"):
        raise UsageError(f"a lambda cannot be imported by a worker; write it as a function with def, {TOP_LEVEL}")
    if "<locals>" in name and not _found(function):
        inner, outer = name.rpartition(".")[2], name.partition(".<locals>")[0]
        raise UsageError(f"{inner} is defined inside {outer}, so a worker cannot import it; define it {TOP_LEVEL}")
    if not (found := _found(function)):
        shown = name or f"an object of {type(function).__name__}"
        raise UsageError(
            f"{one_line(shown, 80)} has no name in a module, so a worker cannot import it; write a function that calls it, {TOP_LEVEL}"
        )
    return _place(*found, function)


def _found(function: Callable[..., Any]) -> tuple[ModuleType, str] | None:
    """The module that has this very object, and its name there; its own module first. A decorated function may have another name."""
    for module in _modules(function):
        qualified = str(getattr(function, "__qualname__", ""))
        if qualified and _attribute(module, qualified) is function:
            return module, qualified
        for name, found in list(vars(module).items()):
            if found is function:
                return module, name
    return None


def _modules(function: Callable[..., Any]) -> Iterator[ModuleType]:
    own = sys.modules.get(str(getattr(function, "__module__", None)))
    if own is not None:
        yield own
    if not hasattr(function, "__code__"):  # an object of a class, such as a partial: its module is that of the class
        yield from [module for module in list(sys.modules.values()) if isinstance(module, ModuleType) and module is not own]


def _attribute(module: ModuleType, qualified: str) -> object:
    try:
        return attrgetter(qualified)(module)
    except AttributeError:
        return None


def _place(module: ModuleType, name: str, function: Callable[..., Any]) -> str:
    """The text for `--plugin`. Raises as `place`."""
    file = getattr(module, "__file__", None)
    known = module.__name__
    if known == "__main__":
        spec = getattr(module, "__spec__", None)
        known = spec.name if spec else ""  # of python -m
        code = getattr(unwrap(function), "__code__", None)
        if not file or (code is not None and not Path(code.co_filename).is_file()):
            raise UsageError(
                f"{name} is defined in a notebook cell or an interpreter, so a worker cannot import it; "
                "begin the cell with %%softbench FILE.py, or write the function into a file"
            )
    importable = bool(known and file) and (there := module_file(known)) is not None and _same(there, Path(str(file)))
    if importable and not _alone(Path(str(file))):
        return f"{known}:{name}"
    if not file or not str(file).endswith(".py"):
        raise UsageError(f"{module.__name__}.{name} comes from no Python file; write a function that calls it, {TOP_LEVEL}")
    return f"{shown(Path(file))}:{name}"


def _alone(file: Path) -> bool:
    """True for a Python file that can be imported without a package. One in an archive is no file."""
    if not file.is_file() or file.suffix != ".py" or file.with_name("__init__.py").is_file():
        return False
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return True
    return not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree))  # of a package without __init__.py


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve()


def shown(file: Path) -> str:
    """A file as the shell takes it from the folder of this process: relative if it lies in there."""
    whole = str(file.resolve())
    return os.path.relpath(whole) if file.resolve().is_relative_to(Path.cwd()) else whole
