"""Renders the output of `softbench inspect` and `softbench list`. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from softbench.core import text
from softbench.core.case import YARDSTICK, CaseKey, Direction, value_text
from softbench.core.inspection import Artifact, Inspection, Launch
from softbench.core.json import JsonObject
from softbench.core.outcome import Status
from softbench.ops.operation import CASE_DTYPE, Operation, WholeCase
from softbench.plugins.info import BackendInfo, lacking
from softbench.report import rich_tables, tables
from softbench.results.columns import DOUBTFUL
from softbench.results.costs import BackendCost
from softbench.results.runs import CellCounts, FoundRun, Unfinished

FINE = ("ok", "checked", "skipped", "unavailable")
"""The statuses of cells that did not fail."""
LAUNCH = ("kernel", "grid", "block", "registers", "spilled", "shared", "moves")


def inspection(inspected: Inspection, kinds: Sequence[str], *, color: bool) -> RenderableType:
    """Facts, the kernels of a call, and the code of these kinds, highlighted if `color`."""
    facts = Table(show_header=False, show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    facts.add_column(no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    for name, value in inspected.facts:
        facts.add_row(Text(name), Text(value))
    parts: list[RenderableType] = [facts]
    if inspected.launches:
        parts += [Text(), _launches(inspected.launches)]
    for artifact in inspected.artifacts:
        if artifact.kind in kinds:
            code = Syntax(artifact.text, artifact.language, word_wrap=True) if color else Text(artifact.text)
            parts += [Text(), Text(f"{artifact.name} ({artifact.kind})", style="bold"), code]
    return Group(*parts)


def _launches(launches: Sequence[Launch]) -> Table:
    table = rich_tables.table(LAUNCH, numbers=range(1, len(LAUNCH)), folded=(0,))
    for launch in launches:
        table.add_row(
            Text(launch.name),
            "x".join(map(str, launch.grid)) or "?",
            "x".join(map(str, launch.block)) or "?",
            *(("?" if value is None else str(value)) for value in (launch.registers, launch.spilled_bytes, launch.shared_bytes)),
            "?" if launch.moved_bytes is None else f"{text.size(launch.moved_bytes)} ({launch.counted_by})",
        )
    return table


def operations(known: Sequence[Operation], infos: Sequence[BackendInfo]) -> RenderableType:
    """The operations, each with its summary, the tensors of its passes, and the backends that have it."""
    parts: list[RenderableType] = []
    for item in known:
        names = having(item, infos)
        passes = [f"{name}: {', '.join(one.inputs)} -> {', '.join(one.outputs)}" for name, one in item.passes.items()]
        parts += [
            Text(item.name, style="bold"),
            Text(f"  {item.summary}"),
            *(Text(f"  {line}") for line in passes),
            *(
                Text(
                    "; ".join(
                        filter(
                            None,
                            (
                                f"  --set {parameter.name}: {parameter.allowed}",
                                f"{value_text(parameter.default)} by default",
                                parameter.doc,
                            ),
                        )
                    )
                )
                for parameter in item.parameters
            ),
            *(Text(f"  --shape {name}: {text.count(len(one.shapes), 'shape')}: {one.doc}") for name, one in item.presets.items()),
            *(Text(f"  {line}") for line in (*_cases(item), *item.lost)),
            Text(f"  backends: {', '.join(names) or 'none'}"),
        ]
    return Group(*parts)


def _cases(item: Operation) -> list[str]:
    """A line for each case of a problem: its name, and the dtypes and shapes of its tensors."""
    lines = []
    for (op, M, N, shape), one in item.cases.items():
        dtype = one.dtype or item.case_dtypes[0]

        def shown(names: Sequence[str], one: WholeCase = one, dtype: str = dtype) -> str:
            shapes = {name: "x".join(map(str, one.tensors[name].axes)) or "1" for name in names}
            return ", ".join(f"{name} {dtype if (own := one.tensors[name].dtype) == CASE_DTYPE else own} {shapes[name]}" for name in names)

        case = CaseKey(Direction.FORWARD, dtype, M, N, op, shape)
        lines.append(f"{case}: {shown(one.call.inputs)} -> {shown(one.call.outputs)}")
    return lines


def having(item: Operation, infos: Sequence[BackendInfo]) -> list[str]:
    """The backends that have an operation, without the yardstick."""
    return [info.name for info in infos if not lacking(info.operations, item.name) and info.name != YARDSTICK]


def operation_facts(item: Operation, infos: Sequence[BackendInfo]) -> JsonObject:
    """An operation as `softbench list --ops --json` has it."""
    return {
        "name": item.name,
        "summary": item.summary,
        "passes": {name: {"inputs": [*one.inputs], "outputs": [*one.outputs]} for name, one in item.passes.items()},
        "parameters": [{"name": one.name, "allowed": one.allowed, "default": one.default, "meaning": one.doc} for one in item.parameters],
        "presets": {name: [*one.shapes] for name, one in item.presets.items()},
        "backends": having(item, infos),
        **({"cases": _cases(item)} if item.whole else {}),
    }


def backend_facts(info: BackendInfo) -> JsonObject:
    """A backend as `softbench list --json` has it."""
    state, reason = tables.state(info)
    return {
        "name": info.name,
        "state": state,
        "reason": reason,
        "summary": info.summary,
        "advice": info.advice,
        "origin": info.origin.shown,
        "extra": info.extra,
        "operations": [*info.operations],
        "reuses_output": info.reuses_output,
    }


def others(left_out: Sequence[Artifact]) -> str:
    """One line with the names of the code that is not shown; empty if all is shown."""
    if not left_out:
        return ""
    names = ", ".join(f"{artifact.name} ({text.count(artifact.text.count(chr(10)), 'line')})" for artifact in left_out)
    return f"not shown: {names}; show them with --show all, or write files with -o DIR"


def backends(infos: Sequence[BackendInfo]) -> RenderableType:
    """One line per backend."""
    return tables.facts([tables.info(info) for info in infos])


def extras(infos: Sequence[BackendInfo]) -> str:
    """One line about the backends that `all` leaves out."""
    available = [info.name for info in infos if not (info.broken or info.unavailable)]
    return (
        f"and {text.count(len(infos), 'extra')} that --backends all leaves out; give a name or pattern "
        f"({', '.join(available)} can run here); softbench list '*' lists them"
    )


def guide(infos: Sequence[BackendInfo]) -> RenderableType:
    """For each backend its summary and when to choose it."""
    parts: list[RenderableType] = []
    for info in infos:
        state, reason = tables.state(info)
        lines = [("what", info.summary)] if info.summary else []
        lines += [(state, reason)] if state != "available" else []
        lines += [("pick it", info.advice)] if info.advice else []
        if info.reuses_output:
            lines.append(("output", "reused: the next call overwrites the last output"))
        if not info.origin.own:
            lines.append(("from", info.origin.shown))
        table = Table(show_header=False, show_edge=False, box=None, padding=(0, 0, 0, 2))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        for label, value in lines:
            table.add_row(Text(label), Text(value))
        parts += [Text(info.name, style="bold"), table]
    return Group(*parts)


def runs(found: Sequence[tuple[FoundRun, CellCounts]], left: Sequence[Unfinished], folders: Sequence[Path]) -> RenderableType:
    """Two lines per run: file, start and card; then cells, failures, what was measured, and the backends. Unfinished runs come first.

    Files below the only folder are named relative to it. A terminal cuts the second line of a finished run.
    """
    lines = [(one.file, one.started, one.device, Text(f"  {_progress(one)}", style="yellow")) for one in left]
    for run, tally in found:
        bad = f" ({wrong})" if (wrong := not_ok(tally)) else ""
        what = " ".join(",".join(names) for names in (tally.operations, tally.directions, tally.dtypes))
        about = (
            f"  {text.count(tally.cells - tally.status.get(Status.UNAVAILABLE, 0), 'cell')}{bad}: {what}; {text.few(list(tally.backends))}"
        )
        lines.append((run.file, run.started, " and ".join(tally.cards), Text(about, style="dim", no_wrap=True, overflow="ellipsis")))
    below = folders[0] if len(folders) == 1 else Path()
    names = [text.one_line(str(file.relative_to(below) if file.is_relative_to(below) and file != below else file)) for file, *_ in lines]
    width = max(map(len, names), default=0)
    parts: list[Text] = []
    for name, (_, started, device, second) in zip(names, lines, strict=True):
        parts += [Text.assemble((name.ljust(width), "bold"), f"  {started[:16].replace('T', ' '):16}  {device}"), second]
    return Group(*parts)


def _progress(one: Unfinished) -> str:
    """How far an unfinished run is, and the next step."""
    stored = f"unfinished: {one.stored}{f' of {one.planned}' if one.planned else ''} cells are stored"
    if one.running:
        return f"{stored}; it runs now"
    return f"{stored}; continue with: {one.resume}" if one.resume else f"{stored}; it cannot be continued, so measure again"


def not_ok(tally: CellCounts) -> str:
    """The cells of a run that failed, and those with a doubtful label: `1 wrong, 3 failed; 12 noisy`."""
    failed = [f"{number} {status}" for status, number in tally.status.items() if status not in FINE]
    doubtful = [f"{number} {label}" for label, number in tally.labels.items() if label in DOUBTFUL]
    return "; ".join(", ".join(some) for some in (failed, doubtful) if some)


def _seconds(cost: BackendCost) -> str:
    return f"{cost.build_s:.2g} s{' ' + cost.build_cache if cost.build_cache else ''}"


def costs(by_backend: Mapping[str, BackendCost]) -> RenderableType:
    """One line per backend with a result: its costs and fractions of copy. The other backends follow below."""
    rows = cost_rows(by_backend)
    table = rich_tables.table(rows[0], numbers=range(1, len(rows[0])))
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return Group(table, Text(missing)) if (missing := without_figures(by_backend)) else table


def without_figures(by_backend: Mapping[str, BackendCost]) -> str:
    """The backends without a result, by status; empty if every backend has one."""
    by_others: dict[str, list[str]] = {}
    for name, cost in by_backend.items():
        if not cost.cells:
            by_others.setdefault(" and ".join(cost.others), []).append(name)
    return "\n".join(f"{status}: {', '.join(names)}" for status, names in by_others.items())


def cost_rows(by_backend: Mapping[str, BackendCost]) -> list[tuple[str, ...]]:
    """The rows of the tables of `costs` and `markdown`; the first is the heading."""
    directions = list(dict.fromkeys(direction for cost in by_backend.values() for direction in cost.of_copy))
    kernels = " kernels" if any(cost.by_device for cost in by_backend.values()) else ""
    rows = [("backend", "build", "host", *(f"{direction}{kernels}, of copy" for direction in directions), "cells", "without a result")]
    for name, cost in by_backend.items():
        if not cost.cells:
            continue
        rows.append(
            (
                name,
                _seconds(cost) if cost.build_s is not None else "",
                text.micros(cost.host_us) if cost.host_us is not None else "",
                *(text.percent(cost.of_copy[direction]) if direction in cost.of_copy else "" for direction in directions),
                str(cost.cells),
                ", ".join(f"{count} {status}" for status, count in cost.others.items()),
            )
        )
    return rows


def markdown(by_backend: Mapping[str, BackendCost]) -> str:
    """The table of `costs` as Markdown."""
    head, *body = cost_rows(by_backend)
    lines = [head, ("---", *("---:" for _ in head[1:-1]), "---"), *(("`" + row[0] + "`", *row[1:]) for row in body)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    others = [f"{status}: {_quoted(names)}" for status, names in (line.split(": ", 1) for line in without_figures(by_backend).splitlines())]
    return "\n\n".join([table, *others])


def _quoted(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))
