"""Reads the settings that are given as flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from softbench.core.errors import UsageError
from softbench.plan import parameters
from softbench.plan.settings import PHASES, Layer, with_fixed_rounds
from softbench.plan.values import READERS, SWEEP_READERS, strings, timeouts


def from_flags(flags: Mapping[str, Any]) -> Layer:
    """The given flags (not None), validated. Keys are option names with underscores.

    The values of a repeated option are joined: `--N 256 --N 512` is `--N 256,512`.

    Raises:
        UsageError: naming the flag.
    """
    given = {key: value for key, value in flags.items() if value not in (None, (), [])}
    layer: dict[str, object] = {}
    for key, value in given.items():
        flag = f"--{key.replace('_', '-')}"
        if isinstance(value, list) and key not in ("plugins", "set"):
            value = ",".join(value)
        if key == "set":
            layer[key] = parameters.from_flags(value, flag)
        elif key in SWEEP_READERS:
            layer[key] = SWEEP_READERS[key](value, flag)
        elif key == "timeout":
            layer[key] = parse_timeout(value)
        elif key == "plugins":
            layer[key] = tuple(value)
        elif key == "backends":
            layer[key] = None if value.strip() == "all" else strings(value, flag)
        else:
            layer[key] = READERS[key](value, flag)
    if "shape" in layer and ("M" in layer or "N" in layer):
        raise UsageError("--shape gives all sizes of the tensor; leave out --M and --N")
    return with_fixed_rounds(cast(Layer, layer))


def parse_timeout(text: str) -> dict[str, float]:
    """`30` (every phase) or `import=10,build=600`, in seconds."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        if len(pairs) == 1 and not pairs[0][1]:
            return timeouts(dict.fromkeys(PHASES, float(text)), "--timeout")
        return timeouts({name.strip(): float(seconds) for name, _, seconds in pairs}, "--timeout")
    except ValueError:
        raise UsageError(f"--timeout {text}: write seconds, or phases as in import=10,build=600") from None
