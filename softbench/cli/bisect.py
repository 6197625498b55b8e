"""`softbench bisect`."""

from __future__ import annotations

import hashlib
import json as as_json
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softbench import __version__
from softbench.cli.actions import end, note, try_file, wrote_to_stdout
from softbench.cli.options import GATE_EPILOG, Quiet, option
from softbench.cli.panels import CONTEXT, OUTPUT, WHERE, PanelCommand
from softbench.core.errors import UsageError
from softbench.core.text import count, one_line, printable

if TYPE_CHECKING:
    from softbench.gate.bisect import Found, Step
    from softbench.gate.commits import Commit
    from softbench.gate.samples import CellKey

EXTRA = {"allow_extra_args": True, "ignore_unknown_options": True}
MORE = 4
"""An undecided comparison is repeated once, with so many times as many process pairs."""


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
    output: Annotated[
        Path, option(WHERE, "Folder of the measurements; those of an interrupted bisect are used again.", "-o", "--output")
    ] = Path("results") / "bisect",
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
    from softbench.gate import commits
    from softbench.gate.bisect import Decision, Search, steps_at_most

    verbosity.choose(quiet=quiet, verbose=False)
    words = list(CONTEXT.get().args)
    if wrong := next((one for one in (good, bad) if one.startswith("-")), ""):
        raise UsageError(f"bisect: no such option before GOOD and BAD: {wrong}; those of the gate follow; see: softbench bisect --help")
    try_file(json)
    line = commits.line(good, bad)
    known = {one.name: one for one in line}
    most = steps_at_most(len(line) - 1)
    note(f"{count(len(line) - 1, 'commit')} after {line[0].short}, at most {most} comparisons for each slowdown if all are decided")
    with ExitStack() as stack:
        comparison = _Gate(_sides(plugin, backend, stack), words, output)

        def compare(commit: str, against: str, cells: Collection[CellKey]) -> Step:
            note(f"comparison {len(search.steps) + 1}: {known[commit].short} against {known[against].short}")
            step = comparison.step(commit, against, cells, first=not search.steps)
            note(f"  {step.text}")
            return step

        search = Search([one.name for one in line], compare)
        found = []
        for one in search.run():
            found.append(one)
            if str(json) != "-":
                typer.echo(printable(_sentence(one, known)))
    last = search.steps[-1]
    code = 1 if found else 3 if last.decision is Decision.UNDECIDED else 0
    if not wrote_to_stdout(lambda: _document(line, found, search.steps, code), json):
        if not found:
            typer.echo(printable(f"{known[last.commit].short} against {known[last.against].short}: {last.text}"))
        elif last.decision is Decision.UNDECIDED:
            note(f"what follows {known[last.against].short} is undecided: {last.text}")
    raise typer.Exit(code)


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
        return f"{cause}, of which the others are undecided: {one.step.text}; see: git log {before.short}..{commit.short}"
    named = f'{commit.short} "{commit.subject}" of {commit.date}'
    if one.step.decision is Decision.SLOWER:
        return f"{named} is {one.step.text}, against {before.short}; see: git show {commit.short}"
    return f"{named} is the first one beyond the margin, but not the only cause; against {before.short} it is {one.step.text}"


def _sides(plugin: str | None, backend: str | None, stack: ExitStack) -> Callable[[str, str], list[str]]:
    """A function: the options of the gate that compare a commit with an earlier one.

    Raises:
        UsageError: the plugin is not in the repository.
    """
    from softbench.gate import commits

    if plugin is None:
        return lambda commit, against: ["--candidate-env", commit, "--reference-env", against]
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
    """The gate in a process of its own for each comparison. A report that is there already is read."""

    def __init__(self, sides: Callable[[str, str], list[str]], words: Sequence[str], output: Path) -> None:
        from softbench.gate import command_line, fresh_pairs

        self.sides, self.output = sides, output
        self.pairs = next(iter(command_line.options(words, ("--processes",))[1:]), str(fresh_pairs.PAIRS))
        self.words = command_line.without(words, ("--processes",))

    def step(self, commit: str, against: str, cells: Collection[CellKey], *, first: bool) -> Step:
        """Compare two commits, in more process pairs if they are undecided.

        Raises:
            UsageError: the first comparison could not be made.
        """
        from softbench.gate.bisect import Decision, Step, decided
        from softbench.gate.run_files import read_report

        pairs = [self.pairs, *([str(MORE * int(self.pairs))] if self.pairs.isdecimal() else [])]
        for number in pairs:
            file, error = self._report(commit, against, number)
            if file is None and first:
                raise UsageError(error)
            if file is None:
                return Step(commit, against, Decision.UNDECIDED, error)
            found = decided(read_report(file), commit, against, cells)
            if found.decision is not Decision.UNDECIDED:
                break
        return found

    def _report(self, commit: str, against: str, pairs: str) -> tuple[Path | None, str]:
        """The report of a comparison, or why there is none."""
        key = hashlib.sha256(as_json.dumps([__version__, *self.words]).encode()).hexdigest()[:8]
        file = self.output / f"{commit[:12]}-{against[:12]}-{pairs}-{key}.json"
        if file.is_file():
            note(f"  from {file}")
            return file, ""
        self.output.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        options = [*self.sides(commit, against), *self.words, "--processes", pairs, "--output", str(self.output)]
        error = run_gate([*options, "--json", str(part), "--quiet"])
        if part.is_file() and part.stat().st_size:
            part.rename(file)
            return file, ""
        return None, error


def run_gate(options: Sequence[str]) -> str:
    """Run the gate in a process of its own; returns the last line that it wrote to stderr."""
    done = subprocess.run([sys.executable, "-m", "softbench", "gate", *options], capture_output=True, text=True, check=False)
    if done.returncode in (130, 143):
        end(done.returncode, "interrupted; the same command goes on from here")
    said = (done.stderr.strip().splitlines() or [f"the gate ended with exit code {done.returncode}"])[-1]
    return one_line(said.removeprefix("softbench: "), 500)
