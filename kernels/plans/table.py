"""Which family of launch plans is the fastest for a kind of rows, their length and their number: tables that `softbench tune` writes.

A *family* is plans that differ only by the length and the number of rows, as `cluster 8 192`. The planner of a language makes
a plan of it for exactly these rows, or none (`cuda/planner.cuh`, `triton/planner.py`). A *kind* is a pass, the bytes of an element and the
alignment of rows. A kind has lines of lengths. A line has cells of what a launch reads for each SM, so a table also serves cards with
other numbers of SMs.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..common.cuda_toolkit import cache_folder

VARIABLE = "SOFTBENCH_PLANS"
"""Names a table, for tests and comparisons. An empty text: only the tables that come with softbench."""
MEDIUM_ROW = 4096
"""Bytes: longer rows are only told apart by whether they consist of whole vectors."""
ADVICE = "delete it, and softbench tune writes one"
VECTOR_BYTES = 16
WIDTH = 160
"""Characters of a line of a table's file."""

Family = tuple[str | int, ...]
"""A tier and its numbers, which cuda/planner.cuh and triton/planner.py explain."""
MOST = 1 << 15
"""Of a family's numbers: what planner.cuh computes of them fits its integers."""
ANY, COUNT, PERCENT, POWER = range(-MOST, MOST), range(1, MOST), range(1001), (1, 2, 4, 8, 16, 32)
THREADS, CTAS, BYTES = (32, 64, 128, 256, 512, 1024), (2, 4, 8, 16), (4, 8, 16)
NUMBERS: dict[str, dict[str, tuple[Sequence[int], ...]]] = {
    "cuda": {
        "sub_warp": (COUNT, COUNT, (0, *BYTES)), "staged": (COUNT, COUNT), "block": (COUNT, COUNT), "cluster": (COUNT, COUNT),
        "cluster_bulk": (COUNT,), "split_bulk": (COUNT, COUNT, ANY, PERCENT), "split": (COUNT, COUNT, ANY),
    },
    "triton": {
        "tile": (POWER,), "staged": (COUNT, POWER, COUNT), "rows": (COUNT, POWER, POWER, BYTES), "cluster": (THREADS, CTAS, ANY),
        "split": (THREADS, COUNT, COUNT, ANY),
    },
}  # fmt: skip
"""What the numbers of a family may be, for each tier of a language. Triton's kernels take the plans of all that may be; `plan_fits` of
dispatch.cuh tests those of CUDA."""
PASSES = ("forward", "gradient", "widened", "fused")
"""A forward is widened if its results have more bytes than its input. A loss with its gradient in one pass is fused."""
Kind = tuple[str, int, int]
"""A pass, the bytes of an element, and the alignment of rows in bytes."""


class TableError(Exception):
    """A file is no table, or one of another card."""


def kind_of(which: str, element_size: int, row_bytes: int, alignment: int) -> Kind:
    """The kind of rows that are aligned to `alignment` bytes, at most VECTOR_BYTES."""
    told_apart = alignment == VECTOR_BYTES or row_bytes <= MEDIUM_ROW
    return which, element_size, alignment if told_apart else element_size


@dataclass(frozen=True)
class Cell:
    """The family for rows of up to `row_bytes`, in launches that read up to `kib_per_sm` KiB for each SM. Either may be infinite."""

    row_bytes: float
    kib_per_sm: float
    family: Family


@dataclass(frozen=True)
class Table:
    """What was measured on a card, for the kernels of one language."""

    card: str
    cells: dict[Kind, tuple[Cell, ...]]
    """By length, then by KiB."""

    def ranked(self, kind: Kind, row_bytes: int, kib_per_sm: float) -> Iterator[Family]:
        """The families in the order in which a planner asks them for a plan.

        The first is that of the cell. Those of the next cells in both directions follow, then those of rows at any address, and then those
        of forwards if the pass is widened or fused.
        """
        which, size, alignment = kind
        last = which if which == "gradient" else "forward"
        for one in dict.fromkeys(itertools.product((which, last), (size,), (alignment, size))):
            cells = self.cells.get(one, ())
            line = bisect.bisect_left(cells, float(row_bytes), key=lambda cell: cell.row_bytes)
            up = next((at for at in range(line, len(cells)) if kib_per_sm <= cells[at].kib_per_sm), len(cells))
            both = itertools.chain.from_iterable(itertools.zip_longest(cells[up:], cells[:up][::-1]))
            yield from (cell.family for cell in both if cell)


@functools.cache
def table(language: str, card: str, capability: int, tiers: tuple[str, ...] = ()) -> Table:
    """The table for a card: that of $SOFTBENCH_PLANS, what `softbench tune` wrote here, its own, or that of the card most like it.

    Most like it is the card with the nearest compute capability, where generations count first.

    `capability`: as in 90. `tiers`: only cells with these tiers, if there are any.

    What tune wrote and this version does not read is left out, with a warning.

    Raises:
        TableError: $SOFTBENCH_PLANS names no table, or one of another card.
    """
    if tiers:
        every = table(language, card, capability)
        return Table(every.card, {kind: tuple(cell for cell in of if cell.family[0] in tiers) for kind, of in every.cells.items()})
    chosen = os.environ.get(VARIABLE)
    found = _of_card(language, Path(chosen), card, f"name another one in ${VARIABLE}, or unset it") if chosen else None
    if chosen is None:
        try:
            found = _of_card(language, tuned_file(card), card, ADVICE) if tuned_file(card).is_file() else None
        except OSError:  # the folder above is another user's
            pass
        except TableError as error:
            warnings.warn(str(error), stacklevel=2)
    if found is None:
        read = (_read(language, path) for path in _files())
        found = min(read, key=lambda one: (one["card"] != card, _distance(one["capability"], capability)))
    return Table(found["card"], found["cells"])


