"""The strategies of `kernels/gallery`: how many lines each takes, and in a run, how close they come to the speed of copy."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from softbench.core import text
from softbench.core.case import OPERATION
from softbench.core.errors import ResultsError
from softbench.plugins.source import GROUP
from softbench.report import rich_tables, style
from softbench.results.columns import Row
from softbench.results.costs import BackendCost, by_backend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KERNELS = "softbench.kernels"
FOLDER = "kernels/gallery"
STRATEGIES = "softbench.backends.gallery:"
"""What the entry point of a strategy begins with; its file's name follows."""
OWN = {"triton": ("common", "triton"), "cuda": ("common", "cuda")}
"""softbench's own kernels and their folders: what the speed of a copy takes."""
OWN_KERNELS = "softbench's own kernels, of several operations"
SUFFIXES = (".py", ".cu", ".cuh", ".cpp", ".h")
BESIDES = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A strategy and its source."""

    name: str
    """The backend's name."""
    place: str
    """The file or folder, below the checkout."""
    lines: int
    """Lines of code: without empty lines, comments and docstrings. Those of softbench's own kernels are rounded down to thousands."""
    about: str
    """The first line of the file's docstring, without its first word."""


@cache
def strategies() -> tuple[Strategy, ...]:
    """Every strategy, and softbench's own kernels, by lines of code."""
    points = {point.name: point.value for point in metadata.entry_points(group=GROUP)}
    stems = {name: value.removeprefix(STRATEGIES) for name, value in points.items() if value.startswith(STRATEGIES)}
    gallery = _folder("gallery")
    found = []
    for name, stem in stems.items():
        source = (gallery / f"{stem}.py").read_text()
        about = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        about = about.removeprefix(f"{OPERATION.capitalize()} ").removesuffix(".")
        found.append(Strategy(name, f"{FOLDER}/{stem}.py", code_lines(source), about))
    for name, folders in OWN.items():
        files = [file for folder in folders for file in _folder(folder).iterdir() if file.suffix in SUFFIXES]
        lines = sum(code_lines(file.read_text(), file.suffix) for file in files) // 1000 * 1000
        found.append(Strategy(name, f"kernels/{name}", lines, OWN_KERNELS))
    return tuple(sorted(found, key=lambda one: one.lines))


def _folder(name: str) -> Path:
    """A folder beside the gallery's. To ask for its package would import it, and torch with that of the CUDA kernels."""
    return Path(str(resources.files(f"{KERNELS}.gallery"))).with_name(name)


def code_lines(source: str, suffix: str = ".py") -> int:
    """The lines of a source that hold code: not empty, no comment, no docstring. C++ in a string of Python counts as C++."""
    if suffix != ".py":
        return sum(bool(line.strip()) and not line.strip().startswith(("//", "/*", "*")) for line in source.splitlines())
    docstrings = {line for first, last in _docstrings(source) for line in range(first, last + 1)}
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in BESIDES:
            held |= set(range(token.start[0], token.end[0] + 1))
    lines = source.splitlines()
    return sum(bool(text := lines[number - 1].strip()) and not text.startswith("//") for number in held - docstrings)


