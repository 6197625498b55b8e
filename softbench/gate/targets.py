"""The targets of the gate: functions of a package with their inputs, in `softbench.toml` or the table `[tool.softbench]` of pyproject.toml.

reference = "origin/main"            # what to compare with; by default the merge base with the main branch
build = ["pip install --no-build-isolation ."]
margin = 3

[[target]]
function = "mine.norms:rms_norm"
inputs = "x[M,N], w[N], eps=1e-6"    # or op = "softmax", or problem = "problem.py"; a benchmark has its own
M = 4096
N = "1024:16384:*4"
dtype = ["bf16", "fp32"]
tolerance = [1e-2, 1e-5]             # rtol and atol
margin = 5
files = ["mine/norms*", "csrc/*"]    # what --changed looks at; by default the modules that the function's module imports
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from softbench.core.case import Value
from softbench.core.errors import ConfigError, UsageError
from softbench.core.text import unknown
from softbench.gate.commits import git
from softbench.ops.registry import NAMES
from softbench.plan.declare import number, strings
from softbench.plan.sweep import AXES
from softbench.run.environments import TARGETS, without_measurements

FILE, PROJECT = TARGETS, "pyproject.toml"
KEYS = ("reference", "build", "margin", "measure", "target")
OWN = ("function", "name", "inputs", "problem", "tolerance", "margin", "files")
"""The keys of a target beside the axes."""
MOST_MARGIN = 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A function, and what it is measured on."""

    function: str
    """`MODULE:NAME`, `FILE.py:NAME` or `MODULE:EXPRESSION`."""
    name: str = ""
    """What reports call it; the last name of the function without one."""
    inputs: str = ""
    op: str = ""
    problem: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)
    """The values of `M`, `N`, `shape`, `dim`, `dtype`, `direction` and `set` that are given."""
    tolerance: tuple[float, float] | None = None
    margin: float | None = None
    """As a fraction."""
    files: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its name, as an operation has one."""
        last = self.name or self.function.partition(":")[2].partition("(")[0].removesuffix(".apply").rpartition(".")[2]
        word = re.sub(r"\W+", "_", last).strip("_")
        if not re.fullmatch(r"[A-Za-z]\w*", word) or word.startswith("lambda"):
            word = f"target_{word}"[:40].rstrip("_")
        package = self.function.partition(":")[0].removesuffix(".py").rpartition("/")[2].partition(".")[0]
        return f"{package}_{word}" if word in NAMES else word  # softbench has an operation of this name

    @property
    def cases(self) -> list[dict[str, Value]]:
        """The values of parameters, each a case."""
        sizes = [[(axis, size) for size in self.axes[axis]] for axis in ("M", "N") if self.axes.get(axis)]
        found = [{**dict(one), **dict(chosen)} for one in self.axes.get("set", ((),)) for chosen in product(*sizes)]
        return [case for case in found if case]


@dataclass(frozen=True, slots=True)
class TargetFile:
    """What a file of targets says."""

    path: Path
    targets: tuple[Target, ...]
    reference: str = ""
    build: tuple[str, ...] = ()
    margin: float | None = None
    """As a fraction."""
    measure: tuple[str, ...] = ()


def find(folder: Path = Path()) -> Path | None:
    """The file of targets of a folder; None if there is none."""
    if (folder / FILE).is_file():
        return folder / FILE
    project = folder / PROJECT
    if project.is_file() and re.search(r"^\[\[?tool\.softbench\b", project.read_text("utf-8", "replace"), re.MULTILINE):
        return project
    return None


def above() -> Path | None:
    """The nearest folder around the working folder that has a file of targets, in the same repository; None if there is none."""
    here = Path.cwd()
    top = next((one for one in (here, *here.parents) if (one / ".git").exists()), here)
    return next((one for one in here.parents if one.is_relative_to(top) and find(one)), None)


def read(path: Path) -> TargetFile:
    """Read a file of targets.

    Raises:
        ConfigError: it is no TOML, has an unknown key or a wrong value, or no target. The message names file and key.
    """
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    if path.name == PROJECT:
        table = table.get("tool", {}).get("softbench", {})
    try:
        return _file(path, table)
    except ConfigError:
        raise
    except UsageError as error:
        raise ConfigError(str(error)) from None


def _file(path: Path, table: Mapping[str, Any]) -> TargetFile:
    for key in table:
        if key not in KEYS:
            raise ConfigError(f"{path}: {unknown(key, KEYS, 'key')}")
    given = table.get("target")
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise ConfigError(f"{path}: has no target; write [[target]] and then function = 'MODULE:NAME', or make it: softbench gate init")
    targets = tuple(_target(one, f"{path}: [[target]] {place}") for place, one in enumerate(given, 1))
    labels = [target.op or target.label for target in targets]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"{path}: two targets are called {label}; give one of them a name, and inputs or a problem")
    reference = table.get("reference", "")
    if not isinstance(reference, str):
        raise ConfigError(f"{path}: reference: must be a git ref, a wheel or a path, not {reference!r}")
    build = _commands(table["build"], f"{path}: build") if "build" in table else ()
    measure = strings(table["measure"], f"{path}: measure") if "measure" in table else ()
    return TargetFile(path, targets, reference, build, _margin(table, f"{path}: margin"), measure)


def _commands(value: object, at: str) -> tuple[str, ...]:
    """Reads commands, which may have commas."""
    return (value,) if isinstance(value, str) else strings(value, at)


def _margin(table: Mapping[str, Any], at: str) -> float | None:
    return number(0.1, MOST_MARGIN)(table["margin"], at) / 100 if "margin" in table else None


def _target(table: Mapping[str, Any], at: str) -> Target:
    known = (*OWN, *AXES)
    for key in table:
        if key not in known:
            raise ConfigError(f"{at}: {unknown(key, known, 'key')}")
    for key in ("function", "name", "inputs", "problem", "op"):
        if not isinstance(table.get(key, ""), str):
            raise ConfigError(f"{at} {key}: must be a text, not {table[key]!r}")
    if ":" not in table.get("function", ""):
        raise ConfigError(f"{at}: function is missing; write function = 'MODULE:NAME'")
    if len(kinds := [key for key in ("inputs", "problem", "op") if table.get(key)]) > 1:
        raise ConfigError(f"{at}: {kinds[0]} and {kinds[1]} both give its inputs; leave out one")
    axes = {key: AXES[key].read(value, f"{at} {key}") for key, value in table.items() if key in AXES and key != "op"}
    if table.get("op") and not (axes.get("shape") or (axes.get("M") and axes.get("N"))):
        raise ConfigError(f"{at}: op = {table['op']!r} needs M and N, or shape")
    return Target(
        table["function"],
        table.get("name", ""),
        table.get("inputs", ""),
        table.get("op", ""),
        table.get("problem", ""),
        axes,
        tolerance(table["tolerance"], f"{at} tolerance") if "tolerance" in table else None,
        _margin(table, f"{at} margin"),
        strings(table["files"], f"{at} files") if "files" in table else (),
    )


def tolerance(value: object, at: str) -> tuple[float, float]:
    """Reads a tolerance: rtol and atol, as a list or as a text with a comma. Raises UsageError."""
    parts = value.split(",") if isinstance(value, str) else value
    try:
        found = [float(one) for one in parts] if isinstance(parts, list) else []
    except (TypeError, ValueError):
        found = []
    if len(found) == 1:
        found.append(0.0)
    if len(found) != 2 or not all(0 <= one < 1e9 for one in found):
        raise UsageError(f"{at}: must be rtol and atol, such as 1e-2,1e-5, not {value!r}")
    return found[0], found[1]


def changed_files(since: str, folder: Path = Path()) -> list[str]:
    """The files that differ between a commit and the working tree, from `folder`; new ones too, but no measurements. Raises UsageError."""
    asked = ("diff", "--name-only", "-z", "--relative", since), ("ls-files", "-z", "--others", "--exclude-standard")
    try:
        differ, new = (git(folder, *words) for words in asked)
    except UsageError as error:
        raise UsageError(f"--changed: git cannot compare with {since}: {error}") from None
    return sorted({*differ.split("\0"), *without_measurements(new.split("\0"))} - {""})


def affected(targets: Sequence[Target], changed: Iterable[str], folder: Path = Path()) -> list[Target]:
    """The targets that changed files may change.

    A target without `files` depends on the modules that its own imports, as their text shows, and on all files of the project that are no
    Python, such as CUDA sources and pyproject.toml. Documents, tests and hidden files change no target.
    """
    files = [name for name in changed if not _idle(name)]
    found = []
    for target in targets:
        if target.files:
            hit = any(fnmatchcase(name, pattern) for name in changed for pattern in target.files)
        else:
            modules = imported(target.function.partition(":")[0], folder)
            hit = any(not name.endswith((".py", ".pyi")) or (folder / name).resolve() in modules for name in files)
            hit = hit or not modules
        found += [target] if hit else []
    return found


def _idle(name: str) -> bool:
    parts = Path(name).parts
    hidden = any(one.startswith(".") for one in parts)
    return hidden or parts[0] in ("docs", "tests", "test") or name.endswith((".md", ".rst", ".txt", ".ipynb"))


def imported(place: str, folder: Path = Path()) -> set[Path]:
    """The files of a module or file and of all modules of the project that it imports, found without importing them.

    What the packages around a module import is left out, unless a module imports the package: most packages import all their modules.
    """
    roots = [root.resolve() for root in (folder, folder / "src") if root.is_dir()]
    found: set[Path] = set()
    around: set[Path] = set()
    left = [(folder / place).resolve()] if place.endswith(".py") else []
    names = [] if left else [place]
    while left or names:
        for name in names:
            packages, own = _module_files(name, roots)
            around |= set(packages)
            left += own
        names = []
        if left and (file := left.pop()) not in found and file.is_file():
            found.add(file)
            names = list(_imports(file, roots))
    return found | around


def _module_files(name: str, roots: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The files of the packages around a module, and its own one."""
    parts = name.split(".")
    for root in roots:
        around = [root.joinpath(*parts[:count], "__init__.py") for count in range(1, len(parts))]
        own = [root.joinpath(*parts, "__init__.py"), root.joinpath(*parts).with_suffix(".py")]
        found = [file for file in around if file.is_file()], [file for file in own if file.is_file()]
        if any(found):
            return found
    return [], []


def _imports(file: Path, roots: Sequence[Path]) -> Iterable[str]:
    """The names of modules that a file may import."""
    try:
        tree = ast.parse(file.read_text("utf-8", "replace"))
    except (SyntaxError, ValueError):
        return
    root = next((one for one in roots if file.is_relative_to(one)), file.parent)
    package = file.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *((node.module,) if node.module else ())))
            inner = [f"{base}.{alias.name}" for alias in node.names if base]
            modules = [name for name in inner if _module_files(name, roots)[1]]
            yield from modules
            if base and len(modules) < len(node.names):  # names that the package or module itself has
                yield base