def _of_card(language: str, path: Path, card: str, advice: str) -> dict[str, Any]:
    found = _read(language, path, advice)
    if card and found["card"] != card:
        raise TableError(f"{path} has the plans of {found['card']}, and this card is {card}; {advice}")
    return found


def lines_of(cells: Iterable[Cell]) -> list[str]:
    """The lines of a kind as a file has them: `4096: 64 block 1 128; inf block 2 128`."""
    grouped = itertools.groupby(cells, lambda cell: cell.row_bytes)
    return [f"{most:.15g}: {'; '.join(f'{cell.kib_per_sm:.15g} {family_name(cell.family)}' for cell in of)}" for most, of in grouped]


def tuned_file(card: str) -> Path:
    """Where `softbench tune` writes the table of a card."""
    return cache_folder() / "plans" / f"{card.replace(' ', '-')}.json"


def _distance(one: int, other: int) -> tuple[int, int]:
    """How unlike two compute capabilities are: generations count first."""
    return abs(one // 10 - other // 10), abs(one - other)


def _files() -> list[Path]:
    return sorted(Path(str(path)) for path in resources.files(__package__).joinpath("tables").iterdir() if path.name.endswith(".json"))


def _read(
    language: str, path: Path, advice: str = "install softbench again, or write it again by softbench tune --output"
) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict) or not found.keys() >= {"card", "capability", language}:
            raise ValueError(f"it must be an object with the keys card, capability and {language}")
        if type(found["capability"]) is not int:
            raise ValueError("the capability must be an integer, as 90 for 9.0")
        if not isinstance(found[language], dict):
            raise ValueError(f"{language} must be an object with kinds of rows as keys, as 'forward 2 16'")
        return {**found, "cells": {_kind(name): _ordered(language, name, lines) for name, lines in found[language].items()}}
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TableError(f"{path} is no table of launch plans: {why}; {advice}") from None


def _kind(name: str) -> Kind:
    found = re.fullmatch(rf"({'|'.join(PASSES)}) ([24]) (2|4|8|16)", name)
    if not found:
        raise ValueError(f"{name!r} is no kind of rows, as 'forward 2 16' is")
    return found[1], int(found[2]), int(found[3])


def kind_name(kind: Kind) -> str:
    """The kind as a table's file has it: `forward 2 16`."""
    return " ".join(map(str, kind))


def _ordered(language: str, name: str, lines: list[str]) -> tuple[Cell, ...]:
    try:
        cells = tuple(_cells(language, lines))
    except (ValueError, TypeError, AttributeError) as error:  # an earlier version wrote other lines
        raise ValueError(f"{language}'s {name!r} has other lines than '4096: 64 block 1 128; inf block 2 128': {error}") from None
    inf = float("inf")
    ends = [(0.0, inf), *((cell.row_bytes, cell.kib_per_sm) for cell in cells)]
    rises = ((row < longer and kib == inf) or (row == longer and kib < more) for (row, kib), (longer, more) in itertools.pairwise(ends))
    if not all(rises) or ends[-1] != (inf, inf):
        raise ValueError(f"the lines of {language}'s {name!r} must ascend to inf, and so must the cells of a line")
    return cells


def _cells(language: str, lines: list[str]) -> Iterator[Cell]:
    for line in lines:
        row_bytes, _, cells = line.partition(": ")
        for cell in cells.split("; "):
            kib_per_sm, _, family = cell.partition(" ")
            yield Cell(float(row_bytes), float(kib_per_sm), family_of(language, family))


def family_of(language: str, text: str) -> Family:
    """The family that a table's file writes as `cluster 8 192`."""
    tier, *numbers = text.split()
    given, allowed = [*map(int, numbers)], NUMBERS[language].get(tier)
    if not allowed or len(given) != len(allowed) or not all(number in some for number, some in zip(given, allowed, strict=True)):
        raise ValueError(f"{text!r} is no family of plans")
    return tier, *given


def families(language: str, menu: str) -> tuple[Family, ...]:
    """Families with commas between."""
    return tuple(family_of(language, one) for one in menu.replace("\n", " ").split(",") if one.strip())


def family_name(family: Family) -> str:
    """The family as a table's file has it."""
    return " ".join(map(str, family))


def written(card: str, capability: int, languages: Mapping[str, Mapping[Kind, Iterable[Cell]]], measured: str) -> str:
    """The text of a table's file. `measured`: what a reader should know about the measurement."""
    parts = [f'{{"card": {json.dumps(card)}, "capability": {capability}, "measured": {json.dumps(measured)}']
    for language, kinds in languages.items():
        named = ((kind_name(kind), [*map(json.dumps, lines_of(cells))]) for kind, cells in sorted(kinds.items()))
        inner = ",\n".join(f"{json.dumps(name)}: [\n{_packed(lines)}]" for name, lines in named)
        parts.append(f'"{language}": {{\n{inner}}}')
    return ",\n".join(parts) + "}\n"


def _packed(parts: list[str]) -> str:
    """The parts with commas between, in lines of up to WIDTH characters."""
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < WIDTH:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return ",\n".join(lines)
