"""The texts of a cell in a table with a line per cell."""

from __future__ import annotations

from collections.abc import Callable

from softbench.core import text as units
from softbench.results.columns import Row


def us_text(us: float | None) -> str:
    """A time with its unit; empty for none."""
    return units.micros(us) if us else ""


CELL: dict[str, Callable[[Row], str]] = {
    "backend": lambda row: row.backend,
    "direction": lambda row: row.of_pass,
    "dtype": lambda row: row.dtype,
    "M": lambda row: str(row.M),
    "N": lambda row: f"{row.N} ({row.shape})" if row.shape else str(row.N),
    "status": lambda row: row.status,
    "class": lambda row: row.grade,
    "median": lambda row: us_text(row.median_us),
    "p20..p80": lambda row: f"{us_text(row.p20_us)}..{us_text(row.p80_us)}" if row.p20_us and row.p80_us else "",
    "n": lambda row: str(row.n or ""),
    "GB/s": lambda row: units.three_digits(row.gbps) + " (L2)" * row.in_l2 if row.gbps else "",
    "of copy": lambda row: units.percent(row.of_copy) + " (products)" * row.compute_bound if row.of_copy else "",
    "of peak": lambda row: units.percent(row.of_peak) if row.of_peak else "",
    "device": lambda row: us_text(row.device_us),
    "host": lambda row: us_text(row.host_us),
    "kernels": lambda row: str(row.kernels or ""),
    "build": lambda row: f"{row.build_s:.3g} s {row.build_cache}".strip() if row.build_s is not None else "",
    "error/bound": lambda row: f"{row.error_over_bound:.3g}" if row.error_over_bound is not None else "",
    "labels": lambda row: row.labels,
    "unit": lambda row: row.unit,
}
"""The columns of `cells`, and the text of a row in each. Only several cards have the column `unit`."""
WORDS = frozenset({"backend", "direction", "dtype", "status", "class", "labels", "unit"})
"""The left-aligned columns of CELL."""
