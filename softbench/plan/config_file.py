"""Reads configurations. A configuration is TOML: the keys of `Settings`, `[[sweep]]` tables with the shapes, and `[timeout]`.

rounds = 5
[timeout]
build = 600
[[sweep]]
M = 4096                      # a number, a list, or the grammar of --M
N = "256:6272:128"
dtype = ["fp32", "bf16"]
direction = "forward"
op = "softmax"                # a name, a list, or a Python file beside the configuration
set = {scale = [0.5, 1.0]}    # parameters of the operation
[[sweep]]
shape = ["8x16x1024x1024", "64x32x1000"]    # in place of M and N
dim = [-1, 1]                 # the dimension of the rows; the last without it
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Container, Sequence
from importlib import resources
from itertools import product
from pathlib import Path

from softbench.core.errors import ConfigError, UsageError
from softbench.core.json import JsonObject
from softbench.core.text import unknown
from softbench.plan.declare import axis_text
from softbench.plan.grammar import split, with_parameters
from softbench.plan.settings import KEYS, SETTINGS, Layer, read, with_fixed_rounds
from softbench.plan.sweep import AXES, Sweep
from softbench.plugins.source import beside, source_of

DEFAULT_CONFIG = {"cuda": "tutorial", "cpu": "cpu"}
"""The configuration of a run without shapes, by device."""

Operations = Callable[[Sequence[str], str], Sequence[str] | None]
"""`softbench.run.operations.names`."""

NAMED = SETTINGS.keys() - {"sweep", "plugins", "timeout", "config", "M", "N", "op", "set"}
"""The keys whose values are checked again after the file was read, when device and backends are known."""
_KEY = re.compile(r"(?:--)?([A-Za-z][\w-]*)")
MAX_BYTES = 64 * 1024
"""Longest configuration. The time of `tomllib` grows with the square of a key's dots: it takes minutes for 100000 of them."""


def known(words: Sequence[str], at: str) -> Sequence[str]:
    """The words as they are: a configuration without files of operations."""
    return words


def shipped() -> dict[str, str]:
    """The configurations that softbench ships, by name, each with its first comment line."""
    entries = [entry for entry in resources.files("softbench.configs").iterdir() if entry.name.endswith(".toml")]
    found = {entry.name.removesuffix(".toml"): entry.read_text().partition("\n")[0].lstrip("# ") for entry in entries}
    return dict(sorted(found.items()))


def in_file(text: str, config: object, given: Container[str]) -> str:
    """An error's text that begins with a flag; if the flag was not `given`, configuration and key stand in its place."""
    found = _KEY.match(text)
    key = found[1].replace("-", "_") if found else ""
    return text if found is None or config is None or key not in NAMED or key in given else f"{config}: {key}{text[found.end() :]}"


def load(name_or_file: str, operations: Operations = known) -> Layer:
    """Read a shipped configuration (by name) or a TOML file (by path).

    `operations` replaces the files among values of `op` by the names of their operations.

    Raises:
        ConfigError: it is missing, unreadable or not TOML, or has an unknown key or a wrong value. The message names file and key.
    """
    path = Path(name_or_file)
    if path.suffix == ".toml" or path.name != name_or_file:
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)  # a device may have no end
            if len(data) > MAX_BYTES:
                raise ConfigError(f"{name_or_file}: is longer than {MAX_BYTES // 1024} KiB; is it a configuration?")
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise ConfigError(f"--config {name_or_file}: {reason}") from None
    elif name_or_file in shipped():
        text = (resources.files("softbench.configs") / f"{name_or_file}.toml").read_text(encoding="utf-8")
    else:
        raise ConfigError(f"--config: {unknown(name_or_file, shipped(), 'configuration')}; or give the path of a .toml file")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, as is a number of thousands of digits
        raise ConfigError(f"{name_or_file}: not valid TOML: {error}") from None
    if not table:
        raise ConfigError(f"{name_or_file}: is empty; write [[sweep]] and then M = ..., N = ..., or leave out --config")
    try:
        return from_table(table, name_or_file, base=path.parent, operations=operations)
    except UsageError as error:
        raise ConfigError(str(error)) from None


def from_table(table: JsonObject, where: str, base: Path, operations: Operations = known) -> Layer:
    layer: Layer = {}
    for key, given in table.items():
        at = f"{where}: {key}"
        if key not in KEYS:
            raise ConfigError(f"{where}: {key} belongs in a [[sweep]]" if key in AXES else f"{where}: {unknown(key, KEYS, 'key')}")
        value = read(key, given, at)
        if key == "sweep":
            value = tuple(_sweep(sweep, f"{where}: [[sweep]] {i + 1}", base, operations) for i, sweep in enumerate(value))
        elif key == "plugins":
            value = tuple(beside(base, file) for file in value)
            for plugin in value:
                source_of(plugin, at)  # an error names the file, and not --plugin
        layer[key] = value
    return with_fixed_rounds(layer)


def _sweep(table: object, at: str, base: Path, operations: Operations) -> Sweep:
    if not isinstance(table, dict):
        raise ConfigError(f"{at}: must be a table; write [[sweep]] and then M = ..., N = ...")
    for key in table:
        if key not in AXES:
            raise ConfigError(f"{at}: {unknown(key, AXES, 'key')}")
    if "shape" in table and ("M" in table or "N" in table):
        raise ConfigError(f"{at}: shape gives all sizes of the tensor; leave out M and N")
    if "dim" in table and "shape" not in table:
        raise ConfigError(f"{at}: dim is a dimension of shape, which is missing")
    for key in ("M", "N"):
        if key not in table and "shape" not in table:
            raise ConfigError(f"{at}: {key} is missing")
    axes = dict(table)
    if "op" in axes:
        words = [str(beside(base, word)) if word.endswith(".py") else word for word in split(axis_text(axes["op"], f"{at} op"))]
        axes["op"] = ",".join(operations(words, f"{at} op") or ())
    axes = {key: read(key, value, f"{at} {key}") for key, value in axes.items()}
    sweep = Sweep(**axes)
    for op, given in product(sweep.op, sweep.set):
        with_parameters(op, given, f"{at} set")
    return sweep
