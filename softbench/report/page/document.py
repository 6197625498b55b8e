"""Makes the page: one HTML file with its style, script and data. Templates escape every text; a policy forbids every request.

The template engine escapes texts in HTML, and in the data the characters that could end their element (`tojson`). The script sets texts
as text only. The content security policy allows this page's style and script by their hash, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softbench import __version__
from softbench.core.errors import ResultsError, UsageError
from softbench.core.files import not_written
from softbench.core.text import count, one_line
from softbench.report import gate_figures, style
from softbench.report.assets.embedded import asset
from softbench.report.page import cells, comparison, details, figures, heat, overview, trend
from softbench.report.page.source import Source
from softbench.results.labels import MEANING
from softbench.results.rows import Row

if TYPE_CHECKING:
    from jinja2 import Environment

    from softbench.gate.verdicts import GateReport

SCRIPTS = ("page.js", "charts.js", "detail.js", "cells.js", "tabs.js", "start.js")
"""The parts of the script, in their order."""
POLICY = "default-src 'none'; style-src {style}; script-src {script}; img-src data:; base-uri 'none'; form-action 'none'"


class Part(NamedTuple):
    """A tab of the page; its template is `<id>.html`."""

    id: str
    name: str


FIXED = (
    Part("overview", "Overview"),
    Part("curves", "Curves"),
    Part("heat", "Heat map"),
    Part("cells", "Cells"),
    Part("wrong", "Wrong and skipped"),
    Part("environment", "Environment"),
)
COMPARISON, GATE, TREND = Part("comparison", "Comparison"), Part("gate", "Gate"), Part("trend", "Trend")
COMPARED = 2
"""So many files are compared, and the page shows both. Of more files it shows the last, and compares it with the one before."""


def check_name(target: Path, what: str) -> None:
    """Refuse a page's file of another kind. Devices and pipes have any name.

    Raises:
        UsageError: the name does not end in .html or .htm. `what` is the argument that the message names.
    """
    try:
        any_name = target.exists() and not target.is_file()
    except OSError:  # the write fails too, and its error has the reason
        return
    if target.suffix.lower() not in (".html", ".htm") and not any_name:
        raise UsageError(f"{what} {target}: the page is HTML; give a name that ends in .html")


def write(sources: Sequence[Source], out: Path, command: str = "softbench report", gate: GateReport | None = None) -> Path:
    """Write the page of these results, with the gate's report if there is one.

    Raises:
        ResultsError: the file cannot be written.
    """
    text = html(sources, command, gate)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise not_written(f"-o {out}", error) from None
    return out


def html(sources: Sequence[Source], command: str, gate: GateReport | None = None) -> str:
    """The page as text. `command` is the command line that made it."""
    if not sources:
        raise ResultsError("no results file is given, so there is nothing to show")
    css, script = asset("base.css") + _asset("page.css"), "\n".join(map(_asset, SCRIPTS))
    policy = POLICY.format(style=_hash(css), script=_hash(script))
    from markupsafe import Markup

    fixed = {"policy": policy, "style": Markup(css), "script": Markup(script), "version": __version__, "command": one_line(command, 500)}
    return _environment().get_template("page.html").render(fixed | _content(sources, gate))


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(loader=FunctionLoader(_asset), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return made


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of an inline element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _content(sources: Sequence[Source], gate: GateReport | None) -> dict[str, Any]:
    """The values of the templates."""
    sources = _in_order(sources)
    shown, last = sources if len(sources) <= COMPARED else sources[-1:], sources[-1]
    every = [row for source in shown for row in source.rows]
    data = details.data(shown)
    data["doubtful"] = [i for i, row in enumerate(every) if row.median_us and row.doubtful]
    more = _compared(sources, gate)
    return {
        "title": f"softbench: {last.device}",
        "subtitle": f"{', '.join(source.name for source in shown)}: {count(len(every), 'cell')}",
        "parts": [*FIXED, *(part for part in (COMPARISON, GATE, TREND) if part.id in more)],
        "data": data,
        "colours": colours(every),
        "figures": figures.charts(shown),
        "of_file": last.name if len(sources) > 1 else "",
        **_overview(last),
        **_cells(shown),
        "heat_maps": heat.heat_maps(last.rows, len(every) - len(last.rows)),
        "competitors": list(dict.fromkeys(row.backend for row in last.rows if row.median_us)),
        "groups": cells.wrong_and_skipped(shown),
        "environment": [table for source in shown for table in overview.environment(source)],
        **more,
    }


def _in_order(sources: Sequence[Source]) -> Sequence[Source]:
    """Many files by the start of their runs if all starts are known; otherwise, and two files, as they were given."""
    known = len(sources) > COMPARED and all(source.started for source in sources)
    return sorted(sources, key=lambda source: source.started) if known else sources


def _compared(sources: Sequence[Source], gate: GateReport | None) -> dict[str, Any]:
    """The values of the parts that need several files or the gate's report."""
    found: dict[str, Any] = {}
    missing = ""
    if len(sources) >= COMPARED:
        found["comparison"] = comparison.compare(*sources[-COMPARED:])
        if gate is None:
            gate, missing = comparison.gate_report(*sources[-COMPARED:])
    if len(sources) > COMPARED:
        found["trend"] = trend.make(sources)
    if gate or missing:
        found |= {"gate": gate, "gate_missing": missing, **(_of_gate(gate, sources[-1].rows) if gate else {})}
    return found


def _of_gate(gate: GateReport, rows: Sequence[Row]) -> dict[str, Any]:
    """The values of the gate's part: its verdicts, the forest plot if a cell has a ratio, and what intervals cover."""
    drawn = any(verdict.ratio is not None for verdict in gate.verdicts)
    return {
        "gate_table": comparison.verdict_table(gate),
        "gate_svg": figures.picture(gate_figures.figure(gate), "gate-", {}) if drawn else "",
        "gate_covers": sorted({verdict.covers for verdict in gate.verdicts} - {""}),
        "gate_others": comparison.of_others(gate, rows),
    }


def colours(rows: Sequence[Row]) -> dict[str, int]:
    """The number of each named backend's colour, as in the figures; other backends are grey."""
    return {name: style.LINE_COLOURS.index(own.colour) for name, own in style.styles(rows).items() if own.named}


def _overview(last: Source) -> dict[str, Any]:
    rows = last.rows
    return {
        "sentences": overview.sentences(rows),
        "counts": overview.counts(rows),
        "regions": overview.regions(rows),
        "summary": overview.summary(last),
    }


def _cells(sources: Sequence[Source]) -> dict[str, Any]:
    rows = [row for source in sources for row in source.rows]
    fields = {"backend": "backend", "pass": "of_pass", "dtype": "dtype", "status": "status", "class": "grade"}
    choices = {name: sorted({getattr(row, field) for row in rows} - {""}) for name, field in fields.items()}
    choices = {"file": list(dict.fromkeys(source.name for source in sources)), **choices}
    used = {label for row in rows for label in row.labels.split()}
    return {
        "head": cells.columns(sources),
        "cells": cells.lines(sources),
        "filters": [{"name": name, "choices": found} for name, found in choices.items() if len(found) > 1],
        "missing": [source.missing for source in sources if source.missing],
        "labels": [(name, meaning) for name, meaning in MEANING.items() if name in used],
    }
