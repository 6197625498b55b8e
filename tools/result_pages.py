"""The pages docs/results/*.md and README's table of results, whole from the files of results/. `generate_docs.py` writes them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from softbench.api.result import Result
from softbench.core.case import YARDSTICK, parse_op
from softbench.core.outcome import Grade
from softbench.core.text import count
from softbench.report import answer, gallery, markup, matrix, tables, users_calls
from softbench.report.standings import standings
from softbench.results.columns import Row
from softbench.results.document import beside, load, units_of
from softbench.run.invariance import DEPENDS, INVARIANT

if TYPE_CHECKING:
    from pandas import DataFrame

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
CASE = [*("op", "direction", "dtype", "M", "N", "shape"), "unit"]
NOT_MEASURED = re.compile(r" (?:--output|-o|--shard) \S+| --resume| --force")
"""Options of a command line that change no measurement."""
FRONTIER = (("forward", "bf16", 4096), ("backward", "bf16", 4096))
"""Sections of the frontier's tables: direction, dtype and M."""
FRONTIER_COLUMNS = (1024, 4096, 65536, 262144, 781, 5003, 50257, 128256)
"""Numbers of columns in the frontier's tables, of 17."""
SWEEP = (256, 4096, 6272)
"""Numbers of columns in the tables of the default sweep."""
SHOWN_BACKENDS = ("copy", "torch", "compile", "liger", "quack", "triton", "cuda")
"""What `!` means in README's rows of bf16."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], align: str = "") -> str:
    """A Markdown table; `align` has an `r` for each right-aligned column."""
    rule = ["---:" if align[i : i + 1] == "r" else "---" for i in range(len(head))]
    lines = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in (" | ".join(head), " | ".join(rule), *lines))


def rows_of(name: str) -> tuple[Row, ...]:
    """The rows of `h200/frontier` and the like."""
    return Result.load(RESULTS / f"{name}.csv").rows


def shown(rows: Sequence[Row], *, legend: bool) -> str:
    """The heading and the tables of `softbench show --markdown`."""
    made = matrix.sections(rows, standings(rows), merged=False)
    parts = [tables.heading(rows), *map(matrix.as_markdown, made)]
    if legend:
        parts.append(markup.safe(tables.notes(rows, signs="".join(matrix.signs(map(matrix.whole, made))))[0].plain))
    return "\n\n".join(parts)


def readme_results() -> str:
    """What `softbench gallery` prints of the gallery's run, and the command."""
    return f"{gallery.as_markdown(gallery.ladder(rows_of('h200/gallery')))}\n\n(`softbench gallery results/h200/gallery.csv`)"


def measured_by(*names: str) -> str:
    """A line for each run: its files, what it did, when, with which code, and how many cells and cards."""
    lines = []
    for name in names:
        file = RESULTS / f"{name}.csv"
        document = load(beside(file))
        parts = document.get("merged") or [document]
        commands = dict.fromkeys(NOT_MEASURED.sub("", part["command"]) for part in parts)
        commits = dict.fromkeys(str(part.get("git_commit") or "unknown") for part in parts)
        cards = count(len(units_of(document)), "card") + (", interrupted" if document.get("interrupted") else "")
        files = {file.name: file, "samples": beside(file), "configuration": file.with_suffix(".toml")}
        links = [f"[{text}](../../{one.relative_to(ROOT)})" for text, one in files.items() if one.exists()]
        ran = "; ".join(f"`{command}`" for command in commands)
        about = f"{document['started'][:10]}, {', '.join(commits)}, {count(len(document['cells']), 'cell')}, {cards}"
        lines.append(f"- {', '.join(links)}: {ran} ({about})")
    return "\n".join(lines)


