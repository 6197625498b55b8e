"""`softbench bisect`."""

from __future__ import annotations

import hashlib
import json as as_json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softbench import __version__
from softbench.cli.actions import end, note, try_file, wrote_to_stdout
from softbench.cli.options import GATE_EPILOG, Quiet, option
from softbench.cli.panels import CONTEXT, OUTPUT, WHERE, PanelCommand
from softbench.core.errors import Interrupted, UsageError
from softbench.core.text import count, one_line, printable

if TYPE_CHECKING:
    from softbench.gate.bisect import Found, Step
    from softbench.gate.commits import Commit
    from softbench.gate.samples import CellKey

EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}
MORE = 4
"""An undecided comparison is repeated once, with so many times as many process pairs, if that may decide it."""
TOLD = re.compile(r"softbench: ((?:making|made) the environment .*|waiting .*|(\d+ of \d+ cells, .*))")
"""Lines of the gate that are shown."""
TELL_SECONDS = 30.0
"""The least time between two lines on how far a comparison is."""


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand, epilog=GATE_EPILOG, context_settings=EXTRA)(bisect)


def bisect(
    good: Annotated[str, typer.Argument(metavar="GOOD", help="The last commit, tag or branch that is known to be fast.")],
    bad: Annotated[str, typer.Argument(metavar="BAD [GATE OPTIONS]", help="A later one. Options of softbench gate follow.")] = "HEAD",
    plugin: Annotated[
        str | None,
        option(WHERE, "A plugin file of the repository, in place of functions of a package.", metavar="FILE"),
    ] = None,
    backend: Annotated[str | None, option(WHERE, "The backend of the plugin, if it has several.")] = None,
    output: Annotated[Path, option(WHERE, "Folder of the measurements; decided ones are used again.", "-o", "--output")] = Path("results")
    / "bisect",
    json: Annotated[Path | None, option(OUTPUT, "Write commits and comparisons as JSON; - is stdout.", metavar="FILE|-")] = None,
    quiet: Quiet = False,
) -> None:
    """Find the commits that made something slower, with the gate as the test of each commit.

    Commits from GOOD to BAD are compared with GOOD: the targets of softbench.toml, or a plugin. An undecided one is measured in more
    process pairs, and then its neighbour instead. A commit that was found is compared with its parent. Then the search goes on, so it finds
    each slowdown.

        softbench bisect v1.0 main --candidate rms_norm --dtype bf16
    """
    from softbench.cli import verbosity
    from softbench.cli.output import interruptible
    from softbench.gate import commits
    from softbench.gate.bisect import MOST_UNDECIDED, Search, steps_at_most

    verbosity.choose(quiet=quiet, verbose=False)
    words = list(CONTEXT.get().args)
    if good.startswith("-"):
        raise UsageError(f"bisect: no such option before GOOD: {good}; those of the gate follow; see: softbench bisect --help")
    if bad.startswith("-"):  # the first option of the gate: BAD was left out
        words, bad = [bad, *words], "HEAD"
    if "--dry-run" in words:
        raise UsageError("bisect: --dry-run decides nothing; the plan of one comparison: softbench gate --dry-run")
    try_file(json)
    line = commits.line(good, bad)
    known = {one.name: one for one in line}
    most = steps_at_most(len(line) - 1)
    after = f"{count(len(line) - 1, 'commit')} after {line[0].short}"
    note(f"{after}: at most {most} comparisons for each slowdown, and {MOST_UNDECIDED} more that stay undecided")
    found: list[Found] = []
    try:
        with interruptible(), ExitStack() as stack:
            comparison = _Gate(_sides(plugin, backend, stack), words, output)

            def compare(commit: str, against: str, cells: Collection[CellKey]) -> Step:
                note(f"comparison {len(search.steps) + 1}: {known[commit].short} against {known[against].short}")
                return comparison.step(commit, against, cells, first=not search.steps, end=search.end)

            search = Search([one.name for one in line], compare, lambda step: note(f"  {step.text}"))
            for one in search.run():
                found.append(one)
                if str(json) != "-":
                    typer.echo(printable(_sentence(one, known)))
    except Interrupted as stop:
        end(stop.exit_code, f"interrupted; the same command goes on from here, with the measurements in {output}")
    raise typer.Exit(_ended(line, found, search.steps, json))


def _ended(line: Sequence[Commit], found: Sequence[Found], steps: Sequence[Step], json: Path | None) -> int:
    """Tell how the search ended; returns the exit code."""
    from softbench.gate.bisect import Decision

    last, names = steps[-1], {one.name: one.short for one in line}
    code = 1 if found else 3 if last.decision is Decision.UNDECIDED else 0
    if not wrote_to_stdout(lambda: _document(line, found, steps, code), json):
        if not found:
            typer.echo(printable(f"{names[last.commit]} against {names[last.against]}: {last.text}{_next(last)}"))
        elif last.decision is Decision.UNDECIDED:
            note(f"what follows {names[last.against]} is undecided: {last.text}{_next(last)}")
    return code


def _document(line: Sequence[Commit], found: Sequence[Found], steps: Sequence[Step], code: int) -> dict[str, Any]:
    from softbench.gate.bisect import step_document

    return {
        "commits": [one._asdict() for one in line],
        "found": [one.document() for one in found],
        "steps": [step_document(one) for one in steps],
        "exit_code": code,
    }


