"""The backends of a call: names, patterns, plugin files and functions, as `--backends` and `--plugin` take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from softbench.api.functions import place
from softbench.core.errors import UsageError
from softbench.core.text import one_line
from softbench.plugins.source import GROUP, safe_name, split_alias, split_function

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
