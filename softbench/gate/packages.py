"""Compares two versions of a package, each in an environment of its own: the request of the run, and the checks before it measures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softbench import __version__
from softbench.core import text
from softbench.core.errors import InconclusiveError, UsageError
from softbench.gate.targets import Target
from softbench.gate.verdicts import GateReport
from softbench.ops import registry
from softbench.ops.operation import Operation
from softbench.plan.plan import Plan
from softbench.plan.settings import Layer, from_flags
from softbench.plan.sweep import AXES, Sweep
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import source_of
from softbench.run import operations
from softbench.run.environments import Environment, commit_of, git
from softbench.run.request import RunRequest, command_line

CANDIDATE, REFERENCE = "candidate", "base"
"""The names of the two backends; `reference` is that of a problem."""
MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
"""Where the main branch may be, in this order."""
LENT = "-packages"
"""How the folders of installed packages end."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The two environments."""

    candidate: Environment
    reference: Environment

    def of(self, name: str) -> Environment:
        """The environment of a backend."""
        return self.candidate if name == CANDIDATE else self.reference

    @property
    def one(self) -> bool:
        """True if both are the same environment."""
        return self.candidate.python == self.reference.python


def base_commit(repository: Path = Path()) -> str:
    """The commit to compare with by default: the merge base of HEAD and the main branch.

    On the main branch it is HEAD if files differ from it, else its parent.

    Raises:
        UsageError: there is no git repository, or no such commit.
    """
    head = commit_of("HEAD", repository)
    if not head:
        raise UsageError("gate: there is no commit to compare with here; name the old version: --reference-env REF|PATH|WHEEL")
    main = next((found for name in MAIN if (found := commit_of(name, repository))), head)
    base = git(repository, "merge-base", main, head)
    if base and base != head:
        return base
    if git(repository, "status", "--porcelain", "--untracked-files=no"):
        return head
    if not (parent := commit_of("HEAD^", repository)):
        shallow = git(repository, "rev-parse", "--is-shallow-repository") == "true"
        why = "this clone has only its last commit; fetch more: git fetch --deepen 50" if shallow else "HEAD is the first commit"
        raise UsageError(f"gate: there is nothing to compare with: {why}; or name the old version: --reference-env REF|PATH|WHEEL")
    return parent


@contextmanager
def operations_of(folder: Path) -> Iterator[None]:
    """The operations that are read from the files of a folder are known until the end."""
    try:
        yield
    finally:
        registry.forget(folder)


def request_of(
    targets: Sequence[Target], sides: Sides, given: Mapping[str, Any], command: Sequence[str], output: Path, folder: Path
) -> tuple[RunRequest, dict[str, Target]]:
    """The request that measures all targets on both sides, and the targets by their operation.

    Args:
        targets: each with an operation of its own.
        given: settings of the command line. Their axes are those of the targets already.
        command: the words of the command line, after `softbench`.
        output: the folder of the results.
        folder: where files for the workers are written. It must live as long as the request.

    Raises:
        UsageError: a function, an operation or an input cannot be had.
    """
    by_op: dict[str, Target] = {}
    sweeps: list[Sweep] = []
    flags: Layer = {}
    declared = _declared(targets, sides, folder, given.get("threads"))
    for target in targets:
        op, sweep = _operation(target, declared)
        if op in by_op:
            raise UsageError(f"gate: {by_op[op].function} and {target.function} both have the operation {op}; give one of them inputs")
        by_op[op] = target
        if sweep is None:
            flags |= {**target.axes, "op": (op,)}
        else:
            sweeps.append(sweep)
    plugins = [_side(name, sides, by_op, folder) for name in (CANDIDATE, REFERENCE)]
    others = {name: value for name, value in given.items() if name not in AXES and name != "config"}
    flags |= from_flags({**others, "plugins": plugins})
    config: Layer = {"sweep": tuple(sweeps)} if sweeps else {}
    return RunRequest(config, flags, False, output, False, command_line(command), __version__), by_op