def _docstrings(source: str) -> Iterator[tuple[int, int]]:
    """The first and last line of each docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            yield first.lineno, first.end_lineno or first.lineno


def catalog() -> RenderableType:
    """The strategies without a run: lines of code, file, and what each is."""
    table = rich_tables.table(("strategy", "lines", "file", "what it is"), numbers=[1], folded=[3])
    for one in strategies():
        table.add_row(one.name, str(one.lines), one.place.removeprefix(f"{FOLDER}/"), one.about)
    told = f"files are in {FOLDER}; measure them: softbench run --config gallery; then softbench gallery results/latest.csv"
    return Group(table, Text(told))


@dataclass(frozen=True, slots=True)
class Rung:
    """A strategy in a run."""

    strategy: Strategy
    cost: BackendCost

    @property
    def share(self) -> float | None:
        """The geometric mean of its fractions of copy over the directions; None without a figure."""
        return geometric_mean(self.cost.of_copy.values()) if self.cost.of_copy else None


def ladder(rows: Sequence[Row]) -> list[Rung]:
    """The strategies that a run has, by their share of copy's speed; those without a figure come last.

    Raises:
        ResultsError: the run has none of them.
    """
    costs = by_backend(row for row in rows if row.op == OPERATION)
    rungs = [Rung(one, costs[one.name]) for one in strategies() if one.name in costs]
    if not any(rung.strategy.name not in OWN for rung in rungs):
        raise ResultsError("no strategy of the gallery has run there; measure them: softbench run --config gallery")
    return sorted(rungs, key=lambda rung: (rung.share is None, rung.share or 0.0))


def head(rungs: Sequence[Rung]) -> tuple[list[str], tuple[str, ...]]:
    """The directions of a ladder, and the heading of its table."""
    directions = list(dict.fromkeys(direction for rung in rungs for direction in rung.cost.of_copy))
    return directions, ("strategy", "lines", "build", *(f"{direction}, of copy" for direction in directions), "what it is")


def _absent(rungs: Sequence[Rung]) -> str:
    """A sentence with the strategies that are not among these; empty if there are none."""
    names = {one.name for one in strategies()} - {rung.strategy.name for rung in rungs}
    return f"Not measured: {', '.join(sorted(names))}." if names else ""


def _cells(rung: Rung, directions: Sequence[str]) -> tuple[str, ...]:
    cost = rung.cost
    build = "" if cost.build_s is None else f"{cost.build_s:.2g} s{' ' + cost.build_cache if cost.build_cache else ''}"
    shares = (text.percent(cost.of_copy[one]) if one in cost.of_copy else "" for one in directions)
    left = ", ".join(f"{count} {status}" for status, count in cost.others.items())
    about = rung.strategy.about + (f" ({left})" if left else "")
    return rung.strategy.name, str(rung.strategy.lines), build, *shares, about


def as_table(rungs: Sequence[Rung], rows: Sequence[Row]) -> RenderableType:
    """The ladder: lines of code against the share of copy's speed."""
    directions, names = head(rungs)
    table = rich_tables.table(names, numbers=range(1, len(names) - 1))
    for rung in rungs:
        table.add_row(*map(Text, _cells(rung, directions)))
    cases = len({row.case for row in rows})
    devices = " and ".join(dict.fromkeys(row.device for row in rows))
    means = f"Geometric means over {text.count(cases, 'case')} on {devices}; a cell counts at most as 100 %."
    return Group(table, Text(f"{means} {_absent(rungs)}".strip()))


def as_markdown(rungs: Sequence[Rung]) -> str:
    """The ladder as a Markdown table."""
    directions, names = head(rungs)
    lines = [names, ("---", *("---:" for _ in names[1:-1]), "---")]
    for rung in rungs:
        first, *rest = _cells(rung, directions)
        lines.append((f"[`{first}`]({rung.strategy.place})", *rest))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


BAR_INCHES, WIDTH_INCHES = 0.28, 5.0
LIGHTEST, DARKEST = (0.78, 0.86, 0.96), (0.05, 0.19, 0.47)
"""The colours of the least and of the largest share: the closer to copy, the darker."""


def write(rungs: Sequence[Rung], rows: Sequence[Row], out: Path) -> Path:
    """Draw the ladder into a file.

    Raises:
        UsageError: a format that is not in `style.FORMATS`.
        ResultsError: no strategy has a figure, or the file cannot be written.
    """
    style.check_format(out, "--plot")
    return style.saved(figure(rungs, rows), out, "--plot")


@style.look()
def figure(rungs: Sequence[Rung], rows: Sequence[Row]) -> Figure:
    """A bar for each strategy and direction, as long as its share of copy's speed; below the name, its lines of code.

    Raises:
        ResultsError: no strategy has a figure.
    """
    drawn = [rung for rung in rungs if rung.share is not None]
    if not drawn:
        raise ResultsError(
            "no strategy has a fraction of copy, so there is nothing to draw; measure again when nothing else runs, or larger rows"
        )
    directions, _ = head(drawn)
    made = style.canvas()
    panel = style.panel(made, 0, 0, WIDTH_INCHES, BAR_INCHES * len(drawn))
    height = 0.8 / len(directions)
    for place, rung in enumerate(drawn):
        dark = place / max(1, len(drawn) - 1)
        colour = tuple(light + (deep - light) * dark for light, deep in zip(LIGHTEST, DARKEST, strict=True))
        for number, direction in enumerate(directions):
            if share := rung.cost.of_copy.get(direction):
                middle = place + (number - (len(directions) - 1) / 2) * height
                panel.barh(middle, 100 * share, height=0.9 * height, color=colour)
                panel.text(100 * share + 1, middle, f"{direction} {text.percent(share)}", va="center", fontsize=6.5)
    lines = [f"{rung.strategy.name}, {rung.strategy.lines} lines" for rung in drawn]
    panel.set_yticks(range(len(drawn)), lines, fontsize=8)
    panel.tick_params(axis="y", length=0)
    panel.grid(visible=False, axis="y")
    panel.set_ylim(len(drawn) - 0.5, -0.5)
    panel.set_xlim(0, 118)
    panel.set_xticks(range(0, 101, 20))
    panel.set_xlabel("% of the speed of copy, which only moves the bytes", fontsize=8)
    answer = f"Strategies by their speed, with lines of code. Geometric means over {text.count(len({row.case for row in rows}), 'case')}."
    style.head(made, f"{OPERATION}, {style.devices(rows)}", f"{answer}\n{_absent(drawn)}")
    return made
