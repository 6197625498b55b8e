"""Rewrites the generated parts of README and docs, and the pages of results: python tools/generate_docs.py [--check]

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`. Its text comes from the code or from the files of results/.
With --check nothing is written, and the exit code is 1 if a part or a page differs from its source.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer
from result_pages import PAGES, plans, readme_results, table

from softbench.cli.main import app
from softbench.cli.panels import PLACES, panel_of
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State, Verdict
from softbench.plan.config_file import shipped
from softbench.plan.settings import KEYS
from softbench.report import glossary
from softbench.results.columns import Row

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def docs_of(cls: type) -> Iterator[tuple[str, str]]:
    """Name and docstring of each field of a class.

    Raises:
        ValueError: a field has no docstring.
    """
    nodes = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    for node, after in zip(nodes, [*nodes[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if not (isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)):
                raise ValueError(f"{cls.__name__}.{node.target.id} has no docstring")
            yield node.target.id, " ".join(str(after.value.value).split())


def columns() -> str:
    """The CSV's columns with the docs of `Row`."""
    found = dict(docs_of(Row))
    rows = [(f"`{'class' if name == 'grade' else name}`", found.get(name, "")) for name in Row.__slots__]
    return table(("column", "meaning"), rows)


def gate_report() -> str:
    """The keys of the gate's JSON, as a report has them, with the docs of its classes."""
    verdict = Verdict(CellKey("", "", "", 1, 1), State.SAME, "")
    report = GateReport("", (verdict,), Rules(margin=0.0))
    shown = {"exit_code": GateReport.exit_code, "summary": GateReport.summary, "case": CellKey.case}
    docs = {name: " ".join(str(found.__doc__).split()) for name, found in shown.items()}
    of_verdict = {**docs, **dict(docs_of(CellKey)), **dict(docs_of(Verdict))}
    of_verdict["look"] = of_verdict["fdr_significant"]
    parts = [("", report.document(), {**docs, **dict(docs_of(GateReport))}), ("rules.", asdict(report.rules), dict(docs_of(Rules)))]
    parts.append(("verdicts[].", verdict.document(), of_verdict))
    return table(("key", "meaning"), [(f"`{place}{key}`", found[key]) for place, document, found in parts for key in document])


def settings() -> str:
    """The keys of a configuration as `Settings` declares them."""
    rows = []
    for one in KEYS.values():
        values = one.default.items() if isinstance(one.default, dict) else ()
        shown = ", ".join(f"{key} {seconds:g}" for key, seconds in values) or str(one.default)
        rows.append((f"`{one.name}`", f"`{shown}`" if one.default not in ((), None) else "", one.text))
    return table(("key", "default", "meaning"), rows)


def configurations() -> str:
    """The shipped configurations with their first comment lines."""
    return table(("name", "what it measures"), [(f"`{name}`", text) for name, text in shipped().items()])


def terms() -> str:
    """The glossary's sections as tables."""
    return "\n\n".join(f"## {name}\n\n{table(('term', 'meaning'), list(found.items()))}" for name, found in glossary.sections().items())


def commands() -> str:
    """Every command with its help, arguments and options. An option that an earlier command has, with the same text, is named only."""
    group: Any = typer.main.get_command(app)
    parts = [(group.help or "").strip(), (group.epilog or "").strip()]
    described: dict[tuple[str, ...], str] = {}
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        nested = getattr(command, "commands", None)
        for title, one in {f"{name} {sub}": found for sub, found in nested.items()}.items() if nested else [(name, command)]:
            parts += [f"## softbench {title}", *_command(one, title, described)]
    return "\n\n".join(parts)


def _command(command: Any, title: str, described: dict[tuple[str, ...], str]) -> list[str]:
    parts = [inspect.cleandoc(command.help or "")]
    panels: dict[str, list[tuple[str, ...]]] = {}
    known: dict[str, list[str]] = {}
    for param in command.params:
        if param.name != "help":
            names = ", ".join(f"`{opt}`" for opt in param.opts) if param.param_type_name == "option" else f"`{param.name}`"
            row = (names, param.help or "", _default(param))
            earlier = described.setdefault(row, title)
            if earlier == title:
                panels.setdefault(panel_of(param), []).append(row)
            else:
                known.setdefault(earlier, []).append(names)
    by_panel = sorted(panels.items(), key=lambda item: PLACES.get(item[0], 0))
    headings = {panel: [] if panel in ("Arguments", "Options") else [(f"**{panel}**", "", "")] for panel in panels}
    if rows_of_all := [row for panel, rows in by_panel for row in (*headings[panel], *rows)]:
        parts.append(table(("option", "meaning", "default"), rows_of_all))
    for earlier, names_of in known.items():
        parts.append(f"As in [{earlier}](#softbench-{earlier.replace(' ', '-')}): {', '.join(names_of)}.")
    return parts


def _default(param: Any) -> str:
    """The default as text; empty for a flag and for an option without one."""
    if isinstance(param.show_default, str):
        return param.show_default
    value = param.default
    return "" if value is None or isinstance(value, bool) or not param.show_default or callable(value) else f"`{value}`"


PARTS: dict[str, Callable[[], str]] = {
    "readme-results": readme_results,
    "plans": plans,
    "commands": commands,
    "configurations": configurations,
    "glossary": terms,
    "settings": settings,
    "columns": columns,
    "gate-report": gate_report,
}


def generated(text: str) -> str:
    """The text with every generated part renewed."""
    return MARK.sub(lambda match: f"{match[1]}\n{PARTS[match['name']]()}\n\n{match[3]}", text)


def current(file: Path, text: str) -> str:
    """The file's text as it should be: a page of results whole, of other files the generated parts."""
    return f"{PAGES[file]()}\n" if file in PAGES else generated(text)


def files() -> list[Path]:
    """README, CONTRIBUTING and docs."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    stale = []
    for file in files():
        before = file.read_text(encoding="utf-8")
        after = current(file, before)
        if after != before:
            stale.append(file)
            if "--check" not in sys.argv:
                file.write_text(after, encoding="utf-8")
    for file in stale:
        print(file.relative_to(ROOT))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
