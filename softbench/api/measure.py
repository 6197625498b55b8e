"""`compare`, `run_gate` and `check`: the commands `run`, `gate` and `check` as functions."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from softbench.api.backends import Backend, Given, given
from softbench.api.keywords import CheckKeywords, GateKeywords, Operations, RunKeywords, Words
from softbench.api.options import given_settings, known_only, operations, path, takes, texts, words
from softbench.api.progress import watched
from softbench.core.case import OPERATION
from softbench.core.errors import UsageError
from softbench.plugins.source import split_alias, split_function

if TYPE_CHECKING:
    from softbench.api.result import Result
    from softbench.gate.verdicts import GateReport
    from softbench.plan.plan import Plan
    from softbench.results.writer import Run
    from softbench.run.check import CheckReport
    from softbench.run.request import RunRequest

RESULTS = Path("results")


@takes("run")
def compare(
    *backends: Backend,
    op: Operations = None,
    config: str | Path | None = None,
    output: str | Path = RESULTS,
    quick: bool = False,
    progress: bool | None = None,
    **options: Unpack[RunKeywords],
) -> Result:
    """Check and time backends on every shape, as `softbench run` does: isolated, interleaved, with the same files.

    Args:
        backends: names and patterns (`"torch"`, `"compile:*"`), plugin files (`"my_kernels.py"`, `"new=my_kernels.py"`), and functions
            that a worker can import. A function gets the tensors of the case's pass, such as `f(x)` of (M, N), and returns the result.
            Without this argument, all but the extras. The yardstick `copy` is always added.
        op: one operation or several, by name or by Python file. The default is that of the configuration, or softmax.
        config: a configuration: the name of a shipped one, or a TOML file. Other arguments override it.
        output: the folder of the results.
        quick: a short run: three short rounds and, without `N`, at most six N.
        progress: None shows the progress on a terminal and in a notebook, True always, False never.
        options: `M`, `N`, `shape`, `dim`, `dtype`, `direction`, `set`, `device`, `rounds` and others of `softbench run`.

    Returns:
        The result. A cell that is wrong or failed is a row with its reason, and `Result.ok` is false.

    Raises:
        UsageError: an argument is invalid, or a backend or device does not exist.
        SoftbenchError: no named backend can run here, or only the yardstick has the operation.
        ResultsError: the folder cannot be written.
        StorageError: the disk is full. The cells that were measured before are in the folder.
        WorkersError: the workers cannot be started.
        KeyboardInterrupt: Ctrl-C. All workers have ended, and the cells that were measured are in the folder.
    """
    from softbench.api.result import Result
    from softbench.run import run

    known_only(options, compare)
    with watched(progress, config, [*options, *(["backends"] if backends else [])]) as observer:
        chosen, found = given(backends), texts(options)
        named = {"backends": ",".join(chosen.labels) or None, **found, "config": config, "quick": quick}
        command = ["run", *words(chosen, op, named)]
        asked = _asked(chosen, op, found, command, output=output, config=config, quick=quick)
        measured = run.run(asked, observer, observer.follow)
    return Result.of_run(measured, observer.notes)


def _asked(
    backends: Given,
    op: Operations,
    found: Mapping[str, Any],
    command: Sequence[str],
    *,
    output: str | Path,
    config: str | PathLike[str] | None = None,
    quick: bool = False,
) -> RunRequest:
    """The request of a call. `command` has the words of the command line that repeats it."""
    from softbench.run.request import requested

    settings = {**given_settings(backends, op, found), "config": None if config is None else str(config)}
    return requested(settings, command, output=path(output, "output"), quick=quick)


@takes("gate")
def run_gate(
    candidate: Backend,
    reference: Backend,
    *,
    margin: float = 0.03,
    op: Operations = None,
    config: str | Path | None = None,
    output: str | Path = RESULTS / "gate",
    progress: bool | None = None,
    **options: Unpack[GateKeywords],
) -> GateReport:
    """Judge whether `candidate` is slower than `reference`, as `softbench gate --candidate --reference` does.

    Both are measured now, interleaved. Undecided cells are measured again, in fresh process pairs.

    Args:
        candidate: the backend that may have become slower, given as the backends of `compare`.
        reference: the backend that it is compared with. The same function or file twice measures the noise.
        margin: the slowdown that passes, as a fraction: .03 is 3 %.
        op: as in `compare`.
        config: as in `compare`.
        output: the folder of the measurements.
        progress: as in `compare`.
        options: as in `compare`.

    Returns:
        The report. Its `exit_code` is 0 for a pass, 1 for a regression and 3 for an inconclusive result. Its `summary` is one line.
        Its `verdicts` have ratio, interval and p of each cell.

    Raises:
        UsageError, ResultsError, StorageError, WorkersError, KeyboardInterrupt: as `compare`.
        InconclusiveError: the two backends did not run interleaved, because the device cannot hold both.
    """
    known_only(options, run_gate)
    return judged(candidate, reference, margin, op, config, output, progress, options)[0]


def judged(
    candidate: Backend,
    reference: Backend,
    margin: float,
    op: Operations,
    config: str | Path | None,
    output: str | Path,
    progress: bool | None,
    options: Mapping[str, Any],
) -> tuple[GateReport, str]:
    """The report of `run_gate`, and the command line that repeats the measurement."""
    from softbench.gate import ab_run, next_step
    from softbench.gate.verdicts import Rules
    from softbench.run import run

    if not isinstance(margin, int | float) or not 0 < margin <= 1:
        raise UsageError(f"margin {margin}: must be a fraction above 0, such as .03 for 3 %")
    rules = Rules(margin=margin)
    with watched(progress, config, options) as observer:
        both, found = given((candidate, reference), one_each=True), texts(options)
        new, old = both.names
        named = {"candidate": new, "reference": old, **found, "config": config, "margin": f"{100 * margin:g}"}
        command = ["gate", *words(both, op, named)]
        asked = ab_run.ab_request(_asked(both, op, found, command, output=output, config=config), new, old)
        announced: list[str] = []

        def on_plan(plan: Plan) -> None:
            if not announced:
                ab_run.check_candidate(plan, new)
                announced.append(ab_run.plan_text(plan, rules))
                observer.note(announced[0])

        def measure(one: RunRequest) -> Run:
            return run.run(one, observer, lambda started: None, on_plan)

        report = ab_run.compare(measure, asked, new, old, rules, tell=observer.note)
    line = shlex.join(["softbench", *command])
    return replace(report, next_step=next_step.after_pairs(report, line, asked.settings().processes)), line


@takes("check")
def check(
    *backends: Backend,
    op: Operations = OPERATION,
    case: str | Sequence[str] = "*",
    dtype: Words = None,
    direction: Words = None,
    sanitize: bool = False,
    invariance: bool = False,
    quick: bool = False,
    **options: Unpack[CheckKeywords],
) -> CheckReport:
    """Check backends on difficult shapes, layouts, values and gradients, as `softbench check` does. Nothing is timed.

    Args:
        backends: as in `compare`; without one, those of `plugins`.
        op: the operation, or the Python file of one.
        case: a shell pattern of the names of check cases, or several; a leading `!` selects the others.
        dtype: one or several; None for all that the operation has.
        direction: one or several; None for all that the operation has, or for `forward` if a backend is a function.
        sanitize: run the backends under compute-sanitizer, which finds accesses out of bounds.
        invariance: compare the bits of rows in different batches instead; `case` then takes lengths, such as `N=4096`.
        quick: with `invariance`, fewer lengths and numbers of rows.
        options: `set`, `device`, `seed`, `timeout` and `plugins`, as in `compare`.

    Returns:
        The report. Its `exit_code` is 0 if no check case is wrong or fails. Its `findings` have a verdict for each check case.

    Raises:
        UsageError, WorkersError, KeyboardInterrupt: as `compare`.
    """
    from softbench.plan.settings import from_flags
    from softbench.run.check import CheckRequest, check as run_check

    known_only(options, check)
    with watched(progress=False):
        if not (isinstance(case, str) or (isinstance(case, list | tuple) and case and all(isinstance(one, str) for one in case))):
            raise UsageError(f"case: must be a pattern of names, or several, not {case!r}")
        chosen = given(backends)
        if direction is None and any(split_function(split_alias(plugin)[1])[1] for plugin in chosen.plugins):
            direction = "forward"
        found = texts({**options, "dtype": dtype, "direction": direction})
        axes: dict[str, Any] = {name: [found.pop(name)] if name in found else None for name in ("dtype", "direction")}
        parameters = found.pop("set", None)
        patterns, op = [case] if isinstance(case, str) else case, ",".join(operations(op) or (OPERATION,))
        flags = from_flags(given_settings(chosen, None, found))
        what: dict[str, Any] = {"sanitize": sanitize, "invariance": invariance, "quick": quick}
        asked = CheckRequest.of(flags, op, patterns=patterns, set=parameters, **axes, **what)
        return run_check(asked, lambda done, total, now: None)
