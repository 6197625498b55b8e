"""`softbench gate` of a package: two environments, and the targets of softbench.toml."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from softbench.cli.actions import interruptible, measure, note, typed_command, write_text
from softbench.core.errors import UsageError
from softbench.core.text import count as counted
from softbench.core.toolchain import FRESH_CACHES, PRELOAD

if TYPE_CHECKING:
    from softbench.gate.targets import Target, TargetFile
    from softbench.gate.verdicts import GateReport, Rules
    from softbench.plan.plan import Plan
    from softbench.results.writer import Run
    from softbench.run.request import RunRequest

WORKING_TREE = "."


@dataclass(frozen=True, slots=True)
class Packages:
    """What the command line says of the two environments and the function."""

    candidate: str | None
    """A function, the name of a target, or None for all targets."""
    candidate_env: str | None
    reference_env: str | None
    build: Sequence[str]
    inputs: str | None
    tolerance: str | None
    changed: bool
    measure: Sequence[str]

    def compare(self, given: Mapping[str, Any], rules_of: Any, output: Path, allowed: Sequence[str]) -> GateReport | None:
        """Make both environments, measure, and judge. None if no target changed. `rules_of` makes the rules from a default margin."""
        from softbench.gate import ab_run, measures, next_step, packages, paired

        file = self._file()
        chosen = measures.parse(self.measure or (file.measure if file else ()))
        targets = self._targets(file, given)
        reference = self.reference_env or (file.reference if file else "") or packages.base_commit()[:12]
        if self.changed and not (targets := self._changed(targets, reference)):
            return None
        build = self.build or (file.build if file else ())
        with interruptible():
            sides = self._sides(reference, build)
        rules: Rules = rules_of((file and file.margin) or paired.MARGIN)
        note(f"calling {counted(len(targets), 'target')} once, to see what they return ...")
        with TemporaryDirectory(prefix="softbench-gate-") as folder, packages.operations_of(Path(folder)):
            os.environ[PRELOAD] = str(Path(folder) / "modules")
            with interruptible():
                request, by_op = packages.request_of(targets, sides, given, sys.argv[1:], output, Path(folder))
            given_margin = rules_of(math.inf).margin < math.inf  # --margin is that of all targets
            margins = {op: one.margin for op, one in by_op.items() if one.margin is not None and not given_margin}
            rules = replace(rules, margins=margins)
            adjusted = ab_run.ab_request(request, packages.CANDIDATE, packages.REFERENCE)
            adjusted = replace(adjusted, flags={**adjusted.flags, **({"profile": "every"} if chosen else {})})
            if "compile" in chosen:
                os.environ[FRESH_CACHES] = str(Path(folder) / "caches")
            notes: list[str] = []

            def announced(plan: Plan) -> str:
                notes.extend(packages.check(plan, sides, by_op))
                return f"{sides.candidate.shown} against {sides.reference.shown}: {ab_run.plan_text(plan, rules)}"

            runs = []

            def measuring(asked: RunRequest) -> Run:
                runs.append(measure(asked, resumable=False, announced=first))
                return runs[-1]

            first: list[Callable[[Plan], str]] = [announced]
            report = ab_run.compare(measuring, adjusted, packages.CANDIDATE, packages.REFERENCE, rules, None, allowed, note)
            report = measures.judged(report, runs[0], chosen, packages.CANDIDATE, packages.REFERENCE)
        report = packages.described(report, sides, by_op, notes)
        return replace(report, next_step=next_step.after_packages(report, typed_command(), adjusted.settings().processes))

    def _file(self) -> TargetFile | None:
        from softbench.gate import targets

        path = targets.find()
        if path is None and self.candidate is None:
            what = (
                f"go to {above}, which has one"
                if (above := targets.above())
                else "write it: softbench gate init, or give --candidate MODULE:NAME"
            )
            raise UsageError(f"gate: there is no softbench.toml here; {what}")
        return targets.read(path) if path else None

    def _targets(self, file: TargetFile | None, given: Mapping[str, Any]) -> list[Target]:
        from softbench.gate.targets import Target, tolerance
        from softbench.plan.settings import from_flags
        from softbench.plan.sweep import AXES

        axes = from_flags({name: given.get(name) for name in AXES if name != "op"})
        if self.candidate is None or ":" not in self.candidate:
            listed = list(file.targets) if file else []
            chosen = [one for one in listed if self.candidate in (None, one.label, one.function.partition(":")[2])]
            if not chosen:
                there = f"; the targets of {file.path} are {', '.join(one.label for one in listed)}" if file else ""
                raise UsageError(f"--candidate {self.candidate}: names no function; write MODULE:NAME{there}")
            if self.inputs or given.get("op"):
                raise UsageError("gate: --inputs, --op and --problem go with --candidate MODULE:NAME, because a target has its own")
            return [replace(one, axes={**one.axes, **axes}) for one in chosen]
        ops = given.get("op") or []
        if self.inputs and ops:
            raise UsageError("gate: --inputs and --op both give the inputs; leave out one")
        own = tolerance(self.tolerance, "--tolerance") if self.tolerance else None
        problem = [one for one in ops if one.endswith((".py", ".json", ".yml")) or ":" in one]
        op, problem_file = ("", problem[0]) if problem else (ops[0] if ops else "", "")
        return [Target(self.candidate, inputs=self.inputs or "", op=op, problem=problem_file, axes=axes, tolerance=own)]

    def _changed(self, targets: list[Target], reference: str) -> list[Target]:
        from softbench.gate.packages import base_commit
        from softbench.gate.targets import affected, changed_files
        from softbench.run.environments import commit_of

        files = changed_files(commit_of(reference) or base_commit())
        found = affected(targets, files)
        left_out = [one.label for one in targets if one not in found]
        note(f"--changed: {counted(len(files), 'changed file')} since {reference}; left out: {', '.join(left_out) or 'no target'}")
        return found

    def _sides(self, reference: str, build: Sequence[str]) -> Any:
        from softbench.gate.packages import Sides
        from softbench.run.environments import environment

        old = environment(reference, build=build, tell=note, at="--reference-env")
        return Sides(environment(self.candidate_env or WORKING_TREE, build=build, tell=note, at="--candidate-env"), old)


def init() -> NoReturn:
    """Write softbench.toml for the package of this folder, and end. Raises UsageError if there is one, or no package."""
    from softbench.gate import scan, targets

    if found := targets.find():
        raise UsageError(f"gate init: {found} has targets already; change them there, or remove it first")
    if (above := targets.above()) and not Path(targets.PROJECT).exists():
        raise UsageError(f"gate init: {above} has targets already; go there")
    written, count = scan.targets_text()
    write_text(Path(targets.FILE), written, "gate init")
    note(f"wrote {targets.FILE} with {counted(count, 'target')}; check their inputs, then: softbench gate")
    raise typer.Exit(0)
