"""Whether two measurements may be compared. Facts that determine a bandwidth must be equal; others give warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from softbench.core.case import TIMERS
from softbench.core.errors import InconclusiveError, UsageError
from softbench.core.machine import same_card
from softbench.core.text import one_line, unknown
from softbench.gate.samples import RunSamples

STRICT = {
    "cuda": ("device", "gpu", "gpu_memory_bytes", "ecc", "mig", "power_limit_w", "unit"),
    "cpu": ("device", "cpu", "cpu_count", "torch_threads"),
}
"""Facts that must be equal, by device. An absent fact counts as different."""
OPTIONAL_FACTS = ("ecc", "mig")
"""Facts that many GPUs lack. If both sides lack them, they count as equal."""
OPERATIONS = "operations"
"""The fact with the hashes of users' operations, by name. Only the operations of both runs must be equal."""
WARNING_FACTS = (
    *("driver", "cuda", "torch", "overrides", "triton", "python", "gpu_count", "interleaved"),
    *("sm_clock_max_mhz", "memory_clock_max_mhz"),  # the clock policy that NVML reports
)
WARNING_SETTINGS = ("rounds", "max_rounds", "precision", "warmup_ms", "batch_ms", "seed")
"""Settings that affect a measurement."""
TIMING_DEFAULTS = {"timer": TIMERS[0], "l2": "cold"}
"""Settings that change what is measured, with their defaults."""


def strict_fields() -> list[str]:
    """Every field that `--allow-env-mismatch` can name."""
    return [*dict.fromkeys(field for fields in STRICT.values() for field in fields), OPERATIONS]


def validate(allowed: Sequence[str]) -> None:
    """Raise UsageError for a name that `--allow-env-mismatch` does not know."""
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
    different = [name for name in fields if _differs(name, new.environment.get(name), base.environment.get(name))]
    refused = [name for name in different if name not in allowed]
    if refused:
        raise InconclusiveError(
            f"{new.source} cannot be compared with {base.source}: {'; '.join(_difference(name, new, base) for name in refused)}; "
            f"measure both on one machine, or: {' '.join(f'--allow-env-mismatch {name}' for name in refused)}"
        )
    warnings = [f"compared although different: {_difference(name, new, base)}" for name in different] + unnoticed(base, new)
    for text in _redefined(base.environment, new.environment):
        if OPERATIONS not in allowed:
            raise InconclusiveError(
                f"{new.source} cannot be compared with {base.source}: {text}; measure both with one file, "
                f"or: --allow-env-mismatch {OPERATIONS}"
            )
        warnings.append(f"compared although different: {text}")
    for name, default in TIMING_DEFAULTS.items():
        old_value, new_value = base.settings.get(name, default), new.settings.get(name, default)
        if old_value != new_value:
            raise InconclusiveError(
                f"{new.source} cannot be compared with {base.source}: {name} was {old_value}, now it is {new_value}; measure again"
            )
    for name in WARNING_FACTS:
        if new.environment.get(name) != base.environment.get(name):
            warnings.append(f"differs: {_difference(name, new, base)}")
    for name in WARNING_SETTINGS:
        if new.settings.get(name) != base.settings.get(name):
            warnings.append(f"differs: {name} was {_recorded(base.settings.get(name))}, now it is {_recorded(new.settings.get(name))}")
    return warnings


def unnoticed(*sides: RunSamples) -> list[str]:
    """A note for each file without digests."""
    files = dict.fromkeys(file for side in sides for file in side.undigested)
    return [f"{file}: has no digest, so a changed number is not noticed" for file in files]


def check_device(device: str | None, base: RunSamples, allowed: Sequence[str]) -> None:
    """Check the `--device` of a command line before anything is measured with it.

    Raises:
        InconclusiveError: the baseline is of another kind of device.
    """
    recorded = base.environment.get("device", "")
    if device not in (None, "auto") and recorded not in ("", device.partition(":")[0]) and "device" not in allowed:
        raise InconclusiveError(
            f"--device {device}: cannot be compared with {base.source}, which was measured on {_card(base)}; leave out --device, "
            "or save a baseline of this device"
        )


def without_gpu(message: str, base: RunSamples) -> str:
    """What to tell if a baseline of a GPU is to be measured where there is none; `message` is about `--device`, which nobody gave."""
    why = message.partition(": ")[2].partition(";")[0]
    return f"{base.source} was measured on {_card(base)}, and there is no GPU here ({why}); measure there, or see: softbench doctor"


def _card(base: RunSamples) -> str:
    names = (base.environment.get(name) for name in ("gpu", "cpu", "device"))
    return one_line(str(next(filter(None, names), "another device")), 60)


def check_threads(threads: int | None, base: RunSamples, allowed: Sequence[str]) -> None:
    """Check a number of CPU threads before anything is measured with it.

    Raises:
        InconclusiveError: the baseline has another number.
    """
    recorded = base.environment.get("torch_threads")
    if threads not in (None, recorded) and "torch_threads" not in allowed:
        raise InconclusiveError(
            f"--threads {threads}: cannot be compared with {base.source}: torch_threads was {_recorded(recorded)}; leave out --threads, "
            "or: --allow-env-mismatch torch_threads"
        )


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The facts in which the environments of two runs on one device differ, as `torch_threads is 2 in A, 1 in B`."""
    facts = (*STRICT.get(str(a.get("device")), STRICT["cuda"]), *WARNING_FACTS)
    found = [f"{name} is {_recorded(a.get(name))} in A, {_recorded(b.get(name))} in B" for name in facts if _differs_at_all(name, a, b)]
    return found + _redefined(a, b)


def _differs_at_all(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """True if a fact has two values; unlike `_differs`, an absent fact is a value."""
    return _differs(name, a.get(name), b.get(name)) if name == "unit" else bool(a.get(name) != b.get(name))


def _redefined(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The operations that two files define, one in each environment."""
    first, second = (facts.get(OPERATIONS) for facts in (a, b))
    if not isinstance(first, dict) or not isinstance(second, dict):
        return []
    return [
        f"two files define the operation {one_line(str(name), 60)}: their hashes are {_recorded(first[name])} and {_recorded(second[name])}"
        for name in first
        if name in second and first[name] != second[name]
    ]


def one_machine(parts: Sequence[RunSamples], allowed: Sequence[str] = ()) -> list[str]:
    """Warnings, if several runs may count as one.

    Raises:
        InconclusiveError: see `check`.
    """
    return [text for part in parts[1:] for text in check(part, parts[0], allowed)]


def _differs(name: str, new_value: Any, old_value: Any) -> bool:
    if name == "unit":
        return not same_card(new_value, old_value)
    return bool(new_value != old_value) or (new_value is None and name not in OPTIONAL_FACTS)


def _difference(name: str, new: RunSamples, base: RunSamples) -> str:
    return f"{name} was {_recorded(base.environment.get(name))}, now it is {_recorded(new.environment.get(name))}"


def _recorded(value: Any) -> str:
    return "not recorded" if value is None else one_line(str(value), 60)
