"""Solutions of BackendBench as backends: a folder of operators, each with files such as `relu/relu_implementation_v1.py`.

All files of one version are one backend, so that operators are compared in one run. A file is imported when its operator is first built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from softbench.core.case import Case, safe_name
from softbench.core.errors import UsageError
from softbench.plugins.backend import Call

MARK, FUNCTION = "_implementation", "_kernel_impl"
"""What follows the operator's name in the name of a solution's file, and of its function."""


class Solutions:
    """The solutions of one version, by operation."""

    def __init__(self, name: str, files: Mapping[str, Path], operations: Sequence[str], importer: Callable[[Path], ModuleType]) -> None:
        self.name, self.operations, self.summary = name, tuple(operations), f"solutions in {next(iter(files.values())).parent.parent.name}"
        self._files, self._import = files, lru_cache(maxsize=None)(importer)

    def available(self) -> str | None:
        """None: whether a solution can run shows in its build."""
        return None

    def supports(self, case: Case) -> str | None:
        """None if there is a file for the operator."""
        return None if case.operation in self._files else f"it has no solution of {case.operation}"

    def prepare(self, case: Case) -> Call:
        """The function of the operator's file. Raises UsageError if it has none."""
        file = self._files[case.operation]
        name = f"{file.parent.name}{FUNCTION}"
        found: Call | None = getattr(self._import(file), name, None)
        if found is None:
            raise UsageError(f"{file.name} has no function {name}")
        return found


def files_of(folder: Path) -> list[Path]:
    """The files of the solutions of all operators."""
    return sorted(file for file in folder.glob(f"*/*{MARK}*.py") if file.name.startswith(f"{file.parent.name}{MARK}"))


def solutions(
    folder: Path, label: str, operations: Sequence[str], names: Mapping[str, str], importer: Callable[[Path], ModuleType]
) -> list[Solutions]:
    """The backends of a folder. `names` has the function of each operator that is asked for. Raises UsageError if none has a solution."""
    wanted = {name.removesuffix(FUNCTION): operation for operation, name in names.items() if name.endswith(FUNCTION)}
    versions: dict[str, dict[str, Path]] = {}
    for file in files_of(folder):
        if file.parent.name in wanted:
            version = file.stem.partition(MARK)[2].strip("_")
            versions.setdefault(version, {})[wanted[file.parent.name]] = file
    if not versions:
        raise UsageError(f"has no solution of these problems; expected relu/relu{MARK}*.py, and --problem backendbench:{folder.name}")
    return [
        Solutions(safe_name(f"{label}:{version}" if version else label), found, list(_declared(operations, found)), importer)
        for version, found in sorted(versions.items())
    ]


def _declared(operations: Sequence[str], names: Mapping[str, Path]) -> Iterator[str]:
    return (one for one in operations if one.partition("(")[0] in names)
