"""Imports the backends of a plugin source; only workers call it.

A file without a backend has functions with the names of operations: `softmax(x)`, and `softmax_backward(dy, y)` if there is one;
`log_softmax(x)`; `layer_norm(x, w)`. Its function `supports(case)`, if it has one, is the backend's. A function that the user names may
have any name: it is taken for the operation, the parameters and the direction that are asked for.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Protocol, cast

from softbench.core.case import NAME, OPERATION, Case, Direction
from softbench.core.errors import UsageError
from softbench.core.text import LISTED, did_you_mean, one_line
from softbench.plugins import targets
from softbench.plugins.backend import Backend, Call
from softbench.plugins.backendbench_solutions import files_of, solutions as of_backendbench
from softbench.plugins.source import ALL, FILE, GROUP, MODULE, NO_FUNCTION, SOURCES, PluginSource, import_file

PROBLEMS = (("Model", "get_inputs"), ("inputs", "reference"), ("OPERATION",))
"""What a problem's or an operation's file has."""
SOLUTIONS = {"ModelNew": "kernelbench:PROBLEM.py", "custom_kernel": "kernelbot:FOLDER", "solution": "PROBLEM.py"}
"""The name that only a problem's solution has, with the problem as `--problem` takes it."""
LIBRARY = "CudaLibrary"
"""The class of what `softbench.build` returns. This package does not import its module."""
METHODS = ("available", "supports", "prepare")
SUFFIXES = {Direction.FORWARD: "", Direction.BACKWARD: "_backward", Direction.FUSED: "_fused"}
"""What follows the operation's name in a function's name, by direction."""
Functions = dict[tuple[str, Direction], Call]
"""Functions by operation and direction."""
Objection = Callable[[Case], str | None]
"""A file's own function `supports`: None, or why it skips a case."""


def load(
    origin: PluginSource, operations: Sequence[str] = (OPERATION,), solutions: Mapping[str, str] = MappingProxyType({})
) -> tuple[Backend, ...]:
    """Import the backends of a plugin source. This runs the plugin's code, so only workers call it.

    `operations` are all operations, each with its parameters as in `softmax(scale)`. Their names are those of the functions that make a
    backend of a file without one. `solutions` are other names of such functions or classes, by operation.

    An entry point names one Backend or a list. A file has them under the name `backend` or `backends`, or it has functions only. A source
    may also be one function.

    Raises:
        UsageError: the object is not a backend or function. Exceptions of the plugin's own import pass through.
    """
    offered: object
    if origin.function:
        offered = given_function(_import(origin), origin.function, origin.label, operations, own=origin.kind == FILE and not solutions)
    elif origin.kind == FILE and Path(origin.target).is_dir():
        offered = of_backendbench(Path(origin.target), origin.label, operations, solutions, import_file)
    elif origin.kind == FILE and origin.target.endswith(targets.SUFFIX):
        offered = targets.Targets(Path(origin.target), origin.label)
    elif origin.kind == FILE and (solution := _built_at_import(Path(origin.target), solutions)):
        offered = BuildingSolution(origin, solution, [one for one in operations if solutions.get(one.partition("(")[0]) == solution])
    elif origin.kind == FILE:
        module = _import(origin)
        offered = getattr(module, "backends", None) or getattr(module, "backend", None)
        offered = offered or from_functions(module, origin.label, operations, solutions)
        if offered is None:
            raise UsageError(_nothing(module, solutions))
    else:
        offered = metadata.EntryPoint(origin.label, origin.target, GROUP).load()
    found = tuple(offered) if isinstance(offered, list | tuple) else (offered,)
    for backend in found:
        if isinstance(backend, type):
            raise UsageError(f"{backend.__name__} is a class and not a backend: write {backend.__name__}()")
        lacking = [method for method in METHODS if not callable(getattr(backend, method, None))]
        if lacking:
            raise UsageError(f"{_shown(backend)} is not a backend: it lacks the methods {', '.join(lacking)}")
        name = getattr(backend, "name", None)
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == ALL:
            raise UsageError(f"{_shown(name)} is no name for a backend; use 1 to 64 letters, digits and . _ : + -, and not '{ALL}'")
    if not origin.alias or origin.function or isinstance(offered, targets.Targets):  # functions have their name already
        return found
    return tuple(_renamed(backend, origin.alias if len(found) == 1 else f"{origin.alias}.{backend.name}") for backend in found)


