"""Which cells of several units are shown together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from softbench.results.rows import Row


def apart(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in parts that are shown apart, each with the name of its part as `device`.

    Each GPU model is a part: cards of one model share a sweep. If two cards have one cell, each card is a part.
    """
    models: dict[str, list[Row]] = {}
    for row in rows:
        models.setdefault(row.device, []).append(row)
    found: list[list[Row]] = []
    for some in models.values():
        if len({(row.backend, row.case) for row in some}) == len(some):
            found.append(some)
            continue
        cards: dict[str, list[Row]] = {}
        for row in some:
            cards.setdefault(row.unit, []).append(replace(row, device=f"{row.device} {row.unit}".strip()))
        found += cards.values()
    return found


def file_of(file: Path, part: Sequence[Row]) -> Path:
    """The file's name with the name of a part: `out-NVIDIA-H200-node7-0-9c1d22e0.png`."""
    return file.with_name(f"{file.stem}-{re.sub('[^A-Za-z0-9._]+', '-', part[0].device).strip('-')}{file.suffix}")
