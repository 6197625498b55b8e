"""Arguments of Python as options of the command line: the same settings, the same errors, and the command that repeats a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, get_type_hints

from softbench import __version__
from softbench.api.backends import Given
from softbench.core.case import Value, value_text
from softbench.core.text import did_you_mean

if TYPE_CHECKING:
    from softbench.plan.settings import Layer
    from softbench.run.request import Request

Axis = int | str | Iterable[int | str]
"""Values of an axis: `4096`, `[256, 512]`, `range(256, 8192, 256)`, or a text such as `"256:8192:*2"`."""
Words = str | Iterable[str] | Any
"""One or several words. A dtype may be one of torch: `torch.bfloat16`."""


class CheckOptions(TypedDict, total=False):
    """Arguments that every call takes. Each means what the option of its name does; `softbench check --help` describes these options."""

    set: Mapping[str, Value] | str | Sequence[Mapping[str, Value] | str]
    """Parameters of the operation: `{"scale": 0.7}`. Each of several mappings makes cases of its own."""
    device: str
    seed: int
    timeout: float | str | Mapping[str, float]
    plugins: Sequence[str | Path]


class GateOptions(CheckOptions, total=False):
    """Arguments that every measurement takes too."""

    M: Axis
    N: Axis
    shape: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
    """One shape such as `(8, 16, 1024)` or `"8x16x1024"`, or several."""
    dim: int | str | Sequence[int]
    dtype: Words
    direction: Words
    threads: int
    rounds: int
    processes: int


class Options(GateOptions, total=False):
    """Arguments that a comparison takes too."""

    max_rounds: int
    precision: float
    relative_to: str
    timer: str
    l2: str
    profile: str


TEXTS = ("M", "N", "dim", "dtype", "direction")
"""Options whose values the command line takes as one text with commas."""


def known_only(options: Mapping[str, object], kind: type) -> None:
    """Raises TypeError for an argument that is not of this kind, as Python does for its own functions."""
    names = get_type_hints(kind)
    if unknown := [name for name in options if name not in names]:
        raise TypeError(f"unknown argument '{unknown[0]}'; {did_you_mean(unknown[0], names)}known are {', '.join(names)}")


def texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the command line has them: texts where it takes texts, numbers where it takes numbers."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if value is None:
            continue
        if key in TEXTS:
            found[key] = _listed(value)
        elif key == "shape":
            found[key] = _shapes(value)
        elif key == "set":
            found[key] = [_parameters(one) for one in ([value] if isinstance(value, str | Mapping) else value)]
        elif key == "timeout":
            found[key] = ",".join(f"{phase}={seconds:g}" for phase, seconds in value.items()) if isinstance(value, Mapping) else str(value)
        elif key == "plugins":
            found[key] = [Path(plugin) for plugin in ([value] if isinstance(value, str | Path) else value)]
        else:
            found[key] = value
    return found


def _listed(value: object) -> str:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value).removeprefix("torch.")
    return ",".join(map(_listed, value))


def _shapes(value: Any) -> str:
    if isinstance(value, str):
        return value
    sizes = list(value)
    return "x".join(map(str, sizes)) if all(isinstance(size, int) for size in sizes) else ",".join(map(_shapes, sizes))


def _parameters(value: str | Mapping[str, Value]) -> str:
    return value if isinstance(value, str) else ",".join(f"{name}={value_text(one)}" for name, one in value.items())


def layer(found: Mapping[str, Any], op: str | Sequence[str] | None, backends: Given) -> Layer:
    """The settings of the options that `texts` made.

    Raises:
        UsageError: an option is invalid.
    """
    from softbench.plan.flags import from_flags
    from softbench.plan.values import strings
    from softbench.run.operations import names

    plugins = [*backends.plugins, *found.get("plugins", ())]
    ops = [op] if isinstance(op, str) else list(op) if op else None
    flags = from_flags({**found, "op": names(ops), "plugins": plugins})
    if backends.names and backends.names != ("all",):
        flags["backends"] = strings(list(backends.names), "backends")
    return flags


def request(
    backends: Given,
    op: str | Sequence[str] | None,
    found: Mapping[str, Any],
    command: Sequence[str],
    *,
    output: str | Path,
    config: str | None = None,
    quick: bool = False,
) -> Request:
    """The request of a measurement. `found` is of `texts`; `command` has the words of the command line that repeats it.

    Raises:
        UsageError: an option is invalid.
    """
    from softbench.plan.config_file import load
    from softbench.run.operations import names
    from softbench.run.request import Request, command_line

    base = load(config, names) if config is not None else {}
    return Request(base, layer(found, op, backends), quick, Path(output), False, command_line(command), __version__)


def words(backends: Given, op: str | Sequence[str] | None, options: Mapping[str, Any]) -> list[str]:
    """The words of a command line with these plugins, operation and options. An option that is true is a flag alone."""
    ops = [op] if isinstance(op, str) else list(op or ())
    found = [word for plugin in (*backends.plugins, *options.get("plugins", ())) for word in ("--plugin", str(plugin))]
    found += ["--op", ",".join(ops)] if ops else []
    for key, value in options.items():
        if key == "plugins" or value is None or value is False:
            continue
        flag = f"--{key.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            found += [flag] if one is True else [f"{flag}={one}"] if str(one).startswith("-") else [flag, str(one)]
    return found
