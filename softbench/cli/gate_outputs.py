"""The outputs of `softbench gate`: table, JSON, Markdown, JUnit XML, figure and job summary."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from softbench.cli import verbosity
from softbench.cli.actions import note, reject_stdout, try_file, write_text, wrote_to_stdout
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.text import printable

if TYPE_CHECKING:
    from softbench.gate.verdicts import GateReport


LOG_WIDTH = 150
"""Columns of the table in a log: reasons are wrapped, so that a reader of the log or of a comment sees all columns."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The requested outputs of a report."""

    json: Path | None
    markdown: Path | None
    junit: Path | None
    plot: Path | None
    long: bool
    quiet: bool

    def checked(self) -> Outputs:
        """These outputs, before any work.

        Raises:
            UsageError: a file cannot be written, or `long` and `quiet` contradict each other.
        """
        from softbench.report import style

        verbosity.choose(quiet=self.quiet, verbose=self.long)

        try_file(self.json)
        for flag, file in (("--markdown", self.markdown), ("--junit", self.junit), ("--plot", self.plot)):
            if file is not None:
                reject_stdout(file, flag)
            if file is not None and (not file.parent.is_dir() or file.is_dir()):
                raise UsageError(f"{flag} {file}: cannot be written: {'is a folder' if file.is_dir() else 'no such folder'}")
        if self.plot is not None:
            style.check_format(self.plot, "--plot")
        return self

    def render(self, report: GateReport) -> NoReturn:
        """Write every requested output, and exit with the report's code."""
        from softbench.cli import output
        from softbench.report import gate_report

        for text in report.notes:
            note(text)
        if not wrote_to_stdout(report.document, self.json):
            shown = gate_report.brief(report) if self.quiet else gate_report.text(report, long=self.long)
            output.show(shown, output.console(log_width=LOG_WIDTH))
            if report.next_step:
                typer.echo(printable(f"next: {report.next_step}"))  # rich would break the line, and the command could not be pasted
        for flag, file, make in (("--markdown", self.markdown, gate_report.markdown), ("--junit", self.junit, gate_report.junit)):
            if file is not None:
                write_text(file, make(report), flag)
                note(f"wrote {file}")
        self._summary(gate_report.markdown(report))
        if self.plot is not None:
            self._draw(report, self.plot)
        raise typer.Exit(report.exit_code)

    def _draw(self, report: GateReport, file: Path) -> None:
        """Draw the forest plot. An error is printed and does not change the exit code."""
        from softbench.report import gate_figures

        try:
            note(f"wrote {gate_figures.write(report, file)}")
        except SoftbenchError as error:
            note(str(error), error=True)

    def _summary(self, text: str) -> None:
        """Append to GitHub's job summary. An error is printed and does not change the exit code."""
        if path := os.environ.get("GITHUB_STEP_SUMMARY"):
            try:
                with Path(path).open("a", encoding="utf-8") as file:
                    file.write(text)
            except OSError as error:
                note(f"$GITHUB_STEP_SUMMARY cannot be written: {error.strerror}", error=True)