def _nothing(module: ModuleType, solutions: Mapping[str, str]) -> str:
    """Why a file is no plugin: it has neither a backend nor a function of the operations."""
    own = [name for name, found in vars(module).items() if callable(found) and _defined_in(found, module)]
    for names in PROBLEMS:
        if set(names) <= {*own, *vars(module)}:
            return f"it is a problem, as it has {' and '.join(f'`{name}`' for name in names)}: give it with --problem, and a solution here"
    for name, problem in SOLUTIONS.items():
        if name in own and name not in solutions.values():
            return f"it is a solution, as it has `{name}`: give its problem, too, with --problem {problem}"
    functions = tuple(dict.fromkeys((*solutions.values(), *solutions))) or (OPERATION,)
    close = next((f"; rename `{one}`, which is close" for name in functions for one in get_close_matches(name, own, n=1)), "")
    shown = " or ".join(f"`{name}`" for name in functions[:LISTED])
    return f"its `backend` or `backends` is missing or empty, and it has no function {shown}{close}; name a function as FILE:FUNCTION"


def _shown(thing: object) -> str:
    """An object in a message, without the address of a default repr."""
    text = repr(thing)
    return f"an object of {type(thing).__name__}" if " object at 0x" in text else one_line(text, 80)


def _renamed(backend: Backend, name: str) -> Backend:
    """The backend under another name. It is wrapped and not changed, as its methods may rely on its name."""

    class Renamed:
        __doc__ = type(backend).__doc__

        def __getattr__(self, attribute: str) -> object:
            return getattr(backend, attribute)

    renamed = cast(Backend, Renamed())
    renamed.name = name
    return renamed


def importing() -> bool:
    """True while this process imports a plugin source."""
    return bool(_importing)


_importing: list[PluginSource] = []


def _import(origin: PluginSource) -> ModuleType:
    _importing.append(origin)
    try:
        return importlib.import_module(origin.target) if origin.kind == MODULE else import_file(Path(origin.target))
    finally:
        _importing.pop()


def remember() -> None:
    """Record the modules of the forkserver, where no plugin runs, so that its workers start sooner: reading one copies its memory."""
    _remembered.update(sys.modules)


_remembered: set[str] = set()


def source_hash(backend: object, origin: PluginSource) -> str:
    """A hash of a backend's source files and its `sources()`: the plugin's file, or the folders of its package's loaded modules."""
    if (own_file := origin.file) and own_file.is_dir():
        digest = _digest(files_of(own_file))
    elif own_file:
        folder = f"{own_file.parent}{os.sep}"  # modules beside the file belong to it
        loaded = [file for name in sys.modules.keys() - _remembered if (file := getattr(sys.modules.get(name), "__file__", None))]
        beside = {Path(file) for file in loaded if file.startswith(folder) and os.sep not in file[len(folder) :]}
        present = [file for file in {own_file, *beside} if file.is_file()]
        digest = _files_digest(frozenset((file, file.stat().st_mtime_ns) for file in present)).copy()
    else:
        package = origin.target.partition(":")[0].partition(".")[0]
        modules = [sys.modules.get(name) for name in [*sys.modules] if name == package or name.startswith(package + ".")]
        folders = frozenset(str(folder) for module in modules for folder in getattr(module, "__path__", ()))
        lone = frozenset(file for module in modules if (file := getattr(module, "__file__", None)))
        digest = _package_digest(folders, lone).copy()
    own = getattr(backend, "sources", None)
    return _digest(own() if callable(own) else (), digest).hexdigest()[:16]


