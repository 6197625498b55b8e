"""`softbench check`: runs the check cases (`softbench.ops.check_case`) on every backend, without timing."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from fnmatch import fnmatchcase
from glob import escape
from itertools import product
from pathlib import Path

from softbench.core.case import DTYPES, OPERATION, YARDSTICK, Direction, parse_op, pass_name, value_text
from softbench.core.errors import Interrupted, UsageError, WorkersError
from softbench.core.json import JsonObject
from softbench.core.messages import CheckCaseGraded, CompareRows, Failure, ListCheckCases, RowsCompared, RunCheckCase, Skip
from softbench.core.outcome import ErrorMetrics, Grade
from softbench.core.text import did_you_mean, few, split_exclusions
from softbench.ops import registry
from softbench.plan import grammar, sweep
from softbench.plan.settings import Layer, Settings
from softbench.plugins.select import select
from softbench.plugins.source import PluginSource, origins, source_of
from softbench.plugins.static_scan import require_python
from softbench.processes.sanitizer import Sanitizer
from softbench.processes.session import Session
from softbench.processes.slot import MAX_DEATHS, WorkerSlot
from softbench.processes.worker_pool import Lost, Pool
from softbench.run import invariance as rows, operations

FAILED = "failed"
SKIPPED = "skipped"
BAD = frozenset({Grade.WRONG.value, FAILED})
CLOSE = 3
"""Names of check cases that the message about an unknown one has."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check case on one backend in one dtype."""

    backend: str
    """Name of the backend."""
    item: str
    """Name of the check case."""
    direction: str
    """`forward`, `backward`, `both` or `fused`."""
    dtype: str
    """`fp32`, `fp16` or `bf16`."""
    verdict: str
    """The class of the output, such as `pass` or `wrong`, or `skipped` or `failed`. Of `--invariance`: `invariant`, or what a row's bits
    depend on, such as `M, position`."""
    worst: float | None
    """The worst error over its bound; None if nothing was compared."""
    reason: str
    """Why it does not pass. For a pass: a trait that matters, or empty."""
    ulp: float | None = None
    """The largest error in units in the last place of the output's dtype. It decides nothing, like the next two: other tools print them.
    Of `--invariance`: the largest distance of two results of a row."""
    row_sum: float | None = None
    """The largest difference between the sum of a row of the output and that of the reference."""
    frobenius: float | None = None
    """||output - reference|| / ||reference||."""
    op: str = OPERATION
    """The operation with its parameters."""
    bits: str = ""
    """Of `--invariance`: a checksum of the results of its rows. Backends with the same one agree to the bit."""

    @property
    def of_pass(self) -> str:
        """The operation and the direction, as in `log_softmax forward`; the direction alone for the default operation."""
        return pass_name(self.op, self.direction)

    @property
    def bad(self) -> bool:
        """True if it makes the exit code 1."""
        return self.verdict in BAD or self.verdict.partition(",")[0] in rows.DEPENDS

    @property
    def compared(self) -> bool:
        """True if an output was compared."""
        of_rows = self.verdict.partition(",")[0] in (rows.INVARIANT, *rows.DEPENDS)
        return of_rows or (self.worst is not None and self.verdict != Grade.UNVERIFIED)