def with_shares(name: str) -> DataFrame:
    """The measured cells with their `share` of copy's speed in the same run: by device time, or by do_bench if there is none."""
    frame = Result.load(RESULTS / f"{name}.csv").frame().query("status == 'ok'")
    if frame["device_us"].isna().all():
        return frame.assign(share=frame["of_copy"])
    copy = frame[frame["class"] == Grade.YARDSTICK].set_index(CASE)["device_us"].rename("copy_us")
    frame = frame.join(copy, on=CASE)
    return frame.assign(share=frame["copy_us"] / frame["device_us"]).dropna(subset="share")


def averages(names: Sequence[str], backends: Sequence[str], by: Sequence[str]) -> str:
    """A line for each group of cells: each backend's geometric mean of the shares of copy, and in parentheses the least.

    The first run that has a group decides.
    """
    lines: dict[tuple[object, ...], tuple[str, ...]] = {}
    for name in names:
        for keys, group in with_shares(name).groupby(list(by), sort=False):
            shares = {backend: some["share"] for backend, some in group.groupby("backend")}
            cells = [f"{geometric_mean(shares[one]):.1%} ({shares[one].min():.1%})" if one in shares else "" for one in backends]
            lines.setdefault(keys, (*(f"`{key}`" if key == group["op"].iloc[0] else str(key) for key in keys), *cells))
    heads = [{"op": "operation", "direction": "pass"}.get(column, column) for column in by]
    align = "".join("r" if column == "M" else "l" for column in by)
    return table((*heads, *(f"`{one}`" for one in backends)), [*lines.values()], align + "r" * len(backends))


def speedups(name: str, ours: Sequence[str], others: Sequence[str], by: Sequence[str]) -> str:
    """For each group of cells, and all: what the faster of ours reaches of copy, and how many times as fast it is as each other backend.

    A geometric mean, and the least.
    """
    times = with_shares(name).pivot_table(index=CASE, columns="backend", values="share", observed=True)
    best = times[[one for one in ours if one in times]].max(axis=1)
    lines = []
    for keys, group in [*times.groupby(level=list(by), sort=False), (("all", *[""] * (len(by) - 1)), times)]:
        ours_of = best[group.index].dropna()
        ratios = {one: (ours_of / group[one]).dropna() for one in others if one in group}
        cells = [f"{geometric_mean(ratio):.2f} ({ratio.min():.2f})" if len(ratio) else "" for ratio in ratios.values()]
        lines.append((*map(str, keys), f"{geometric_mean(ours_of):.1%} ({ours_of.min():.1%})", *cells))
    return table((*by, "of `copy`", *(f"times `{one}`" for one in others)), lines, "l" * len(by) + "r" * (1 + len(others)))


def other_dimensions() -> list[str]:
    """The section of other dimensions than the last, if its run is there."""
    if not (RESULTS / f"{STRIDED}.csv").exists():
        return []
    return [
        "## Other dimensions than the last",
        measured_by(STRIDED),
        averages([STRIDED], ("torch", "compile", *OWN), BY_PASS),
        "The faster of `triton` and `cuda` beside the others:",
        speedups(STRIDED, OWN, ("torch", "compile"), ("op",)),
    ]


def odd_lengths() -> list[str]:
    """Rows of odd lengths, and what invariant plans cost, by number of rows: the geometric mean, and the most."""
    times = with_shares(ODD).pivot_table(index=CASE, columns="backend", values="device_us", observed=True)
    lines = []
    for own in [one for one in OWN if f"{one}-invariant" in times]:
        for keys, group in (times[f"{own}-invariant"] / times[own]).dropna().groupby(level=["M", "direction", "dtype"]):
            lines.append((own, *map(str, keys), f"{geometric_mean(group):.3f}", f"{group.max():.3f}"))
    backends = [one for one in ("torch", "cuda", "cuda-invariant", "triton", "triton-invariant") if one in times]
    text = ["## Odd lengths", "Rows whose length is no multiple of 16 bytes start at any address:", measured_by(ODD)]
    text.append(averages([ODD], backends, BY_PASS))
    head = ("time of `invariant=True`, over", "M", "pass", "dtype", "geometric mean", "most")
    return [*text, table(head, lines, "lrllrr")] if lines else text