def _sentence(one: Found, known: dict[str, Commit]) -> str:
    """What was found, and the command that shows it."""
    from softbench.gate.bisect import Decision

    commit, before = known[one.commit], known[one.before]
    if one.undecided:
        cause = f"slower: one of {len(one.undecided) + 1} commits, {known[one.undecided[0]].short} to {commit.short}"
        return f"{cause}, of which only the last is decided: {one.step.text}; see: git log {before.short}..{commit.short}"
    named = f'{commit.short} "{commit.subject}" of {commit.date}'
    if one.step.decision is Decision.SLOWER:
        return f"{named} is {one.step.text}, against {before.short}; see: git show {commit.short}"
    return f"{named} is the first one beyond the margin, but not the only cause; against {before.short} it is {one.step.text}"


def _next(step: Step) -> str:
    """What to do about an undecided comparison."""
    from softbench.gate.bisect import Decision
    from softbench.gate.verdicts import State

    high = max((one.interval[1] for one in step.verdicts if one.interval and one.may_be_slower), default=0.0)
    if step.decision is not Decision.UNDECIDED or not any(one.state is State.AMBIGUOUS for one in step.verdicts):
        return ""
    wider = f", or look for larger slowdowns: --margin {round(100 * (high - 1)) + 1}" if 1 < high < 2 else ""
    return f"; next: repeat it on a machine that does nothing else{wider}"


def _sides(plugin: str | None, backend: str | None, stack: ExitStack) -> Callable[[str, str], list[str]]:
    """A function: the options of the gate that compare a commit with an earlier one.

    Raises:
        UsageError: the plugin is not in the repository.
    """
    from softbench.gate import commits

    if plugin is None:
        return lambda commit, against: ["--candidate-env", commit[: commits.SHORT], "--reference-env", against[: commits.SHORT]]
    file, colon, function = plugin.partition(":")
    top = Path(commits.git(Path(), "rev-parse", "--show-toplevel"))
    place = Path(file).resolve()
    if not place.is_relative_to(top) or not place.is_file():
        raise UsageError(f"--plugin {file}: is not a file of the repository {top.name}")
    suffix = f".{backend}" if backend else ""
    folders = stack.enter_context(commits.checkouts(top))

    def sides(commit: str, against: str) -> list[str]:
        named = {"new": folders[commit], "old": folders[against]}
        plugins = [f"--plugin={name}={folder / place.relative_to(top)}{colon}{function}" for name, folder in named.items()]
        return ["--candidate", f"new{suffix}", "--reference", f"old{suffix}", *plugins]

    return sides


class _Gate:
    """The gate in a process of its own for each comparison. A report that is there already is read if it decides."""

    def __init__(self, sides: Callable[[str, str], list[str]], words: Sequence[str], output: Path) -> None:
        from softbench.gate import command_line, fresh_pairs

        self.sides, self.output = sides, output
        self.pairs = next(iter(command_line.options(words, ("--processes",))[1:]), str(fresh_pairs.PAIRS))
        self.words = command_line.without(words, ("--processes",))

    def step(self, commit: str, against: str, cells: Collection[CellKey], *, first: bool, end: Step | None) -> Step:
        """Compare two commits, in more process pairs if they are undecided, also by half of the slowdown at the end.

        Raises:
            UsageError: the first comparison could not be made.
        """
        from softbench.gate.bisect import Decision, Step, decided, more_may_decide, of_half
        from softbench.gate.run_files import read_report

        pairs = [self.pairs, *([str(MORE * int(self.pairs))] if self.pairs.isdecimal() else [])]
        for file in (one for number in pairs if (one := self._file(commit, against, number)).is_file()):
            found = of_half(decided(read_report(file), commit, against, cells), end)
            if found.decision is not Decision.UNDECIDED:
                note(f"  from {file}")
                return found
        for number in pairs:
            file, error = self._file(commit, against, number), self._measured(commit, against, number)
            if error and first:
                raise UsageError(error)
            if error:
                return Step(commit, against, Decision.UNDECIDED, error)
            found = of_half(decided(read_report(file), commit, against, cells), end)
            if found.decision is not Decision.UNDECIDED or not more_may_decide(found, MORE):
                break
        return found

    def _file(self, commit: str, against: str, pairs: str) -> Path:
        """The report of a comparison."""
        key = hashlib.sha256(as_json.dumps([__version__, *self.words]).encode()).hexdigest()[:8]
        return self.output / f"{commit[:12]}-{against[:12]}-{pairs}-{key}.json"

    def _measured(self, commit: str, against: str, pairs: str) -> str:
        """Measure a comparison; returns why it has no report."""
        self.output.mkdir(parents=True, exist_ok=True)
        file = self._file(commit, against, pairs)
        part = file.with_suffix(".part")
        options = [*self.sides(commit, against), *self.words, "--processes", pairs, "--output", str(self.output)]
        error = run_gate([*options, "--json", str(part)])
        if not part.is_file() or not part.stat().st_size:
            return error
        part.rename(file)
        return ""


def run_gate(options: Sequence[str]) -> str:
    """Run the gate in a process of its own, which ends with this one, and tell how far it is; returns the last line of its stderr."""
    words, said, told = [sys.executable, "-m", "softbench", "gate", *options], "", -TELL_SECONDS
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace") as gate:
        try:
            for line in gate.stderr or ():
                said = line.strip() or said
                if (shown := TOLD.fullmatch(said)) and (not shown[2] or time.monotonic() - told > TELL_SECONDS):
                    note(f"  {shown[1]}")
                    told = time.monotonic()
            code = gate.wait()
        except BaseException:
            gate.terminate()
            raise
    if code in (130, 143):
        raise Interrupted(code - 128)
    return one_line((said or f"the gate ended with exit code {code}").removeprefix("softbench: "), 500)
