"""The parameters of an operation, such as softmax's `scale`. They need no torch, so the parent process can use them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from softbench.core.case import DTYPES, Value, parse_value, value_text
from softbench.core.json import JsonObject
from softbench.core.text import unknown

KINDS = {"number": "a number", "whole": "a whole number", "bool": "true or false", "choice": ""}
"""The kinds of a parameter, in words."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,31}")
MAX_WHOLE = 2**48
LARGEST = sys.float_info.max
"""The largest number: TOML's whole numbers have no limit, and cannot all be floats."""
Setting = tuple[str, Value] | tuple[()]
"""A parameter and its value; empty for a part of an operation that does not depend on one."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. `--set NAME=VALUE` sets it."""

    name: str
    """Its name, as `--set` takes it."""
    kind: str
    """`number`, `whole`, `choice` or `bool`. A whole number may be the name of a tensor's axis, and a choice that of its dtype."""
    default: Value
    """Cases with this value do not name the parameter."""
    doc: str = ""
    """One line for `softbench list --ops`."""
    choices: tuple[str, ...] = ()
    """The words that it may be. A number may be a word too."""
    least: float | None = None
    """The smallest number; None without a limit."""
    most: float | None = None
    """The largest number; None without a limit."""
    dtypes: tuple[str, ...] = tuple(DTYPES)
    """The dtypes of the cases that may set it."""

    def read(self, value: Value) -> Value:
        """The value in the type of its kind.

        Raises:
            ValueError: the parameter has no such value.
        """
        if isinstance(value, str):
            if value in self.choices:
                return value
        elif isinstance(value, bool):
            if self.kind == "bool":
                return value
        elif self.kind in ("number", "whole") and -LARGEST <= value <= LARGEST and self._within(value):
            if self.kind == "number":
                return float(value)
            if value == int(value) and self._smallest <= value <= MAX_WHOLE:
                return int(value)
        raise ValueError(f"{self.name}={value_text(value)[:40]}: must be {self.allowed}")

    @property
    def _smallest(self) -> int:
        """A whole number is negative only where `least` says so: others may be the size of an axis."""
        return -MAX_WHOLE if self.least is not None and self.least < 0 else 0

    def _within(self, value: float) -> bool:
        return (self.least is None or self.least <= value) and (self.most is None or value <= self.most)

    @property
    def allowed(self) -> str:
        """Its values, in words."""
        limits = [f"{word} {limit:g}" for word, limit in (("from", self.least), ("to", self.most)) if limit is not None]
        return " or ".join([" ".join([KINDS[self.kind], *limits])] * (self.kind != "choice") + list(self.choices))


def read(known: Iterable[Parameter], given: Mapping[str, Value], operation: str) -> dict[str, Value]:
    """All values of an operation's parameters, in the order of their declaration: the given ones, and defaults.

    Raises:
        ValueError: a parameter is unknown or has another value.
    """
    by_name = {parameter.name: parameter for parameter in known}
    for name, value in given.items():
        if name not in by_name:
            what = unknown(name, tuple(by_name), f"parameter of {operation}") if by_name else f"{operation} has no parameters"
            raise ValueError(f"{name}={value_text(value)}: {what}")
    return {name: parameter.read(given[name]) if name in given else parameter.default for name, parameter in by_name.items()}


def holds(when: Setting, values: Mapping[str, Value]) -> bool:
    """True if a part of an operation exists with these values."""
    return not when or values[when[0]] == when[1]


def validate(parameter: Parameter) -> None:
    """Raises a ValueError for the first part of a parameter that softbench cannot use."""
    at = f"parameter {parameter.name}"
    if not NAME.fullmatch(parameter.name):
        raise ValueError(f"{at}: the name must be a word of 1 to 32 letters, digits and _")
    if parameter.kind not in KINDS:
        raise ValueError(f"{at}: {unknown(parameter.kind, tuple(KINDS), 'kind')}")
    for word in parameter.choices:
        if not WORD.fullmatch(word) or not isinstance(parse_value(word), str):
            raise ValueError(f"{at}: '{word}' is no choice; use 1 to 32 letters, digits, _ and . that begin with a letter")
    if parameter.kind == "choice" and len(set(parameter.choices)) < 2:
        raise ValueError(f"{at}: a choice must have two choices at least")
    if parameter.kind == "bool" and parameter.choices:
        raise ValueError(f"{at}: a bool has no choices")
    limits = [limit for limit in (parameter.least, parameter.most) if limit is not None]
    if not all(isinstance(limit, int | float) and -LARGEST <= limit <= LARGEST for limit in limits):
        raise ValueError(f"{at}: least and most must be numbers, or None without a limit")
    if parameter.least is not None and parameter.most is not None and parameter.least > parameter.most:
        raise ValueError(f"{at}: least is {parameter.least:g}, and most is {parameter.most:g}")
    if not set(parameter.dtypes) <= set(DTYPES) or not parameter.dtypes:
        raise ValueError(f"{at}: dtypes must be of {', '.join(DTYPES)}")
    if not isinstance(parameter.default, bool | int | float | str):
        raise ValueError(f"{at}: the default must be a number, a text, True or False")
    if parameter.read(parameter.default) != parameter.default:
        raise ValueError(f"{at}: the default has another type than its kind")


def from_json(data: JsonObject) -> Parameter:
    """The inverse of `dataclasses.asdict`; the data are untrusted. Raises as `softbench.ops.declaration.from_json`."""
    default = data["default"]
    if not isinstance(default, bool | int | float | str):
        raise TypeError("a default of another type")
    name, kind, doc = (str(data[key]) for key in ("name", "kind", "doc"))
    least, most = (None if data[key] is None else float(data[key]) for key in ("least", "most"))
    return Parameter(name, kind, default, doc, tuple(map(str, data["choices"])), least, most, tuple(map(str, data["dtypes"])))
