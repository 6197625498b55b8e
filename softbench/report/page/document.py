"""Makes the page: one HTML file with its style, script and data. Templates escape every text; a policy forbids every request.

The template engine escapes texts in HTML, and the data are compressed text of letters and digits. The script sets texts as text only. The
content security policy allows this page's style and script by their hash, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from softbench import __version__
from softbench.core.errors import ResultsError, UsageError
from softbench.core.files import not_written
from softbench.core.json import JsonObject
from softbench.core.outcome import Status
from softbench.core.text import count, one_line
from softbench.report import answer, glossary
from softbench.report.assets.embedded import asset, compressed, embedded, source_hash
from softbench.report.page import comparison, data as page_data, overview, wrong
from softbench.report.page.source import Source
from softbench.report.standings import standings
from softbench.results.columns import LABELS
from softbench.results.compare import pairs

if TYPE_CHECKING:
    from jinja2 import Environment

    from softbench.gate.verdicts import GateReport

ASSETS = "softbench.report.assets"
SCRIPTS = ("page.js", "tip.js", "chart.js", "map.js", "list.js", "panel.js", "pictures.js", "cells.js", "changes.js", "tabs.js", "start.js")
"""The parts of the script, in their order, behind the shared ones."""
POLICY = "default-src 'none'; style-src {style}; script-src {script}; img-src data:; base-uri 'none'; form-action 'none'"


class Part(NamedTuple):
    """A tab of the page; its template is `<id>.html`."""

    id: str
    name: str


FIXED = (
    Part("overview", "Overview"),
    Part("curves", "Curves"),
    Part("map", "Winner map"),
    Part("cells", "Cells"),
    Part("wrong", "Wrong and skipped"),
    Part("environment", "Environment"),
)
COMPARISON, GATE = Part("comparison", "Comparison"), Part("gate", "Gate")


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
    """Write the page of these results, one or two, with the gate's report if there is one.

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
    content = _content(sources, gate)
    return (
        _environment().get_template("page.html").render(_look(drawn=content.pop("drawn")) | content | {"command": one_line(command, 500)})
    )


def _look(*, drawn: bool) -> dict[str, Any]:
    """The style and the script of the page, and the policy that allows them. `drawn`: it has curves, so it needs the library."""
    from markupsafe import Markup

    base, load = asset("base.css", ASSETS), asset("unpack.js", ASSETS) + asset("load.js", __package__)
    style = asset("uplot.min.css", ASSETS) * drawn + asset("page.css", __package__)
    parts = [asset("shared.js", ASSETS), *(asset(name, __package__) for name in SCRIPTS)]
    script = asset("uplot.min.js", ASSETS) * drawn + "".join(map(_short, parts))
    hashes = {"style": (base, style), "script": (load, script)}
    policy = POLICY.format(**{name: " ".join(map(source_hash, texts)) for name, texts in hashes.items()})
    packed = {"packed_style": compressed(style), "packed_script": compressed(script)}
    return {"policy": policy, "style": Markup(base), "script": Markup(load), "version": __version__, **packed}


def _short(script: str) -> str:
    """A script without the comments that begin a line, and without indentation."""
    return re.sub(r"^\s*(//[^\n]*\n|/\*\*.*?\*/\n)?", "", script, flags=re.MULTILINE | re.DOTALL)


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(lambda name: asset(name, __package__)),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )


def _content(sources: Sequence[Source], gate: GateReport | None) -> dict[str, Any]:
    """The values of the templates."""
    sources = [replace(source, rows=list(source.rows)) for source in sources]  # rows of a file are made as they are read
    last, every = sources[-1], [row for source in sources for row in source.rows]
    able = sum(row.status != Status.UNAVAILABLE for row in every)  # as `show` counts
    values, more = _compared(sources, gate)
    used = {label for row in every for label in row.labels.split()}
    data = page_data.data(sources)
    return {
        "title": f"softbench: {last.device}",
        "subtitle": f"{', '.join(source.name for source in sources)}: {count(able, 'cell')}",
        "parts": [*(part for part in (COMPARISON, GATE) if part.id in values), *FIXED],
        "data": embedded({**data, **more, "terms": terms()}),
        "drawn": any(line["axis"] for line in data["lines"]),
        "of_file": last.name if len(sources) > 1 else "",
        "answer": answer.lines(last.rows, standings(last.rows), why="see Wrong and skipped"),
        "summary": overview.summary(last),
        "missing": [source.missing for source in sources if source.missing],
        "labels": [name for name in LABELS if name in used],
        "groups": wrong.wrong_and_skipped(sources),
        "environment": [table for source in sources for table in overview.environment(source)],
        **values,
    }


def terms() -> dict[str, str]:
    """The meanings that the page may show: those of the terms that its templates and scripts name, and of labels."""
    names = (*SCRIPTS, *(f"{part.id}.html" for part in (*FIXED, COMPARISON, GATE)))
    text = "".join(asset(name, __package__) for name in names)
    return {name: meaning for name, meaning in glossary.meanings().items() if f'"{name}"' in text or name in LABELS}


def _compared(sources: Sequence[Source], gate: GateReport | None) -> tuple[dict[str, Any], JsonObject]:
    """The values of the templates, and the data, of the parts that need several files or the gate's report."""
    values: dict[str, Any] = {}
    data: JsonObject = {}
    start = 0
    if len(sources) > 1:
        a, b = sources
        start = len(a.rows)
        found = pairs(a.rows, b.rows)
        missing = ""
        if gate is None:
            gate, missing = comparison.gate_report(a, b)
        values |= {"comparison": comparison.compare(a, b, found), "gate_missing": missing}
        data["pairs"] = comparison.pair_data(a, b, found)
    if gate:
        covers = sorted({verdict.covers for verdict in gate.verdicts} - {""})
        values |= {"gate": gate, "gate_covers": covers, "gate_others": comparison.of_others(gate, sources[-1].rows)}
        data["verdicts"] = comparison.verdict_data(gate, sources[-1].rows, start)
    return values, data