METRICS = tuple(one.name for one in fields(ErrorMetrics))


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What the user asked for."""

    settings: Settings
    patterns: tuple[str, ...]
    """Shell patterns of case names, such as `layout *`. A leading `!` excludes; with such patterns alone all others are taken."""
    dtypes: tuple[str, ...]
    directions: tuple[str, ...]
    op: str = OPERATION
    op_given: str = OPERATION
    """The operation as the user wrote it: its name, or its file."""
    sanitize: bool = False
    """True to run the backends under compute-sanitizer, one at a time."""
    invariance: bool = False
    """True to compare the bits of rows in different batches, in place of the check cases."""
    quick: bool = False
    """True for fewer lengths and numbers of rows."""
    plugins: tuple[str, ...] = ()
    """The plugins that the user named, beside solutions in the folder or the text of a problem."""
    alone: bool = False
    """True to check the backends of these plugins only: the user named no backends."""

    @classmethod
    def of(
        cls,
        flags: Layer,
        op: str = OPERATION,
        *,
        patterns: Sequence[str] | None = None,
        dtype: Sequence[str] | None = None,
        direction: Sequence[str] | None = None,
        set: Sequence[str] | None = None,
        sanitize: bool = False,
        invariance: bool = False,
        quick: bool = False,
    ) -> CheckRequest:
        """A request from the texts of options; without dtypes and directions those that the operation has.

        Raises:
            UsageError: an option is invalid, or does not fit the operation.
        """
        ops, solutions = operations.with_solutions([op])
        named = tuple(map(str, flags.get("plugins", ())))
        flags = {**flags, "plugins": (*flags.get("plugins", ()), *solutions)}
        require_python(flags["plugins"])
        directions = grammar.parse_directions(",".join(direction or Direction), "--direction")
        dtypes = grammar.parse_dtypes(",".join(dtype or DTYPES), "--dtype")
        of = operations.name(",".join(ops), set)
        sweep.require_passes(of, directions)
        sweep.require_dtypes(of, dtypes)
        dtypes = tuple(one for one in dtypes if one in registry.operation(of).dtypes)
        patterns = ("*",) if patterns is None else tuple(patterns)
        if quick and not invariance:
            raise UsageError("--quick is for --invariance; --case, --dtype and --direction choose a part of the check cases")
        if sanitize and invariance:
            raise UsageError("--sanitize runs check cases, and --invariance compares rows: give one of them")
        if invariance:
            directions = rows.directions_of(of, direction, directions)
        alone = bool(named) and "backends" not in flags
        return cls(Settings.from_sources({}, flags), patterns, dtypes, directions, of, op, sanitize, invariance, quick, named, alone)

    def sources(self) -> tuple[PluginSource, ...]:
        """Where the backends come from. Raises UsageError if a plugin does not exist."""
        if self.alone:
            return tuple(source_of(Path(plugin)) for plugin in self.plugins)
        return operations.sources([parse_op(self.op)[0]], origins(self.settings.plugins))

    def names(self) -> tuple[str, ...] | None:
        """Names and patterns of the backends: of a plugin alone also the extras. None for all but the extras."""
        return ("*",) if self.alone else self.settings.backends


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The results of a check."""

    findings: tuple[Finding, ...]
    """One for each check case, backend and dtype."""
    notes: tuple[str, ...]
    """Backends that could not be checked, with the reason, and what a problem leaves out."""
    broken: tuple[str, ...]
    """Those of the notes whose plugin could not be loaded."""
    device: str
    """`cuda` or `cpu`."""
    seed: int
    """The seed of the inputs."""
    op_given: str = OPERATION
    """The operation as the user wrote it: its name, or its file."""
    sanitized: bool = False
    """True if the backends ran under compute-sanitizer."""
    invariance: bool = False
    """True if the bits of rows were compared, in place of the check cases."""
    left: int = 0
    """Check cases that an interruption left out; each dtype of a case counts."""
    interrupted: int = 0
    """The exit code of the interruption."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """By backend: the plugin that it comes from, if the user named that."""
    alone: bool = False
    """True if plugins were checked without names of backends: one of softbench's may have the name of theirs."""
    lost: tuple[str, ...] = ()
    """Those of the notes about what a problem leaves out."""

    @property
    def nothing(self) -> str:
        """Why no output was compared; empty if one was."""
        if any(finding.compared for finding in self.findings):
            return ""
        if any(finding.verdict in BAD for finding in self.findings):
            return "no output was compared"  # each of these is told with its command
        reasons = dict.fromkeys(f"{finding.backend}: {finding.verdict}: {finding.reason}" for finding in self.findings)
        return f"no output was compared: {few(list(reasons) or list(self.notes) or ['no backend is left'], between='; ')}"

    @property
    def exit_code(self) -> int:
        """0 if an output was compared and no backend is wrong, failed or broken, else 1; that of an interruption if there was one."""
        if self.interrupted:
            return self.interrupted
        return 1 if self.broken or self.nothing or any(finding.bad for finding in self.findings) else 0

    def document(self) -> JsonObject:
        """The report as JSON; infinities and NaN are texts."""
        cells = [asdict(finding) for finding in self.findings]
        for cell in cells:
            for key in ("worst", *METRICS):
                if cell[key] is not None and not math.isfinite(cell[key]):
                    cell[key] = str(cell[key])
        return {"device": self.device, "seed": self.seed, "notes": self.notes, "cases_left": self.left, "findings": cells}

    def to_repeat(self) -> list[tuple[Finding, str]]:
        """Each wrong or failed finding with the command line that repeats it."""
        return [(finding, self._command(finding)) for finding in self.findings if finding.bad]

    def _command(self, finding: Finding) -> str:
        plugin = self.plugins.get(finding.backend)
        words = [
            "softbench",
            "check",
            *(["--sanitize"] if self.sanitized else []),
            *(["--invariance"] if self.invariance else []),
            *([] if self.alone and plugin and [*self.plugins.values()].count(plugin) == 1 else ["--backends", finding.backend]),
            f"--case={finding.item if self.invariance else escape(finding.item)}",
            "--direction",
            finding.direction,
        ]
        name, parameters = parse_op(finding.op)
        words += ["--op", name if self.op_given.partition("(")[0] == name else self.op_given] if name != OPERATION else []
        words += ["--set", ",".join(f"{key}={value_text(value)}" for key, value in parameters.items())] if parameters else []
        words += ["--dtype", finding.dtype, "--device", self.device, "--seed", str(self.seed)]
        words += ["--plugin", plugin] if plugin else []
        return shlex.join(words)


