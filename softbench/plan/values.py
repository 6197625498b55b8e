"""Reads one value of a setting, from a configuration or a flag; every error names the key or flag."""

from __future__ import annotations

import os
from collections.abc import Callable

from softbench.core.case import TIMERS
from softbench.core.errors import ConfigError, UsageError
from softbench.core.text import unknown
from softbench.plan.settings import PHASES
from softbench.plan.sweep import parse_axis, parse_dims, parse_directions, parse_dtypes, parse_operations, parse_shapes_or_presets


def axis_text(value: object, at: str) -> str:
    """TOML's `4096`, `[256, 512]` and `"256:8192:256"` as text in the grammar of the flags."""
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, int | str) and not isinstance(item, bool) for item in items):
        raise ConfigError(f"{at}: must be a number, a text or a list of them, not {value!r}")
    return ",".join(str(item) for item in items)


def strings(value: object, at: str) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise UsageError(f"{at}: must be a text or a list of texts, none of them empty, not {value!r}")
    return tuple(dict.fromkeys(item.strip() for item in items))


def timeouts(value: object, at: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise UsageError(f"{at}: must be a table of seconds; its keys are {', '.join(PHASES)}")
    for key in value:
        if key not in PHASES:
            raise UsageError(f"{at}: {unknown(key, PHASES, 'phase')}")
    return {key: number(0.001, 1e6)(seconds, f"{at}.{key}") for key, seconds in value.items()}


def whole(low: int, high: int) -> Callable[[object, str], int]:
    def read(value: object, at: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UsageError(f"{at}: must be a whole number from {low} to {high}, not {value!r}")
        return value

    return read


def number(low: float, high: float) -> Callable[[object, str], float]:
    def read(value: object, at: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise UsageError(f"{at}: must be a number from {low:g} to {high:g}, not {value!r}")
        return float(value)

    return read


def word(value: object, at: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{at}: must be a name, not {value!r}")
    return value.strip()


def one_of(*known: str) -> Callable[[object, str], str]:
    def read(value: object, at: str) -> str:
        name = word(value, at)
        if name not in known:
            raise UsageError(f"{at}: {unknown(name, known, 'value')}")
        return name

    return read


def device(value: object, at: str) -> str:
    name = word(value, at)
    if name not in ("auto", "cpu", "cuda") and not (name.startswith("cuda:") and name[5:].isdecimal()):
        raise UsageError(f"{at}: {unknown(name, ('auto', 'cpu', 'cuda', 'cuda:K'), 'device')}")
    return name


def threads(value: object, at: str) -> int:
    most = len(os.sched_getaffinity(0))
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{at}: must be a whole number from 1 to {most}, the processors of this process, not {value!r}")
    return value


READERS: dict[str, Callable[[object, str], object]] = {
    "device": device,
    "threads": threads,
    **dict.fromkeys(("rounds", "max_rounds"), whole(1, 10_000)),
    "precision": number(0, 1),
    "tick_us": number(0, 1e6),
    "processes": whole(1, 1_000),
    "seed": whole(0, 2**31 - 1),
    "relative_to": word,
    "warmup_ms": number(0, 1e5),
    "batch_ms": number(0.01, 1e5),
    "timer": one_of(*TIMERS),
    "l2": one_of("cold", "warm"),
    "profile": one_of("on", "off"),
    "judge": one_of("worker", "separate"),
    "memory_share": number(1e-6, 1),
}
SWEEP_READERS: dict[str, Callable[[str, str], object]] = {
    "M": parse_axis,
    "N": parse_axis,
    "dtype": parse_dtypes,
    "direction": parse_directions,
    "op": parse_operations,
    "shape": parse_shapes_or_presets,
    "dim": parse_dims,
}
