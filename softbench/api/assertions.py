"""The assertions of the pytest fixture `softbench`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Unpack

import pytest

from softbench.api.backends import Backend, given
from softbench.api.keywords import CheckKeywords, GateKeywords, Operations, RunKeywords, Words
from softbench.api.measure import check, compare, judged
from softbench.api.options import keywords, known_only, takes, texts, words
from softbench.core.case import OPERATION
from softbench.core.errors import InconclusiveError, SoftbenchError, UsageError
from softbench.core.text import count, margin as shown_margin, percent

if TYPE_CHECKING:
    from softbench.gate.verdicts import GateReport, Verdict
    from softbench.results.columns import Row

SHAPE = {"M": 4096, "N": 4096}
"""The shape of a measurement that names none."""
ALL = "*"
"""The pattern of all check cases."""
MOST_OF_COPY = 10
"""The largest fraction of copy that can be asked for; a larger one is a percentage."""
NAMED = 3
"""Cells or findings that a message names."""


P = ParamSpec("P")


def shows_the_test(assertion: Callable[P, None]) -> Callable[P, None]:
    """The assertion, whose errors of use show the line of the test and none of softbench's."""

    @wraps(assertion)
    def short(*args: P.args, **options: P.kwargs) -> None:
        __tracebackhide__ = True
        try:
            assertion(*args, **options)
        except SoftbenchError as error:
            raise error.with_traceback(None) from None

    return short


class Softbench:
    """What a test asserts about kernels. A backend is what `softbench.compare` takes: a function, a file, or a name."""

    def __init__(self, folder: Path, note: Callable[[str], object]) -> None:
        """`folder` gets the results; `note` gets a line of the summary for each assertion."""
        self.folder, self._note = folder, note

    @shows_the_test
    @takes("check")
    def assert_correct(
        self,
        fn: Backend,
        op: str | PathLike[str] = OPERATION,
        *,
        dtype: Words = None,
        direction: Words = "forward",
        case: str = ALL,
        **options: Unpack[CheckKeywords],
    ) -> None:
        """Assert that `fn` is correct in the check cases of the operation: shapes, layouts and values, in all dtypes or in these.

        The arguments are those of `softbench.check`.

        Raises:
            AssertionError: an output is wrong, or a check case fails. The message has the reason and the command that repeats it.
        """
        __tracebackhide__ = True
        self._check((fn,), op, dtype, direction, case, options)

    @shows_the_test
    @takes("gate")
    def assert_not_slower(
        self,
        new: Backend,
        old: Backend,
        margin: float = 0.03,
        *,
        op: Operations = None,
        config: str | Path | None = None,
        case: str = ALL,
        **options: Unpack[GateKeywords],
    ) -> None:
        """Assert that `new` is correct and not more than `margin` slower than `old`, as `softbench.run_gate` finds. .03 is 3 %.

        An inconclusive measurement skips the test, with the reason. Without a GPU both backends are checked in the check cases of `case`,
        as in `assert_correct`, and the test is then skipped.
        With `device="cpu"` they are measured on the CPU.

        Raises:
            AssertionError: `new` is slower or wrong. The message has ratio, interval, p and the command that repeats the measurement.
        """
        __tracebackhide__ = True
        known_only(options, self.assert_not_slower)
        self._without_gpu((new, old), op, case, options)
        try:
            report, command = judged(new, old, margin, op, config, self.folder, None, _with_shape(options, config))
        except InconclusiveError as error:
            pytest.skip(f"softbench: {error}")
        text = _verdicts(report)
        self._note(f"{report.what.partition(', ')[0]}: {text}")
        if report.exit_code == 1:
            raise AssertionError(f"{report.summary}\n{text}\nrepeat it: {command}\nresults: {self.folder}")
        if report.exit_code:
            pytest.skip(f"softbench: {report.summary}; {text}; repeat it: {command}")

    @shows_the_test
    @takes("run")
    def assert_bandwidth(
        self,
        fn: Backend,
        at_least_of_copy: float = 0.9,
        *,
        op: Operations = None,
        config: str | Path | None = None,
        quick: bool = False,
        case: str = ALL,
        **options: Unpack[RunKeywords],
    ) -> None:
        """Assert that `fn` is correct and reaches this fraction of the bandwidth of `copy` in every cell, as `softbench.compare` finds.

        Cells with a label, such as `noisy`, count as the others do. Where `copy` itself is doubtful, nothing can be said, and the test is
        skipped unless another cell is slower. Without a GPU `fn` is checked in the check cases of `case`, as in `assert_correct`, and the
        test is then skipped.
        With `device="cpu"` it is measured on the CPU.

        Raises:
            AssertionError: a cell is slower, wrong, or has no bandwidth. The message has the fraction and the command that repeats it.
        """
        __tracebackhide__ = True
        known_only(options, self.assert_bandwidth)
        if not 0 < at_least_of_copy <= MOST_OF_COPY:
            raise UsageError(f"at_least_of_copy: must be a fraction above 0, such as .9 for 90 %, not {at_least_of_copy}")
        self._without_gpu((fn,), op, case, options)
        sized = texts(_with_shape(options, config))  # a generator gives its values once
        result = compare(fn, op=op, config=config, quick=quick, output=self.folder, **sized)
        rows = [row for row in result.rows if row.backend != "copy"]
        unknown = [row for row in rows if row.timed and not row.of_copy]
        low = [row for row in rows if row not in unknown and not (row.of_copy or 0) >= at_least_of_copy]
        text = _fractions(low or sorted(rows, key=lambda row: row.of_copy or 0))
        self._note(f"{rows[0].backend if rows else fn}: {text}")
        if low or not rows:
            chosen = given((fn,))
            named = {"backends": ",".join(chosen.labels), **sized, "config": config, "quick": quick}
            command = shlex.join(["softbench", "run", *words(chosen, op, named)])
            found_low = f"{count(len(low), 'cell')} below {percent(at_least_of_copy)} of copy"
            raise AssertionError(f"{found_low}\n{text}\nrepeat it: {command}\nresults: {result.csv}")
        if unknown:
            self._skip(f"copy is doubtful in {count(len(unknown), 'cell')}, so nothing can be said: repeat it when nothing else runs")

    def _without_gpu(self, backends: Sequence[Backend], op: Operations, case: str, options: Mapping[str, Any]) -> None:
        """Without a GPU: check the backends, and skip the test. With one, or on the CPU if the test names it: return."""
        __tracebackhide__ = True
        from softbench.run import doctor

        if options.get("device", "auto") != "auto" or not (reason := doctor.no_gpu()):
            return
        of_check = {name: value for name, value in options.items() if name in keywords("check")}
        self._check(backends, op or OPERATION, options.get("dtype", "fp32"), options.get("direction", "forward"), case, of_check)
        self._skip(f"checked, and not timed: no GPU ({reason}); device='cpu' times it on the CPU")

    def _skip(self, reason: str) -> NoReturn:
        pytest.skip(f"softbench: {reason}")

    def _check(
        self, backends: Sequence[Backend], op: Operations, dtype: Words, direction: Words, case: str, options: Mapping[str, Any]
    ) -> None:
        __tracebackhide__ = True
        report = check(*backends, op=op, case=case, dtype=dtype, direction=direction, **options)
        names = ", ".join(dict.fromkeys(finding.backend for finding in report.findings))
        compared = sum(finding.worst is not None for finding in report.findings)
        bad = report.to_repeat()
        self._note(f"{names or 'no backend'}: {count(compared, 'check case')}, {len(bad)} wrong or failed")
        if report.exit_code == 0:
            return
        lines = [
            f"{finding.backend} {finding.verdict} in '{finding.item}' {finding.direction} {finding.dtype}: {finding.reason}\n"
            f"  repeat it: {command}"
            for finding, command in bad[:NAMED]
        ]
        more = [f"and {count(len(bad) - NAMED, 'other')}"] if len(bad) > NAMED else []
        raise AssertionError(
            "\n".join([*report.notes, *lines, *more]) or "no check case compared an output; see skipped cases: softbench check"
        )