def check(request: CheckRequest, advance: Callable[[int, int, str], None]) -> CheckReport:
    """Run all check cases of a request. After an interruption the report has what was found.

    `advance(done, total, now)` is called before each; `now` names it.

    Raises:
        UsageError: a backend, a device or a case does not exist.
        Interrupted: nothing was found before the interruption.
    """
    settings = request.settings
    findings: list[Finding] = []
    done, total, interrupted = 0, 0, 0
    sanitizer = _sanitizer() if request.sanitize else None
    try:
        with Session(settings.device, settings.timeout["import"], request.sources(), sanitizer=sanitizer) as session:
            if sanitizer and session.gpu is None:
                raise UsageError("--sanitize: compute-sanitizer looks at the memory of a CUDA GPU, and the backends run on the CPU")
            cases = [case for case in _cases(session.pool, request) if not (sanitizer and case[2])]  # those fill the GPU's memory
            opened = session.open_for(request.names())
            infos = select([slot.info for slot in opened], request.names())
            chosen = [slot for slot in opened if slot.info in infos and slot.name != YARDSTICK]
            able = [slot for slot in chosen if slot.info.able]
            unable = [slot for slot in chosen if not slot.info.able]
            lost = registry.operation(request.op).lost
            notes = [f"{slot.name}: {slot.info.broken or 'unavailable: ' + slot.info.unavailable}" for slot in unable]
            if not chosen and request.alone:
                raise UsageError(f"--plugin {request.plugins[0]}: {YARDSTICK} is the name of the yardstick; rename it: --plugin NAME=FILE")
            if not chosen:
                raise UsageError(f"--backends {YARDSTICK}: the yardstick computes nothing; name the backends to check")
            if request.alone and not able and any(slot.info.broken for slot in unable):
                raise UsageError(f"--plugin {'; '.join(notes)}")
            session.drop([slot for slot in opened if slot not in able])
            checker = _Checker(session, settings, sanitizer)
            steps = _steps(request, cases)
            total = len(steps)
            for dtype, (name, direction, alone, _) in steps:
                advance(done, total, f"{name}, {direction} {dtype}")
                findings += checker.run(able, _asked(request, name, direction, dtype), alone=alone)
                done += 1
    except Interrupted as stop:
        if not findings:
            raise
        interrupted = stop.exit_code if done < total else 0  # else the check is complete
    broken = tuple(note for note, slot in zip(notes, unable, strict=True) if slot.info.broken)
    return CheckReport(
        tuple(findings),
        (*notes, *lost),
        broken,
        session.device,
        settings.seed,
        request.op_given,
        request.sanitize,
        request.invariance,
        total - done,
        interrupted,
        {slot.name: slot.info.origin.shown for slot in chosen if slot.info.origin.shown in request.plugins},
        request.alone,
        lost,
    )


