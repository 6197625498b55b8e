"""A problem of GPU MODE's kernelbot: a folder with `task.yml` and the files that it names, `reference.py` among them.

`generate_input(**parameters, seed=...)` gives the data, one argument. `ref_kernel(data)` is the reference. A solution has
`custom_kernel(data)`; the data often holds the output, which it writes. Cases are the benchmarks of `task.yml`.
https://github.com/gpu-mode/kernelbot, https://github.com/gpu-mode/reference-kernels
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from inspect import getclosurevars
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from softbench.core.case import Value, safe_name
from softbench.core.errors import UsageError
from softbench.problems.problem import Problem, Tolerance

TASK = "task.yml"
SUBMISSION = "@SUBMISSION@"
SEED = "seed"
NUMBER = "number"
"""The parameter of a task whose benchmarks have values that are neither numbers nor words: the benchmark's number."""
TOLERANCE = (1e-5, 1e-8)
"""rtol and atol of the tasks' `match_reference` without arguments."""


class Kernelbot(Problem):
    """The files of a task."""

    format, solution = "kernelbot", "custom_kernel"
    returned = True  # its evaluator compares nothing else

    def __init__(self, folder: Path) -> None:
        """Raises UsageError for a folder that is no task. Exceptions of its own code pass through."""
        task = _task(folder)
        self.name = safe_name(folder.name)
        self.summary = str(task.get("description") or "").strip().partition("\n")[0]
        files = _files(folder, task)
        self.reads = list(files.values())
        sys.meta_path.insert(0, _Finder(files))
        try:
            module = __import__("reference")
        except ModuleNotFoundError as error:
            raise UsageError(f"reference.py imports {error.name}: name it in files of {TASK}, or install it") from None
        self._generate = _function(module, "generate_input")
        check = _function(module, "check_implementation")
        reference = getattr(module, "ref_kernel", None) or _closed_over(check).get("reference")
        if not callable(reference):
            raise UsageError("reference.py has no ref_kernel(data), and softbench compares with a reference")
        self._reference: Callable[..., Any] = reference
        self._own = _tolerance(check)
        self._all = _benchmarks(task)
        found = [{name: value for name, value in one.items() if name != SEED} for one in self._all]
        self._benchmarks = [one for place, one in enumerate(found) if one not in found[:place]]  # some differ in the seed only
        names = list(dict.fromkeys(name for one in self._benchmarks for name in one))
        if all(isinstance(value, bool | int | float | str) for one in self._benchmarks for value in one.values()) and all(
            one.keys() == set(names) for one in self._benchmarks
        ):
            self.cases = self._benchmarks
            self.parameters = dict(self._benchmarks[0])
        else:
            self.cases = [{NUMBER: place} for place in range(len(self._benchmarks))]
            self.parameters = {NUMBER: 0}

    def inputs(self, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
        """What `generate_input` gives, as one argument."""
        given: dict[str, Any] = dict(values)
        if self.parameters.keys() == {NUMBER}:
            place = int(given[NUMBER])
            if not 0 <= place < len(self._benchmarks):
                raise UsageError(f"{NUMBER}={place}: the task has the benchmarks 0 to {len(self._benchmarks) - 1}")
            given = dict(self._benchmarks[place])
        return (self._generate(**given, seed=seed),)

    def spec(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """The benchmarks of these values, with their seeds."""
        wanted = dict(values) if self.parameters.keys() != {NUMBER} else self._benchmarks[int(values[NUMBER])]
        there = [one for one in self._all if {name: value for name, value in one.items() if name != SEED} == wanted]
        return tuple("; ".join(f"{name}: {value}" for name, value in one.items()) for one in there)

    def reference(self, device: torch.device) -> Callable[..., Any]:
        """`ref_kernel`."""
        return self._reference

    def tolerance(self, dtype: str) -> Tolerance | None:
        """That of `match_reference`, if `check_implementation` is made of it."""
        return self._own


def _task(folder: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise UsageError("reading task.yml needs PyYAML: pip install 'softbench[problems]'") from None
    try:
        task = yaml.safe_load((folder / TASK).read_text())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{TASK}: {' '.join(str(error).split())}") from None
    if not isinstance(task, dict):
        raise UsageError(f"{TASK} is no mapping with files, tests and benchmarks")
    if (language := task.get("lang", "py")) != "py":
        raise UsageError(f"{TASK}: lang is {language}; softbench runs tasks in Python (lang: py)")
    if task.get("multi_gpu"):
        raise UsageError(f"{TASK}: multi_gpu tasks need several GPUs in one call, which softbench does not time")
    return task


def _files(folder: Path, task: Mapping[str, Any]) -> dict[str, Path]:
    """The sources by the names of their modules, without the submission."""
    given = task.get("files")
    if not isinstance(given, list) or not all(isinstance(one, dict) and {"name", "source"} <= one.keys() for one in given):
        raise UsageError(f"{TASK}: files must be a list of name and source")
    found = {}
    for one in given:
        if one["source"] != SUBMISSION and str(one["name"]).endswith(".py"):
            path = (folder / str(one["source"])).resolve()
            if not path.is_file():
                raise UsageError(f"{TASK}: files has the source {one['source']}, and there is no such file")
            found[str(one["name"]).removesuffix(".py")] = path
    if "reference" not in found:
        raise UsageError(f"{TASK}: files has no reference.py")
    return found


def _benchmarks(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = task.get("benchmarks")
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise UsageError(f"{TASK}: benchmarks must be a list of the parameters of generate_input")
    return [{str(name): value for name, value in one.items()} for one in given]


def _function(module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        raise UsageError(f"reference.py has no function {name}")
    return found


def _closed_over(check: Callable[..., Any]) -> dict[str, Any]:
    """What `make_match_reference(ref_kernel, rtol=..., atol=...)` keeps, as a closure or as a partial function."""
    kept = dict(getattr(check, "keywords", {}))
    if hasattr(check, "__closure__") and hasattr(check, "__code__"):
        kept |= getclosurevars(check).nonlocals
    return {**kept, **kept["kwargs"]} if isinstance(kept.get("kwargs"), dict) else kept


def _tolerance(check: Callable[..., Any]) -> Tolerance | None:
    kept = _closed_over(check)
    if not callable(kept.get("reference")):
        return None
    rtol, atol = (kept.get(name, default) for name, default in zip(("rtol", "atol"), TOLERANCE, strict=True))
    return (float(rtol), float(atol)) if isinstance(rtol, int | float) and isinstance(atol, int | float) else None


class _Finder(MetaPathFinder):
    """Finds the modules of a task under the names that `task.yml` gives them, also for the imports of solutions."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = files

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a module of the task."""
        if (file := self.files.get(name)) is None:
            return None
        return spec_from_file_location(name, file, loader=_Loader(name, str(file)))


class _Loader(SourceFileLoader):
    """Where there is no GPU, the device "cuda" in a task's own files is the CPU."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        """The code of a source."""
        tree: Any = data if isinstance(data, ast.AST) else ast.parse(data, path)
        if not torch.cuda.is_available():
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:0"):
                    node.value = "cpu"
        return super().source_to_code(tree, path, _optimize=_optimize)

    def cache_bytecode(self, *given: Any) -> None:
        """Nothing: a cache would keep the code of a machine without a GPU."""

    def get_code(self, fullname: str) -> CodeType:
        """The code, never from a cache."""
        return self.source_to_code(self.get_data(self.path), self.path)
