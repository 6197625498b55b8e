"""What a probe worker reports about the machine."""

from __future__ import annotations

from dataclasses import dataclass


def peak_gbps(memory_clock_mhz: float, bus_bits: int) -> float:
    """The datasheet's bandwidth, decimal GB/s: two transfers a clock, as NVML counts the clocks of HBM and GDDR alike.

    H200: 3201 MHz x 2 x 6144 bits = 4917 GB/s, where the datasheet rounds to 4.8 TB/s.
    """
    return memory_clock_mhz * 2 * bus_bits / 8 / 1e3


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device as torch numbers it."""

    name: str
    uuid: str
    """As CUDA_VISIBLE_DEVICES takes it; never stored in results."""
    total_bytes: int
    free_bytes: int
    compute_mode: str
    """`default`, `exclusive_process`, `prohibited`, or empty where NVML does not say."""
    facts: dict[str, object]
    """What is stored of it beside the figures."""

    @property
    def exclusive(self) -> bool:
        """True when it takes one process at a time."""
        return self.compute_mode.startswith("exclusive")


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe worker reports of the machine: the parent process never imports torch."""

    torch: str
    """Version."""
    no_gpu: str
    """Why torch has no CUDA GPU here; empty when it has one."""
    gpus: tuple[Gpu, ...]
    cpu: str
    cpu_free_bytes: int
    software: dict[str, object]
    """Versions and the CPU, stored beside the figures."""