def invariance() -> list[str]:
    """What the bits of a row depend on, by backend and operation, over all passes, if the findings are there."""
    if not (file := RESULTS / INVARIANCE).exists():
        return []
    with file.open(encoding="utf-8") as text:
        rows = [row for row in csv.DictReader(text) if row["verdict"] not in ("skipped", "failed")]
    told: dict[tuple[str, str], list[str]] = {}
    bits: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        told.setdefault((row["backend"], row["op"]), []).append(row["verdict"])
        bits.setdefault((row["op"], row["direction"], row["dtype"], row["item"]), {})[row["backend"]] = row["bits"]
    ops = list(dict.fromkeys(row["op"] for row in rows))

    def cell(found: list[str]) -> str:
        differ = [one for one in found if one != INVARIANT]
        kinds = [kind for kind in DEPENDS if any(kind in one.split(", ") for one in differ)]
        return f"{', '.join(kinds)}: {len(differ)} of {len(found)}" if kinds else f"{INVARIANT}: {len(found)}" if found else ""

    lines = [(f"`{one}`", *(cell(told.get((one, op), [])) for op in ops)) for one in dict.fromkeys(row["backend"] for row in rows)]
    both = [
        found["cuda-invariant"] == found["triton-invariant"]
        for found in bits.values()
        if {"cuda-invariant", "triton-invariant"} <= set(found)
    ]
    return [
        "## Batch invariance",
        "`softbench check --invariance --csv FILE`: what bits depend on, in how many lengths, dtypes and passes\n"
        f"([CSV](../../results/{INVARIANCE})). Of others with `--quick`, in fp32 and bf16.",
        table(("backend", *(f"`{op}`" for op in ops)), lines),
        f"`cuda-invariant` and `triton-invariant` agree to the bit in {sum(both)} of {len(both)}.",
    ]


def spread(name: str) -> str:
    """For each backend of a run: how many cells reach which share of copy's speed, and the least."""
    lines = []
    frame = with_shares(name)
    for backend, group in frame[frame["class"] != Grade.YARDSTICK].groupby("backend", sort=False):
        share = group["share"]
        reach = [str((share >= least).sum()) for least in (1, 0.95, 0.9)]
        lines.append((f"`{backend}`", str(len(share)), *reach, f"{geometric_mean(share):.1%}", f"{share.min():.1%}"))
    return table(("backend", "cells", "at least 100 %", "at least 95 %", "at least 90 %", "geometric mean", "least"), lines, "l" + "r" * 6)


def plans() -> str:
    """For each language and kind of shapes: how fast its kernels are beside those of another commit, and how many are far from copy."""
    times = Result.load(RESULTS / f"{PLANS}.csv").frame().pivot_table(index=CASE, columns="backend", values="median_us", observed=True)
    known = {(row.M, row.N) for row in rows_of("h200/frontier")}
    kinds = ["`frontier`" if (M, N) in known else "random" for M, N in zip(*map(times.index.get_level_values, "MN"), strict=True)]
    lines = []
    for own in ("cuda", "triton"):
        for kind, group in times.groupby(kinds):
            speed = group[f"{own}-before"] / group[own]
            far = [int((group["copy"] < 0.9 * group[one]).sum()) for one in (own, f"{own}-before")]
            lines.append((f"`{own}`", kind, str(len(group)), f"{geometric_mean(speed):.4f}", f"{speed.min():.3f}", *map(str, far)))
    head = ("kernels", "shapes", "cells", "speed", "least", "below 90 % of `copy`", "before")
    return table(head, lines, "llrrrrr")


def with_memory(name: str) -> str:
    """What `softbench show` prints of a run of matrix products without copy, and what calls take."""
    rows = [row for row in rows_of(name) if row.backend != YARDSTICK]
    (memory,) = (line.text for line in answer.lines(rows, standings(rows)) if line.name == "memory")
    return f"{shown(rows, legend=True)}\n\nMemory: {memory}."


