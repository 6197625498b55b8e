"""Reads parameters of operations from `--set scale=0.7,out_dtype=fp32` and from TOML's `set = {scale = [0.5, 1.0]}`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from softbench.core.case import Value, parse_value, value_text
from softbench.core.errors import ConfigError, UsageError
from softbench.plan.sweep import Given, parse_axis


def from_flags(texts: Iterable[str], flag: str) -> tuple[Given, ...]:
    """The parameters of each text, such as `scale=0.7,out_dtype=fp32`. A range, as in `K=64:256:64`, makes one for each number.

    Raises:
        UsageError: a part is not NAME=VALUE, or a name comes twice.
    """
    found: dict[Given, None] = {}
    for text in texts:
        values: dict[str, Sequence[Value]] = {}
        for part in text.split(","):
            name, sign, value = (piece.strip() for piece in part.partition("="))
            if not name or not sign or not value:
                raise UsageError(f"{flag} {text}: write NAME=VALUE, as in scale=0.7,out_dtype=fp32")
            if name in values:
                raise UsageError(f"{flag} {text}: {name} comes twice; repeat {flag} for cases of its own")
            values[name] = _values(value, f"{flag} {name}")
        found |= dict.fromkeys(_combined(values))
    return tuple(found)


def from_toml(value: object, at: str) -> tuple[Given, ...]:
    """The parameters of a table such as `{scale = [0.5, 1.0], out_dtype = "fp32"}`, or of a list of such tables.

    Raises:
        ConfigError: it is none.
    """
    found: dict[Given, None] = {}
    for table in value if isinstance(value, list) else [value]:
        if not isinstance(table, dict):
            raise ConfigError(f"{at}: must be a table such as {{scale = 0.7}}, or a list of tables, not {table!r}")
        values: dict[str, Sequence[Value]] = {}
        for name, given in table.items():
            items = given if isinstance(given, list) else [given]
            if not items or not all(isinstance(item, bool | int | float | str) for item in items):
                raise ConfigError(f"{at}.{name}: must be a number, a text, true, false or a list of them, not {given!r}")
            values[name] = [one for item in items for one in (_values(item, f"{at}.{name}") if isinstance(item, str) else (item,))]
        found |= dict.fromkeys(_combined(values))
    if not found:
        raise ConfigError(f"{at}: is empty; leave it out, or write set = {{scale = 0.7}}")
    return tuple(found)


def _values(text: str, at: str) -> Sequence[Value]:
    if ":" in text:
        return parse_axis(text, at)
    try:
        number = float(text)
    except ValueError:
        return (parse_value(text),)
    return (parse_value(value_text(number)),)


def _combined(values: Mapping[str, Sequence[Value]]) -> list[Given]:
    return [tuple(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