@lru_cache(maxsize=8)
def _files_digest(files: frozenset[tuple[Path, int]]) -> hashlib._Hash:
    """The digest of these files, each with the time of its last change. A file may offer thousands of backends."""
    return _digest(file for file, _ in sorted(files))


@lru_cache(maxsize=8)
def _package_digest(folders: frozenset[str], lone: frozenset[str]) -> hashlib._Hash:
    """The digest of these folders' sources and these files. A plugin source may offer dozens of backends of one package."""
    paths = map(Path, folders)
    return _digest(sorted({f for folder in paths if folder.is_dir() for f in folder.iterdir() if f.suffix in SOURCES} | {*map(Path, lone)}))


def _digest(files: Iterable[Path], digest: hashlib._Hash | None = None) -> hashlib._Hash:
    """The digest with the names and contents of these files."""
    digest = digest or hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest


class _Library(Protocol):
    """What a file gets from `softbench.build`."""

    def unavailable(self) -> str | None: ...
    def files(self) -> list[Path]: ...


def _held(module: ModuleType, kind: str) -> list[Any]:
    """The objects among a module's names whose class has this name."""
    return [found for found in vars(module).values() if type(found).__name__ == kind]


class FunctionBackend:
    """Functions of a file."""

    def __init__(
        self, name: str, functions: Functions, operations: Sequence[str], summary: str, module: ModuleType, objection: Objection | None
    ) -> None:
        self.name, self.functions, self.summary, self.module, self.objection = name, functions, summary, module, objection
        self.operations = tuple(dict.fromkeys(operations))

    def available(self) -> str | None:
        """Why its CUDA libraries or Gluon kernels cannot run here. Whether a function can run otherwise shows when it is called."""
        if _held(self.module, "GluonJITFunction") and not sys.modules["torch"].cuda.is_available():
            return "no GPU here, and Triton's interpreter takes no Gluon"
        libraries: list[_Library] = _held(self.module, LIBRARY)
        return next((reason for library in libraries if (reason := library.unavailable())), None)

    def sources(self) -> list[Path]:
        """The files of the CUDA libraries."""
        libraries: list[_Library] = _held(self.module, LIBRARY)
        return [file for library in libraries for file in library.files()]

    def supports(self, case: Case) -> str | None:
        """None if the file has the function of the operation and direction, and its own function `supports` has no objection."""
        if (case.operation, case.direction) in self.functions:
            return self.objection(case) if self.objection else None
        file = Path(getattr(self.module, "__file__", None) or self.name).name
        if case.direction not in SUFFIXES:
            return f"{file} has functions only, and direction {case.direction} needs a backend: see docs/plugins.md"
        return f"{file} defines no function {case.operation}{SUFFIXES[case.direction]}"

    def prepare(self, case: Case) -> Call:
        """The function as it is."""
        return self.functions[case.operation, case.direction]


class BuildingSolution:
    """A solution whose file compiles at its import, by torch's load_inline: so `prepare` imports it, and that counts as the build."""

    def __init__(self, origin: PluginSource, solution: str, operations: Sequence[str]) -> None:
        self.name, self.origin, self.solution, self.operations = origin.label, origin, solution, tuple(operations)
        self.compiles, self.build_seconds = "always", 60.0
        self.summary = "compiles at its import"

    def available(self) -> str | None:
        """None: whether it compiles shows in the build."""
        return None

    def supports(self, case: Case) -> str | None:
        """None: the file has the solution."""
        return None

    def prepare(self, case: Case) -> Call:
        """Imports the file."""
        found: Call = getattr(_loaded(self.origin), self.solution)
        return found


@lru_cache(maxsize=8)
def _loaded(origin: PluginSource) -> ModuleType:
    return _import(origin)