def _with_shape(options: Mapping[str, Any], config: str | Path | None) -> dict[str, Any]:
    """The options with the default shape, unless they or a configuration give one."""
    sized = config is not None or options.keys() & {"M", "N", "shape"}
    return {**({} if sized else SHAPE), **options}


def _verdicts(report: GateReport) -> str:
    """The worst cells: ratio, interval and p."""
    shown = [_verdict(verdict) for verdict in report.verdicts[:NAMED]]
    more = len(report.verdicts) - NAMED
    return "; ".join([*shown, *([f"and {count(more, 'other cell')}"] if more > 0 else [])])


def _verdict(verdict: Verdict) -> str:
    if verdict.ratio is None:
        return f"{verdict.cell.case}: {verdict.state}: {verdict.reason}"
    interval = f" ({verdict.interval[0]:.3f} to {verdict.interval[1]:.3f})" if verdict.interval else ""
    p = f", p {verdict.p:.2g}" if verdict.p is not None else ""
    limit = f", margin {shown_margin(verdict.margin)}" if verdict.margin else ""
    return f"{verdict.cell.case}: {verdict.state}, new/old {verdict.ratio:.3f}{interval}{p}{limit}"


def _fractions(rows: Sequence[Row]) -> str:
    """The fraction of copy of some rows."""
    shown = [f"{row.case}: {percent(row.of_copy)} of copy" if row.of_copy else f"{row.case}: {row.status}: {row.reason}" for row in rows]
    return "; ".join([*shown[:NAMED], *([f"and {count(len(shown) - NAMED, 'other cell')}"] if len(shown) > NAMED else [])])
