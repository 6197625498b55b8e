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
from softbench.core.errors import ResultsError
from softbench.core.files import not_written
from softbench.core.text import count, one_line
from softbench.report import matrix, style
from softbench.report.page import cells, details, environment, heat, overview, wrong
from softbench.report.page.source import Source
from softbench.results.labels import MEANING

if TYPE_CHECKING:
    from jinja2 import Environment

SCRIPTS = ("page.js", "charts.js", "detail.js", "cells.js", "tabs.js", "start.js")
"""The parts of the script, in their order."""
POLICY = "default-src 'none'; style-src {style}; script-src {script}; img-src data:; base-uri 'none'; form-action 'none'"


class Part(NamedTuple):
    """A tab of the page; its template is `<id>.html`."""

    id: str
    name: str


PARTS = (
    Part("overview", "Overview"),
    Part("curves", "Curves"),
    Part("heat", "Heat map"),
    Part("cells", "Cells"),
    Part("wrong", "Wrong and skipped"),
    Part("environment", "Environment"),
)


def write(sources: Sequence[Source], out: Path, command: str = "softbench report") -> Path:
    """Write the page of these results.

    Raises:
        ResultsError: the file cannot be written.
    """
    text = html(sources, command)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise not_written(f"-o {out}", error) from None
    return out


def html(sources: Sequence[Source], command: str) -> str:
    """The page as text. `command` is the command line that made it."""
    if not sources:
        raise ResultsError("no results file is given, so there is nothing to show")
    environment_ = _environment()
    css, script = _asset("page.css"), "\n".join(map(_asset, SCRIPTS))
    policy = POLICY.format(style=_hash(css), script=_hash(script))
    from markupsafe import Markup

    fixed = {"policy": policy, "style": Markup(css), "script": Markup(script), "version": __version__, "command": one_line(command, 500)}
    return environment_.get_template("page.html").render(fixed | _content(sources))


def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(loader=FunctionLoader(_asset), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression of an inline element with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _content(sources: Sequence[Source]) -> dict[str, Any]:
    """The values of the templates."""
    last = sources[-1]
    every = [row for source in sources for row in source.rows]
    data = details.data(sources)
    data["doubtful"] = [i for i, row in enumerate(every) if row.median_us and matrix.doubtful(row)]
    return {
        "title": f"softbench: {last.device}",
        "subtitle": f"{', '.join(source.name for source in sources)}: {count(len(every), 'cell')}",
        "parts": PARTS,
        "data": data,
        "colours": colours(every),
        **_overview(sources),
        **_cells(sources),
        "heat_maps": heat.heat_maps(last.rows, len(every) - len(last.rows)),
        "competitors": list(dict.fromkeys(row.backend for row in last.rows if row.median_us)),
        "groups": wrong.groups(sources),
        "environment": [table for source in sources for table in environment.facts(source)],
        "figures": [],
    }


def colours(rows: Sequence[Any]) -> dict[str, int]:
    """The number of each named backend's colour, as in the figures; other backends are grey."""
    return {name: style.LINE_COLOURS.index(own.colour) for name, own in style.styles(rows).items() if own.named}


def _overview(sources: Sequence[Source]) -> dict[str, Any]:
    rows = sources[-1].rows
    return {
        "sentences": overview.sentences(rows),
        "counts": overview.counts(rows),
        "regions": overview.regions(rows),
        "summary": overview.summary(sources[-1]),
        "notes": [],
    }


def _cells(sources: Sequence[Source]) -> dict[str, Any]:
    rows = [row for source in sources for row in source.rows]
    columns = {"backend": "backend", "pass": "of_pass", "dtype": "dtype", "status": "status", "class": "grade"}
    choices = {name: sorted({getattr(row, field) for row in rows} - {""}) for name, field in columns.items()}
    choices = {"file": list(dict.fromkeys(source.name for source in sources)), **choices}
    used = {label for row in rows for label in row.labels.split()}
    return {
        "head": [
            {"name": name, "sort": sort, "number": i in cells.NUMBERS}
            for i, (name, sort) in enumerate(zip(cells.HEAD, cells.SORT, strict=True))
        ],
        "cells": cells.lines(sources),
        "filters": [{"name": name, "choices": found} for name, found in choices.items() if len(found) > 1],
        "missing": [source.missing for source in sources if source.missing],
        "labels": [(name, meaning) for name, meaning in MEANING.items() if name in used],
    }
