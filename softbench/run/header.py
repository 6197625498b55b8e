"""The header of a run document."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from softbench.core.case import YARDSTICK, Case, parse_op
from softbench.core.json import JsonObject
from softbench.ops import registry
from softbench.plan.plan import Plan
from softbench.plugins import targets
from softbench.plugins.info import BackendInfo
from softbench.results.document import environments
from softbench.run import process_spread

if TYPE_CHECKING:
    from softbench.run.request import RunRequest

KEYED = (
    *("device", "gpu", "gpu_memory_bytes", "driver", "power_limit_w", "cpu", "torch_threads"),
    *("cuda", "torch", "overrides", "triton", "python", "interleaved", "unit"),
)
"""Facts of the environment that must be equal to resume a run."""


def header(plan: Plan, request: RunRequest) -> JsonObject:
    """The run document without its cells: command, versions, settings, machine and backends."""
    settings = plan.settings
    return {
        "command": request.command,
        "softbench": request.version,
        "git_commit": _own_commit(),
        **({"shard": str(request.shard)} if request.shard else {}),
        "device_name": plan.device_name,
        "backends": [info.name for info in plan.infos],
        "origins": {info.name: info.origin.shown for info in plan.infos},
        "sources": {info.name: info.source for info in plan.infos},
        **_of_plugins(plan.infos),
        "yardstick": YARDSTICK,
        "relative_to": settings.relative_to,
        **({"problems": problems, **_formats(plan.cases)} if (problems := _problems(plan.cases)) else {}),
        "settings": {**settings.measuring(), "timeout": settings.timeout, "memory_share": settings.memory_share},
        **environments({plan.unit: {**plan.facts, **process_spread.facts(plan), **_operations(plan.cases)}}),
        "fingerprint": fingerprint(settings.measuring(), plan.facts, request.version, plan.cases, [info.name for info in plan.infos]),
    }


def fingerprint(
    measuring: dict[str, object], facts: dict[str, object], version: str, cases: Sequence[Case], backends: Sequence[str]
) -> dict[str, object]:
    """What must be equal to resume a run, by name, so that a message can name a difference."""
    what = {"softbench": version, "cases": f"{len(cases)} (hash {_hash(tuple(cases))})", "backends": ", ".join(backends)}
    if files := registry.files():
        what["operations"] = _digest(files)
    return {**what, **measuring, **{key: facts.get(key) for key in KEYED}}


def _digest(files: Sequence[str]) -> str:
    """A hash of files of operations."""
    contents = [path.read_bytes() if (path := registry.path_of(file)) else b"" for file in files]
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:8]


@lru_cache(maxsize=2)  # each card of a fleet asks
def _hash(cases: tuple[Case, ...]) -> str:
    return hashlib.sha256(" ".join(case.key for case in cases).encode()).hexdigest()[:8]


def _problems(cases: Sequence[Case]) -> JsonObject:
    """By the name of a problem: the values of its parameters that names of cases leave out. Empty without problems."""
    found = {op: registry.declared(op) for op in dict.fromkeys(case.operation for case in cases)}
    return {op: {one.name: one.default for one in problem.parameters} for op, problem in found.items() if problem.whole}


def _formats(cases: Sequence[Case]) -> JsonObject:
    """By the name of a problem its format, and by the name of a case what the format calls it."""
    found = {op: registry.declared(op) for op in dict.fromkeys(case.operation for case in cases)}
    specs = {case.key: list(one.spec) for case in cases if (one := found[case.operation].cases.get((case.op, case.M, case.N, case.shape)))}
    formats = {op: problem.format for op, problem in found.items() if problem.format}
    return {"formats": formats, "specs": {key: spec for key, spec in specs.items() if spec}}


def _operations(cases: Sequence[Case]) -> dict[str, dict[str, str]]:
    """The fact `operations`: the hash of the file of each user's operation that the run measures. Empty without such operations."""
    names = dict.fromkeys(parse_op(op)[0] for op in dict.fromkeys(case.op for case in cases))
    files = {name: registry.file_of(name) for name in names}
    hashes = {name: _digest([file]) for name, file in files.items() if file}
    return {"operations": hashes} if hashes else {}


def _own_commit() -> str | None:
    """The commit of softbench's checkout; None outside a checkout."""
    here = Path(__file__).resolve().parents[2]
    return _git_commit(here) if (here / ".git").exists() else None


def _of_plugins(infos: Sequence[BackendInfo]) -> JsonObject:
    """The commit of the checkout that each plugin file lies in, by backend, None outside one; and functions of packages, by operation.

    Of the functions of a package it is the commit of their environment, or the wheel or version that it was made from.
    """
    files = {info.name: file for info in infos if (file := info.origin.file)}
    packages = {name: json.loads(file.read_text("utf-8")) for name, file in files.items() if file.suffix == targets.SUFFIX}
    folders = {name: Path(packages[name]["source"] or file.parent) if name in packages else file.parent for name, file in files.items()}
    commits = {folder: _git_commit(folder) for folder in {*folders.values()}}
    found = {name: packages.get(name, {}).get("version") or commits[folder] for name, folder in folders.items()}
    functions = {op: function for package in packages.values() for op, function in package["functions"].items()}
    return {"commits": found, **({"functions": functions} if functions else {})}


def _git_commit(folder: Path) -> str | None:
    """The commit of a folder's checkout, with `+` if files differ; None outside a checkout."""
    # Without optional locks: `git describe --dirty` locks the index, and would leave the lock behind if the time-out ended it.
    git = ["git", "--no-optional-locks", "-C", str(folder)]
    questions = ["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]
    with suppress(OSError, subprocess.SubprocessError):
        commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, timeout=10, check=True).stdout.strip() for words in questions
        )
        return commit + ("+" if changes else "")
    return None
