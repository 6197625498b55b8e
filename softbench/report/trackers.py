"""Results for services that keep a value for each commit: github-action-benchmark, Bencher, and the HUD of PyTorch.

Sources: `customSmallerIsBetter` of https://github.com/benchmark-action/github-action-benchmark; the Bencher Metric Format of
https://bencher.dev/docs/reference/bencher-metric-format; https://github.com/pytorch/pytorch/wiki/PyTorch-OSS-benchmark-infra.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from softbench.core.case import YARDSTICK
from softbench.core.json import JsonObject
from softbench.results.columns import Row

METRICS = {
    "latency": ("us", "median_us", "low_us", "high_us"),
    "device time": ("us", "device_us"),
    "host time": ("us", "host_us"),
    "peak memory": ("bytes", "peak_bytes"),
    "compile time": ("s", "compile_s"),
}
"""The unit of each metric, and the columns of its value and of the ends of its interval. Less is better."""
NS = 1e3
"""Nanoseconds in a microsecond: Bencher's latency has that unit."""
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


class Metric(NamedTuple):
    """A measured value of a cell."""

    row: Row
    cell: str
    """Backend and case, with the unit if there are several."""
    name: str
    unit: str
    value: float
    ends: tuple[float, ...]
    """Low and high end of the 95 % interval; empty without one."""


def metrics(rows: Sequence[Row]) -> Iterator[Metric]:
    """The values of cells that were right and timed, without those of the yardstick."""
    several = len({row.unit for row in rows}) > 1
    for row in rows:
        if row.timed and row.backend != YARDSTICK:
            cell = f"{row.backend} {row.case} {row.unit if several else ''}".rstrip()
            for name, (unit, *columns) in METRICS.items():
                value, *ends = (getattr(row, column) for column in columns)
                if value is not None:
                    yield Metric(row, cell, name, unit, value, () if None in ends else tuple(ends))


def github_action_benchmark(found: Metric) -> JsonObject:
    """An entry of the list that `tool: customSmallerIsBetter` reads."""
    row = found.row
    shown = {"range": f"{found.ends[0]:g} to {found.ends[1]:g}"} if found.ends else {}
    return {
        "name": f"{found.cell} {found.name}",
        "unit": found.unit,
        "value": found.value,
        **shown,
        "extra": f"{row.device}, {row.timer}, {row.run}",
    }


def bencher(found: Metric) -> JsonObject:
    """A measure of a benchmark. Its latency is in nanoseconds."""
    scale = NS if found.name == "latency" else 1
    values = zip(("value", "lower_value", "upper_value"), (found.value, *found.ends), strict=False)
    return {found.name.replace(" ", "-"): {name: scale * value for name, value in values}}


def pytorch_hud(found: Metric) -> JsonObject:
    """A record of PyTorch's benchmark database, version 3."""
    row = found.row
    about = {name: str(getattr(row, name)) for name in ("run", "timer", "l2", "M", "N", "shape")}
    interval = {"extra_info": {"low": found.ends[0], "high": found.ends[1]}} if found.ends else {}
    return {
        "benchmark": {"name": "softbench", "mode": row.direction, "dtype": DTYPES.get(row.dtype, row.dtype), "extra_info": about},
        "model": {"name": str(row.case), "type": row.op, "backend": row.backend, "origins": []},
        "metric": {"name": f"{found.name} ({found.unit})", "benchmark_values": [found.value], **interval},
        "runners": [{"name": row.unit, "type": row.device}],
    }


def _merged(found: Sequence[Metric]) -> JsonObject:
    """Bencher's document: the measures of each cell."""
    benchmarks: JsonObject = {}
    for one in found:
        benchmarks.setdefault(one.cell, {}).update(bencher(one))
    return benchmarks


FORMATS: dict[str, Callable[[Sequence[Metric]], object]] = {
    "github-action-benchmark": lambda found: [github_action_benchmark(one) for one in found],
    "bencher": _merged,
    "pytorch-hud": lambda found: [pytorch_hud(one) for one in found],
}


def text(rows: Sequence[Row], to: str) -> str:
    """JSON of these rows in one of FORMATS."""
    return json.dumps(FORMATS[to]([*metrics(rows)]), indent=1, allow_nan=False) + "\n"
