"""Writes the board: one HTML file with its data, and beside it the pages of runs. It needs no network, and all links are relative."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

from softbench import __version__
from softbench.core.case import YARDSTICK, CaseKey
from softbench.core.errors import UsageError
from softbench.core.files import not_written, replace_file
from softbench.core.json import JsonObject
from softbench.core.text import one_line
from softbench.report import colours, glossary
from softbench.report.assets.embedded import asset, column, embedded, source_hash
from softbench.report.board.model import KINDS, Board, BoardCase, BoardRun, Change, GroupKey

WORDS = ("case", "yardstick", "fraction of copy", "tie", "interval", "drift", "doubtful")
SCRIPTS = ("uplot.min.js", "unpack.js", "shared.js")
VERSIONS = (
    "torch",
    "triton",
    "cuda",
    "rocm",
    "driver",
    "quack-kernels",
    "liger-kernel",
    "nvidia-cutlass-dsl",
    "flashinfer-python",
    "python",
)
"""The facts of an environment that the board names where they changed."""
MARK = '<meta name="generator" content="softbench board">'
"""What tells an index that a board may replace from one of another program."""


def check_folder(out: Path) -> None:
    """Refuse what is no folder, and a folder whose index another program wrote.

    Raises:
        UsageError: it is such a folder, or a file, or has the name of one.
        SoftbenchError: it cannot be read.
    """
    if out.suffix in (".html", ".htm") or (out.exists() and not out.is_dir()):
        raise UsageError(f"-o {out}: is a file; name a folder, and the board is its index.html")
    index = out / "index.html"
    try:
        if index.exists() and MARK not in index.read_text(encoding="utf-8", errors="replace")[:4000]:
            raise UsageError(f"-o {out}: its index.html is no board; name another folder, or remove that file")
    except OSError as error:
        raise not_written(f"-o {out}", error) from None


def page_name(run: BoardRun) -> str:
    """Where the page of a run on one card stands, relative to the index."""
    name = f"{run.found.run}-{run.unit.rpartition('/')[2] or run.card}"
    return f"runs/{re.sub('[^A-Za-z0-9._-]+', '-', name)[-150:]}.html"


def write(board: Board, out: Path, title: str, problems: Sequence[str], command: str) -> Path:
    """Write `index.html`. It links the pages of runs that are there.

    Raises:
        SoftbenchError: it cannot be written.
    """
    index = out / "index.html"
    style = asset("base.css") + asset("uplot.min.css") + asset("board.css", __package__)
    script = "\n".join([*map(asset, SCRIPTS), asset("board.js", __package__)])
    values = {
        "mark": MARK,
        "policy": f"default-src 'none'; style-src {source_hash(style)}; script-src {source_hash(script)}; img-src data:; base-uri 'none'",
        "title": html.escape(one_line(title, 120)),
        "made": html.escape(f"{__version__}: {one_line(command, 500)}"),
        "style": style,
        "script": script,
        "data": embedded({"problems": [one_line(text) for text in problems], **_data(board, out)}),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        replace_file(index, Template(asset("board.html", __package__)).substitute(values))
    except OSError as error:
        raise not_written(f"-o {out}", error) from None
    return index


def _data(board: Board, out: Path) -> JsonObject:
    names = list(dict.fromkeys(name for cases in board.groups.values() for case in cases.values() for name in case.series))
    looks = [colours.look(name) for name in names]
    numbers = {key: i for i, key in enumerate(board.groups)}
    places = {key: {case: i for i, case in enumerate(_ordered(cases))} for key, cases in board.groups.items()}
    return {
        "threshold": board.threshold,
        "yardstick": YARDSTICK,
        "words": {word: glossary.meanings()[word] for word in WORDS},
        "backends": {"name": names, "light": [look.light for look in looks], "dark": [look.dark for look in looks]},
        "runs": _runs(board.runs, out),
        "groups": [_group(key, cases, {name: i for i, name in enumerate(names)}) for key, cases in board.groups.items()],
        "changes": [_change(one, numbers, places, names.index(one.backend)) for one in sorted(board.changes, key=_order)],
    }


def _runs(runs: Sequence[BoardRun], out: Path) -> JsonObject:
    found = [one.found for one in runs]
    pages = [page_name(one) for one in runs]
    return {
        **{name: column([getattr(one, name) for one in found]) for name in ("run", "started", "commit", "command")},
        **{name: column([one_line(str(one.environment.get(name) or ""), 60) for one in found]) for name in VERSIONS},
        "file": column([one.file.name for one in found]),
        "card": column([one.card for one in runs]),
        "cells": [one.cells for one in runs],
        "timer": column([one.timer for one in runs]),
        "page": column([page if (out / page).is_file() else "" for page in pages]),
        "versions": ("timer", *VERSIONS),
    }


def _ordered(cases: Iterable[CaseKey]) -> list[CaseKey]:
    return sorted(cases, key=lambda case: (len(case.shape), case.M, case.N, case.shape))


def _group(key: GroupKey, cases: Mapping[CaseKey, BoardCase], index: Mapping[str, int]) -> JsonObject:
    """The points of all series stand one after the other; `n` says how many a series has."""
    ordered = [cases[case] for case in _ordered(cases)]
    series = [(i, index[name], points) for i, case in enumerate(ordered) for name, points in case.series.items()]
    best = [(i, run, [index[name] for name in names]) for i, case in enumerate(ordered) for run, names in case.fastest]
    points = [point for _, _, points in series for point in points]
    return {
        **key._asdict(),
        "case": [case.size for case in _ordered(cases)],
        "bytes": column([case.bytes for case in ordered]),
        "in_l2": [int(case.in_l2) for case in ordered],
        "series": {"case": [i for i, _, _ in series], "backend": [i for _, i, _ in series], "n": [len(points) for _, _, points in series]},
        "points": {
            "run": [point.run for point in points],
            "us": column([point.us for point in points], 4),
            "copy": [round(1000 * point.of_copy) if point.of_copy else None for point in points],
            "state": column([point.state for point in points]),
        },
        "fastest": {"case": [i for i, _, _ in best], "run": [run for _, run, _ in best], "names": [names for _, _, names in best]},
    }


def _order(one: Change) -> tuple[int, int, int]:
    """The newest run first, and in a run what needs a look first."""
    return -one.run, KINDS.index(one.kind), -len(one.cases)


def _change(one: Change, numbers: Mapping[GroupKey, int], places: Mapping[GroupKey, Mapping[CaseKey, int]], backend: int) -> JsonObject:
    return {
        **{"run": one.run, "before": one.before, "group": numbers[one.group], "backend": backend, "kind": one.kind},
        **{"compared": one.compared, "notes": one.notes, "case": [places[one.group][case] for case, _ in one.cases]},
        **{name: column([getattr(ratio, name) for _, ratio in one.cases], 4) for name in ("value", "low", "high")},
    }