def _side(name: str, sides: Sides, by_op: Mapping[str, Target], folder: Path) -> Path:
    """The plugin of a side, with its file of targets."""
    file, side = folder / f"{name}.targets", sides.of(name)
    functions = {op: _absolute(target.function) for op, target in by_op.items()}
    lent = [path for path in sys.path if path.endswith(LENT)]
    known = [one for one in registry.declarations() if one.partition("(")[0] in by_op]
    version = {"version": side.commit[:12] or ("" if side.source else side.shown), "source": str(side.source or "")}
    about = {"python": str(side.python), "functions": functions, "operations": known, "lent": lent, **version}
    file.write_text(json.dumps(about), "utf-8")
    return Path(f"{name}={file}")


def _operation(target: Target, declared: Mapping[Target, Operation]) -> tuple[str, Sweep | None]:
    """The operation of a target, and its cases; None for those of the device's default."""
    axes = {key: value for key, value in target.axes.items() if key not in ("M", "N", "set")}
    if target.op:
        op = (operations.names([target.op]) or [""])[0]
        if not (target.axes.get("shape") or (target.axes.get("M") and target.axes.get("N"))):
            return op, None
        return op, Sweep(**{**target.axes, "op": (op,)})
    if target.problem:
        op = (operations.names([target.problem], "--problem", cases=target.cases) or [""])[0]
        found = registry.declared(op)
    else:
        found = declared[target]
    dtypes = axes.pop("dtype", None) or tuple(dict.fromkeys(case.dtype or found.case_dtypes[0] for case in found.cases.values()))
    return found.name, Sweep(**axes, dtype=dtypes, op=(found.name,))


def _declared(targets: Sequence[Target], sides: Sides, folder: Path, threads: int | None) -> dict[Target, Operation]:
    """The operations of targets that have inputs or are benchmarks: as the reference declares them, or the candidate if that lacks it.

    Raises:
        UsageError: neither has the function, or its inputs are invalid.
    """
    files: dict[Path, Target] = {}
    for target in targets:
        if target.op or target.problem:
            continue
        file = folder / f"{target.label}.target"
        known = {"name": target.label, "function": _absolute(target.function), "inputs": target.inputs, "tolerance": target.tolerance}
        file.write_text(json.dumps({**known, "dtypes": target.axes.get("dtype") or (), "recorder": REFERENCE}), "utf-8")
        files[file] = target
    found: dict[Target, Operation] = {}
    wrong: list[str] = []
    pythons = [str(one.python) for one in (sides.candidate, sides.reference)]
    names = (REFERENCE,) if sides.one else (CANDIDATE, REFERENCE)
    looked_at = [source_of(_side(name, sides, {one.label: one for one in files.values()}, folder)) for name in names]
    for environment in dict.fromkeys((sides.reference, sides.candidate)):
        left = {file: (target.function.partition(":")[0], target.cases) for file, target in files.items() if target not in found}
        read = operations.read_in(str(environment.python), left, pythons, threads, sides=looked_at) if left else {}
        looked_at = []
        for file, one in read.items():
            if not isinstance(one, UsageError):
                found[files[file]] = one
                if environment is not sides.reference:  # a new function, whose outputs nothing else knows
                    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "recorder": CANDIDATE}), "utf-8")
            elif environment is sides.candidate or sides.one:
                wrong.append(_clear(files[file], environment, one))
    if wrong:
        several = f"{len(wrong)} of {len(targets)} targets cannot be called; mend or remove them: "
        raise UsageError(wrong[0] if len(wrong) == 1 else several + "; ".join(wrong))
    return found


def _clear(target: Target, environment: Environment, error: UsageError) -> str:
    """The error without the file of the worker."""
    said = str(error).partition(".target: ")[2] or str(error)
    return f"{target.function} in {environment.shown}: {said.removesuffix(f' ({target.label}.target)')}"


def _absolute(function: str) -> str:
    """The function with the absolute path of its file."""
    place, colon, name = function.partition(":")
    return f"{Path(place).resolve()}{colon}{name}" if place.endswith(".py") else function