def judged(name: str) -> str:
    """How many cells the judge measured too, if the document has it, and how many of them are disputed."""
    cells = [cell["outcome"] for cell in load(RESULTS / f"{name}.json.gz")["cells"] if cell["backend"] != "copy"]
    found = [outcome["judged"]["judgements"] for outcome in cells if outcome.get("judged")]
    text = f"The judge judged {len(found)} of {count(len(cells), 'cell')}, with {count(sum(found), 'judgement')}. " if found else ""
    disputed = sum(str(outcome.get("reason")).startswith("disputed") for outcome in cells)
    return f"{text}{disputed or 'None'} of the {count(len(cells), 'cell')} is disputed."


def use_verdicts() -> str:
    """The gate's summaries of the calls inside `softbench.use()`."""
    lines = []
    for l2 in ("cold", "warm"):
        report = json.loads((RESULTS / "h200" / f"use-ab-{l2}.json").read_text())
        largest = max(verdict["ratio"] for verdict in report["verdicts"] if verdict["gated"] and verdict["ratio"])
        file = f"[use-ab-{l2}.json](../../results/h200/use-ab-{l2}.json)"
        lines.append((f"`python tools/use_ab.py --l2 {l2}`", str(report["exit_code"]), report["summary"], f"{largest:.3f}", file))
    return table(("command", "exit code", "summary", "largest ratio of a gated cell", "file"), lines, "lrlrl")


def training_steps() -> list[str]:
    """The gate's verdicts on training steps, if they are stored: a line of each model, a column of each batch."""
    path = RESULTS / "h200" / "training-library.json"
    if not path.is_file():
        return []
    report, found = json.loads(path.read_text()), dict[str, dict[int, str]]()
    for one in report["verdicts"]:
        case = parse_op(one["op"])[1]
        ends = [1 / end for end in (one["ratio"], *reversed(one["interval"]))] if one["ratio"] and one["interval"] else []
        faster = "{:.3f} ({:.3f} to {:.3f})".format(*ends) if ends else ""
        found.setdefault(str(case["model"]), {})[int(case["batch"])] = f"{one['state']}: {faster}"
    batches = sorted({batch for of_model in found.values() for batch in of_model})
    lines = [(model, *(of_model.get(batch, "") for batch in batches)) for model, of_model in sorted(found.items())]
    command = f"`python tools/training_step.py --seconds 172`, [exit code {report['exit_code']}](../../results/h200/{path.name})"
    return [
        "## Training steps",
        f"How many times as fast steps of models in bf16 are with the library as with PyTorch's functions (95 % interval), by {command}:",
        table(("4 layers, 128 tokens", *(f"batch {batch}" for batch in batches)), lines, "l" + "l" * len(batches)),
    ]


def host_times() -> list[str]:
    """The host times of users' calls, if a run of the configuration is stored."""
    if not (RESULTS / "h200" / "host.csv").is_file():
        return []
    return ["## Host time of users' calls", f"{measured_by('h200/host')}.", users_calls.as_markdown(rows_of("h200/host"))]


def frontier_tables(name: str, sections: Sequence[tuple[str, str, int]], backends: Sequence[str]) -> str:
    """Lines of some of the tables that `softbench show` prints of these backends in a run."""
    rows = [row for row in rows_of(name) if row.backend in backends and row.N in FRONTIER_COLUMNS]
    return shown([row for section in sections for row in rows if (row.direction, row.dtype, row.M) == section], legend=True)


def sweep(name: str, backends: Sequence[str], columns: Sequence[int]) -> str:
    """The default sweep of these backends at these numbers of columns."""
    return shown([row for row in rows_of(name) if row.N in columns and row.backend in backends], legend=True)