def _built_at_import(path: Path, solutions: Mapping[str, str]) -> str:
    """The solution that a file defines, if the file calls a builder of torch.utils.cpp_extension; empty otherwise."""
    try:
        text = path.read_text("utf-8", "replace") if solutions and path.is_file() else ""
    except OSError:
        return ""
    names = [name for name in dict.fromkeys(solutions.values()) if re.search(rf"^(class|def) {re.escape(name)}\b", text, re.MULTILINE)]
    return names[0] if names and "cpp_extension" in text else ""


def _defined_in(found: object, module: ModuleType) -> bool:
    """False for what a module imports. A function of torch.jit has its module in its qualified name only."""
    scripted = getattr(found, "qualified_name", "")
    return getattr(found, "__module__", "") == module.__name__ or (isinstance(scripted, str) and f".{module.__name__}." in scripted)


def from_functions(
    module: ModuleType, name: str, operations: Sequence[str], solutions: Mapping[str, str] = MappingProxyType({})
) -> Backend | None:
    """The backend of a file's own functions; None if none has the name of an operation. Imported functions do not count.

    A function of one of the `solutions` takes all parameters, as the tensors show them.
    """
    declared = {operation.partition("(")[0]: operation for operation in operations}
    named = {(op, Direction.FORWARD): getattr(module, other, None) for op, other in solutions.items()}
    named |= {(op, way): found for op in declared for way, suffix in SUFFIXES.items() if (found := getattr(module, op + suffix, None))}
    own = {key: found for key, found in named.items() if callable(found) and _defined_in(found, module)}
    functions = {(op, way): found for (op, way), found in own.items() if {(op, Direction.FORWARD), (op, Direction.FUSED)} & own.keys()}
    if not functions:
        return None
    first = next(iter(functions.values()))
    taken = [declared[op] if op in solutions else op for op, _ in functions]
    summary = (first.__doc__ or module.__doc__ or "").strip().partition("\n")[0]
    skips = None if solutions else _objection(module)  # a solution of another project may have a helper of that name
    return FunctionBackend(name, functions, taken, summary, module, skips)


def _objection(module: ModuleType) -> Objection | None:
    """The module's own function `supports`."""
    found = getattr(module, "supports", None)
    return found if callable(found) and _defined_in(found, module) else None


class GivenFunction:
    """One function that the user names."""

    def __init__(self, name: str, function: Call, operations: Sequence[str], module: ModuleType, objection: Objection | None) -> None:
        """`operations` are all, each with its parameters as in `softmax(scale)`."""
        self.name, self.function, self.operations, self.module, self.objection = name, function, tuple(operations), module, objection
        self.summary = (function.__doc__ or "").strip().partition("\n")[0]

    available, sources = FunctionBackend.available, FunctionBackend.sources

    def supports(self, case: Case) -> str | None:
        """None, if the file's own function `supports` has no objection: the function is what the user asks about."""
        return self.objection(case) if self.objection else None

    def prepare(self, case: Case) -> Call:
        """The function as it is. It gets the tensors of the case's pass, as `softbench.plugins.backend` describes."""
        return self.function


def given_function(module: ModuleType, function: str, name: str, operations: Sequence[str], *, own: bool = False) -> Backend:
    """The backend of a module's function. With `own`, the module's function `supports` is the backend's.

    Raises:
        UsageError: the module has no such function.
    """
    try:
        found = attrgetter(function)(module)
    except AttributeError:
        near = [name for name, one in vars(module).items() if callable(one) and _defined_in(one, module)]
        close = did_you_mean(function, near).strip()
        raise UsageError(f"{NO_FUNCTION}{function}" + (f"; {close}" if close else "")) from None
    if not callable(found) or isinstance(found, type):
        raise UsageError(f"{function} is no function, but of {type(found).__name__}")
    return GivenFunction(name, found, operations, module, _objection(module) if own else None)
