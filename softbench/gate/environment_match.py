"""Whether two measurements may be compared. Facts that determine a bandwidth must be equal; others give warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from softbench.core.errors import InconclusiveError, UsageError
from softbench.core.text import one_line, unknown
from softbench.gate.samples import RunSamples

STRICT = {
    "cuda": ("device", "gpu", "gpu_memory_bytes", "ecc", "mig", "power_limit_w"),
    "cpu": ("device", "cpu", "cpu_count", "torch_threads"),
}
"""Facts that must be equal, by device. An absent fact counts as different."""
LACKED = ("ecc", "mig")
"""Facts that many GPUs lack. If both sides lack them, they count as equal."""
WARNED = (
    *("driver", "cuda", "torch", "triton", "python", "gpu_count", "interleaved"),
    *("sm_clock_max_mhz", "memory_clock_max_mhz"),  # the clock policy that NVML reports
)
MEASURED = ("rounds", "max_rounds", "precision", "warmup_ms", "batch_ms", "seed")
"""Settings that affect a measurement."""
MADE_BY = {"timer": "do_bench", "l2": "cold"}
"""Settings that change what is measured, with their values in older runs."""


def strict_fields() -> list[str]:
    """Every field that `--allow-env-mismatch` can name."""
    return list(dict.fromkeys(field for fields in STRICT.values() for field in fields))


def validate(allowed: Sequence[str]) -> None:
    """Raise UsageError for a name that is not such a fact."""
    for name in allowed:
        if name not in strict_fields():
            raise UsageError(f"--allow-env-mismatch: {unknown(name, strict_fields(), 'field')}")


def check(new: RunSamples, base: RunSamples, allowed: Sequence[str] = ()) -> list[str]:
    """Warnings, if the two may be compared.

    Raises:
        InconclusiveError: a strict fact differs or is absent. The message names facts, values and the option that accepts them.
        UsageError: `allowed` names an unknown fact.
    """
    validate(allowed)
    fields = STRICT.get(str(base.environment.get("device")), STRICT["cuda"])
    sides = [(name, new.environment.get(name), base.environment.get(name)) for name in fields]
    different = [name for name, now, then in sides if now != then or (now is None and name not in LACKED)]
    refused = [name for name in different if name not in allowed]
    if refused:
        raise InconclusiveError(
            f"{new.source} cannot be compared with {base.source}: {'; '.join(_told(name, new, base) for name in refused)}; "
            f"measure both on one machine, or: {' '.join(f'--allow-env-mismatch {name}' for name in refused)}"
        )
    for name, usual in MADE_BY.items():
        then, now = base.settings.get(name, usual), new.settings.get(name, usual)
        if then != now:
            raise InconclusiveError(
                f"{new.source} cannot be compared with {base.source}: {name} was {then}, now it is {now}; measure again"
            )
    warnings = [f"compared although different: {_told(name, new, base)}" for name in different]
    for name in WARNED:
        if new.environment.get(name) != base.environment.get(name):
            warnings.append(f"differs: {_told(name, new, base)}")
    for name in MEASURED:
        if new.settings.get(name) != base.settings.get(name):
            warnings.append(f"differs: {name} was {_shown(base.settings.get(name))}, now it is {_shown(new.settings.get(name))}")
    return warnings


def one_machine(parts: Sequence[RunSamples], allowed: Sequence[str] = ()) -> list[str]:
    """Warnings, if several runs may count as one.

    Raises:
        InconclusiveError: see `check`.
    """
    return [text for part in parts[1:] for text in check(part, parts[0], allowed)]


def _told(name: str, new: RunSamples, base: RunSamples) -> str:
    return f"{name} was {_shown(base.environment.get(name))}, now it is {_shown(new.environment.get(name))}"


def _shown(value: Any) -> str:
    return "not recorded" if value is None else one_line(str(value), 60)
