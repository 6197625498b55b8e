"""Where a worker finds a function of the caller: `FILE:FUNCTION` or `MODULE:FUNCTION`, as `--plugin` takes it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator
from inspect import unwrap
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from softbench.core.errors import UsageError
from softbench.core.text import one_line
from softbench.plugins.source import module_file

TOP_LEVEL = "at the top level of a file"


def place(function: Callable[..., Any]) -> str:
    """Where a worker imports the function: a file relative to the folder of this process, or a module of a package.

    Raises:
        UsageError: it has no name by which it can be imported; with the way to give it one.
    """
    name = str(getattr(function, "__qualname__", ""))
    if name.endswith("<lambda>"):
        raise UsageError(f"a lambda cannot be imported by a worker; write it as a function with def, {TOP_LEVEL}")
    if "<locals>" in name and not _named(function):
        inner, outer = name.rpartition(".")[2], name.partition(".<locals>")[0]
        raise UsageError(f"{inner} is defined inside {outer}, so a worker cannot import it; define it {TOP_LEVEL}")
    if not (found := _named(function)):
        shown = name or f"an object of {type(function).__name__}"
        raise UsageError(
            f"{one_line(shown, 80)} has no name in a module, so a worker cannot import it; write a function that calls it, {TOP_LEVEL}"
        )
    return _place(*found, function)


def _named(function: Callable[..., Any]) -> tuple[ModuleType, str] | None:
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