def _asked(request: CheckRequest, name: str, direction: Direction, dtype: str) -> RunCheckCase | CompareRows:
    """What is asked of each backend."""
    if not request.invariance:
        return RunCheckCase(request.op, name, direction, dtype, request.settings.seed)
    counts, seconds = (rows.QUICK_COUNTS, rows.QUICK_SECONDS) if request.quick else (rows.COUNTS, rows.SECONDS)
    return CompareRows(request.op, rows.length(name), direction, dtype, request.settings.seed, counts, seconds)


def _steps(request: CheckRequest, cases: Sequence[tuple[str, Direction, bool, str]]) -> list[tuple[str, tuple[str, Direction, bool, str]]]:
    """Each dtype of a request with each case of that dtype, by direction."""
    dtypes = product(request.directions, request.dtypes)
    return [(dtype, case) for direction, dtype in dtypes for case in cases if case[1] == direction and case[3] in ("", dtype)]


def _sanitizer() -> Sanitizer:
    """compute-sanitizer. Raises UsageError if it is not installed."""
    from softbench.kernels.common.cuda_toolkit import compute_sanitizer

    if (program := compute_sanitizer()) is None:
        raise UsageError("--sanitize: no compute-sanitizer on PATH or under CUDA_HOME; it comes with the CUDA toolkit")
    return Sanitizer(program)


def _cases(pool: Pool, request: CheckRequest) -> list[tuple[str, Direction, bool, str]]:
    """Name, direction, whether it needs the device alone, and the only dtype if it has one, of each check case that the request selects."""
    if request.invariance:
        return rows.cases(request.patterns, request.directions, quick=request.quick)
    listed = _listed(pool, request)
    names = list(dict.fromkeys(name for name, *_ in listed))
    for pattern in request.patterns:
        if not pattern:
            raise UsageError(f"--case '': the cases of {request.op} are {', '.join(map(repr, names))}")
        if not any(fnmatchcase(name, pattern.removeprefix("!")) for name in names):
            hint = "each pattern needs its own --case; " if "," in pattern else did_you_mean(pattern, names, CLOSE)
            raise UsageError(f"--case: unknown case '{pattern}'; {hint}--case '' prints the {len(names)} names")
    wanted, excluded = split_exclusions(request.patterns)
    named = [case for case in listed if _matches(case[0], wanted or ["*"]) and not _matches(case[0], excluded)]
    chosen = [case for case in named if case[1] in request.directions]
    if not chosen:
        there = sorted({case[1] for case in named})
        what = f"those cases are of --direction {', '.join(there)} only" if there else "no case is left"
        raise UsageError(f"--case {' --case '.join(map(repr, request.patterns))}: {what}")
    return chosen