def check(plan: Plan, sides: Sides, by_op: Mapping[str, Target]) -> list[str]:
    """Notes on the two environments, if their functions can be compared; before anything is measured.

    Raises:
        UsageError: an environment cannot be used, or lacks the package or a function.
        InconclusiveError: the only function is new, or a call of the reference's function is none of the candidate's.
    """
    infos = {info.name: info for info in plan.infos}
    for name, info in infos.items():
        if info.broken or info.unavailable:
            raise UsageError(f"{sides.of(name).shown}: {info.broken or info.unavailable}")
    old, new = infos[REFERENCE], infos[CANDIDATE]
    notes = []
    for op, target in by_op.items():
        facts, before = new.facts[op], old.facts[op]
        if not callable_as(before.get("signature"), facts.get("signature")):
            raise InconclusiveError(
                f"{target.function} takes ({before['signature']}) in {sides.reference.shown} and ({facts['signature']}) in "
                f"{sides.candidate.shown}; compare an expression that both take, as in MODULE:lambda x: {target.label}(x, ...)"
            )
        if why := facts.get("error"):
            raise UsageError(f"{sides.candidate.shown}: {why}; see --candidate, or {target.label} in softbench.toml")
        if why := before.get("error"):
            if len(by_op) == 1:
                raise InconclusiveError(f"{sides.reference.shown}: {why}; a new function has nothing to be compared with")
            notes.append(f"{target.function} is new: {sides.reference.shown}: {why}")
            continue
        for one, found in ((sides.candidate, facts), (sides.reference, before)):
            if found["lent"] and one.python != Path(sys.executable):
                package = target.function.partition(":")[0].partition(".")[0]
                own = f"has no package {package}; what Python finds there is that of softbench's own environment"
                raise UsageError(f"{one.shown}: {own}; give the command that installs it: --build, or build in softbench.toml")
        if facts["file"] and facts["file"] == before["file"] and not sides.one:
            both = f"{sides.candidate.shown} and {sides.reference.shown}"
            raise UsageError(f"{both} import {target.function} from the same file, so nothing is compared")
    return [*notes, *_described(sides, old, new)]


def callable_as(before: str | None, now: str | None) -> bool:
    """False if a call of the first signature may be none of the second: a parameter is gone, renamed, elsewhere, or lacks its default."""
    if before is None or now is None or before == now or "*args" in now:
        return True
    (old, old_named), (new, new_named) = (_parameters(one) for one in (before, now))
    if list(new)[: len(old)] != list(old) or not old_named.keys() <= {**new, **new_named}.keys():
        return False
    was, is_now = {**old, **old_named}, {**new, **new_named}
    return all(has_default or (name in was and not was[name]) for name, has_default in is_now.items())


def _parameters(signature: str) -> tuple[dict[str, bool], dict[str, bool]]:
    """The parameters of a signature that may be positional, and those that are named only, each with whether it has a default."""
    found: tuple[dict[str, bool], dict[str, bool]] = {}, {}
    named = False
    for part in filter(None, (part.strip() for part in signature.split(", "))):
        named = named or part.startswith("*")
        if part not in ("*", "/") and not part.startswith("**"):
            found[named][part.partition("=")[0]] = "=" in part
    return found


def _described(sides: Sides, old: BackendInfo, new: BackendInfo) -> list[str]:
    """Which versions are compared, and what else differs between the environments."""
    if sides.one:
        return [f"{sides.candidate.shown} and {sides.reference.shown} are one environment: both sides run the same code"]
    versions = {name: [side.facts[""].get(name, "not installed") for side in (new, old)] for name in {**new.facts[""], **old.facts[""]}}
    notes = [
        f"{name} is {now} in {sides.candidate.shown}, {before} in {sides.reference.shown}"
        for name, (now, before) in versions.items()
        if now != before
    ]
    commits = [
        f"{one.shown} is commit {one.commit[:12]}"
        for one in (sides.candidate, sides.reference)
        if one.commit and not one.commit.startswith(one.shown)
    ]
    return [*notes, *([text.few(commits)] if commits else [])]


def described(report: GateReport, sides: Sides, by_op: Mapping[str, Target], notes: Sequence[str]) -> GateReport:
    """The report, which names the functions and environments."""
    functions = text.few([target.function for target in by_op.values()])
    return replace(report, what=f"{functions}: {sides.candidate.shown} against {sides.reference.shown}", notes=(*notes, *report.notes))