HEAD = """\
`python tools/generate_docs.py` writes this page from the files of `results/`. A commit with `+` had uncommitted changes, which the next
one has. softbench's kernels keep in L2 what they read rather than what they write, so they can be faster than `copy`. In tables with
averages a percentage of `copy` is by device time, or by do_bench if a run has no device times. Averages are geometric means of the cells
that a backend measured, with the least one in parentheses. [How softbench measures](../measuring.md) describes the rest."""
OWN = ("triton", "cuda")
ODD, INVARIANCE = "h200/odd", "h200/invariance.txt"
STRIDED = "h200/strided"
PLANS = "h200/plans"
BY_PASS, BY_M = ("op", "direction", "dtype"), ("op", "direction", "dtype", "M")
FIGURE = "../../results/h200/frontier"


def h200() -> str:
    """docs/results/h200.md."""
    parts = [
        "# Results on an H200",
        HEAD,
        "## The default sweep",
        "Three of its 48 lengths, and six of its backends. `softbench plot results/h200/sweep.csv` draws all of it.",
        measured_by("h200/sweep"),
        sweep("h200/sweep", ("copy", "torch", "compile", "liger", *OWN), SWEEP),
        "## Frontier",
        measured_by("h200/frontier"),
        averages(["h200/frontier"], SHOWN_BACKENDS[1:], BY_PASS),
        "fp16 has powers of two alone. `softbench show results/h200/frontier.csv` has each shape, and\n"
        "`softbench plot results/h200/frontier.csv --direction forward --dtype bf16 --M 4096` draws the first figure. With\n"
        "`--kind heatmap` and no `--M` it draws the second:",
        f"![Fraction of copy and bandwidth over N, forward bf16]({FIGURE}-forward-bf16-M4096.webp)",
        f"![The fastest backend of each shape, forward bf16]({FIGURE}-heatmap-forward-bf16.webp)",
        "## Inside compilers",
        "The same cases in operators and compiled graphs. AOTInductor's packages had traced kernels for rows of any length at that commit.",
        measured_by("h200/compiled"),
        spread("h200/compiled"),
        "## Other operations",
        measured_by("h200/operations"),
        averages(["h200/operations"], ("torch", "compile", *OWN), BY_M),
        *other_dimensions(),
        *odd_lengths(),
        *invariance(),
        "## Losses",
        measured_by("h200/losses", "h200/losses-torch"),
        averages(["h200/losses"], ("liger", "quack", *OWN), BY_M),
        "## The loss of a linear layer",
        "Of 8192 tokens, 128256 words and 4096 hidden states; `fused` has the gradients of states and weight too, which are 1.04 GiB.",
        measured_by("h200/linear_cross_entropy"),
        with_memory("h200/linear_cross_entropy"),
        "## Masked softmax",
        measured_by("h200/masked"),
        averages(["h200/masked"], ("torch", "compile", "triton"), ("op", "direction")),
        "## Other runs",
        f"{judged('h200/judged')} [The judge](../judge.md) describes the method.\n"
        "[Backends](../backends.md#costs) says how to see the costs of all backends. It also has\n"
        "[softmax in each language](../backends.md#the-gallery), as a [figure](../../results/h200/gallery.webp).",
        measured_by("h200/judged", "h200/strategies", "h200/gallery", PLANS),
        "## Inside `softbench.use()`",
        "Is any call slower there? The gate's verdicts:",
        use_verdicts(),
        *training_steps(),
        *host_times(),
    ]
    return "\n\n".join(parts)


def h100() -> str:
    """docs/results/h100.md."""
    parts = [
        "# Results on an H100",
        "This page is made as that of the [H200](h200.md), which explains the figures.",
        "## Frontier",
        "The cases of the H200's [frontier](h200.md#frontier), with softbench's kernels:",
        measured_by("h100/frontier"),
        spread("h100/frontier"),
        frontier_tables("h100/frontier", FRONTIER, SHOWN_BACKENDS),
        "## Judged cells",
        f"The run of the frontier has `--judge separate`. {judged('h100/frontier')}",
    ]
    return "\n\n".join(parts)


PAGES: dict[Path, Callable[[], str]] = {ROOT / "docs" / "results" / "h200.md": h200, ROOT / "docs" / "results" / "h100.md": h100}
"""The pages that are generated whole."""