def _listed(pool: Pool, request: CheckRequest) -> Sequence[tuple[str, Direction, bool, str]]:
    """All check cases of the operation, as `_cases`. Raises WorkersError if they cannot be read."""
    worker = pool.spawn("check cases")
    reply = pool.ask(worker, ListCheckCases(request.op, registry.files()), request.settings.timeout["import"], "import")
    pool.discard(worker)
    if isinstance(reply, Lost | Failure):
        raise WorkersError(f"the check cases cannot be read: {reply.reason}")
    return reply.cases


def case_names(request: CheckRequest) -> list[str]:
    """The names of all check cases of the operation. Raises as `check`."""
    with Session(request.settings.device, request.settings.timeout["import"]) as session:
        return list(dict.fromkeys(name for name, *_ in _listed(session.pool, request)))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class _Checker:
    """Runs one check case at a time on all slots; a slot that lost its worker gets a new one."""

    def __init__(self, session: Session, settings: Settings, sanitizer: Sanitizer | None = None) -> None:
        self.session, self.pool, self.settings = session, session.pool, settings
        self.sanitizer = sanitizer
        self.together = not session.exclusive and self.sanitizer is None

    def run(self, slots: Sequence[WorkerSlot], request: RunCheckCase | CompareRows, *, alone: bool) -> list[Finding]:
        deadline = self.settings.timeout["build"]  # a check case may compile
        findings: list[Finding] = []
        for batch in [[slot] for slot in slots] if alone or not self.together else [slots]:
            ready: list[WorkerSlot] = []
            for slot in batch:
                if reason := self._unready(slot):
                    findings.append(_finding(slot, request, FAILED, reason))
                else:
                    ready.append(slot)
            requests = {i: (slot.worker, request) for i, slot in enumerate(ready) if slot.worker is not None}
            for i, reply in self.pool.gather(requests, deadline, "check").items():
                if isinstance(reply, Lost) and reply.orphan and len(ready) > 1:  # each alone, to find a backend that ends the forkserver
                    findings += self.run([ready[i]], request, alone=True)
                else:
                    findings.append(self._read(ready[i], reply, request))
            if self.sanitizer and findings and (reason := self.sanitizer.found()):
                findings[-1] = replace(findings[-1], verdict=Grade.WRONG.value, worst=None, reason=reason)
            if self.session.exclusive:
                for slot in batch:
                    slot.drop(self.pool)
        return findings

    def _unready(self, slot: WorkerSlot) -> str:
        if slot.deaths >= MAX_DEATHS:
            return f"not tried: {MAX_DEATHS} cases in a row ended its worker"
        return self.session.revive([slot]).get(slot, "")

    def _read(
        self, slot: WorkerSlot, reply: CheckCaseGraded | RowsCompared | Skip | Failure | Lost, request: RunCheckCase | CompareRows
    ) -> Finding:
        if isinstance(reply, Lost):
            slot.worker = None
            slot.deaths = 0 if reply.invalid else slot.deaths + 1  # after an invalid reply the next cases are tried
            return _finding(slot, request, FAILED, reply.reason)
        if isinstance(reply, Failure):
            if reply.poisoned:
                slot.drop(self.pool)
                slot.deaths += 1
            return _finding(slot, request, FAILED, reply.reason)
        slot.deaths = 0
        if isinstance(reply, Skip):
            return _finding(slot, request, SKIPPED, reply.reason)
        if isinstance(reply, RowsCompared):
            verdict, reason, ulp = rows.told(reply)
            return replace(_finding(slot, request, verdict, reason), ulp=ulp, bits=reply.bits)
        accuracy, metrics = reply.accuracy, reply.metrics
        found = replace(_finding(slot, request, accuracy.grade.value, accuracy.detail), worst=accuracy.worst)
        if metrics is None:
            return found
        return replace(found, ulp=metrics.ulp, row_sum=metrics.row_sum, frobenius=metrics.frobenius)


def _finding(slot: WorkerSlot, request: RunCheckCase | CompareRows, verdict: str, reason: str) -> Finding:
    return Finding(slot.name, request.name, request.direction, request.dtype, verdict, None, reason, op=request.operation)
