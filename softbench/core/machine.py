"""What a probe worker reports about the machine."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BOOT, PCI = Path("/proc/sys/kernel/random/boot_id"), Path("/sys/bus/pci/devices")


def peak_gbps(memory_clock_mhz: float, bus_bits: int) -> float:
    """Peak bandwidth of the datasheet in decimal GB/s: two transfers per clock, for HBM and GDDR as NVML counts clocks.

    H200: 3201 MHz x 2 x 6144 bits = 4917 GB/s; the datasheet rounds to 4.8 TB/s.
    """
    return memory_clock_mhz * 2 * bus_bits / 8 / 1e3


@dataclass(frozen=True, slots=True)
class Gpu:
    """One CUDA device, in torch's order."""

    name: str
    uuid: str
    """Identifier for CUDA_VISIBLE_DEVICES; never stored in results."""
    total_bytes: int
    free_bytes: int
    compute_mode: str
    """`default`, `exclusive_process`, `prohibited`, or empty if NVML reports nothing."""
    facts: dict[str, object]
    """Facts that results store."""
    hip_device: str = ""
    """What HIP_VISIBLE_DEVICES calls it, with a torch for ROCm: it takes no UUID. Empty with CUDA."""

    @property
    def exclusive(self) -> bool:
        """True if the GPU takes one process at a time."""
        return self.compute_mode.startswith("exclusive")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, as a probe worker reports it: the parent process never imports torch."""

    torch: str
    """Version of torch."""
    no_gpu: str
    """Why torch has no CUDA GPU here; empty if it has one."""
    gpus: tuple[Gpu, ...]
    cpu: str
    cpu_free_bytes: int
    software: dict[str, object]
    """Versions and the CPU; results store them."""
    host: str = "host"
    """The label of the host (`softbench.worker.machine_probe.host_label`)."""


UNIT = re.compile(r"[A-Za-z0-9._-]{1,40}/[A-Za-z0-9-]{1,20}/[0-9a-f]{8}")
"""The text of a unit: the label of its host, its index there, and a hash of its UUID."""


def unit_of(machine: Machine, gpu: Gpu | None) -> str:
    """The unit of a run: a GPU, as in `node7/0/9c1d22e0`, or the processors of this process, as in `node7/cpu0-3/51aa0c7e`.

    A GPU's index is NVML's, which CUDA_VISIBLE_DEVICES does not change, or torch's without NVML.
    """
    if gpu is not None:
        return f"{machine.host}/{gpu.facts.get('gpu_index', machine.gpus.index(gpu))}/{_hash(gpu.uuid)}"
    processors = sorted(os.sched_getaffinity(0))
    span = f"cpu{processors[0]}" + (f"-{processors[-1]}" if len(processors) > 1 else "")
    return f"{machine.host}/{span}/{_hash(f'{machine.host} {machine.cpu} {processors}')}"


def same_card(a: object, b: object) -> bool:
    """True if two units are one card: its host and its index may have changed. A unit that is not recorded is any card."""
    return not a or not b or str(a).rpartition("/")[2] == str(b).rpartition("/")[2]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def boot_id() -> str:
    """What Linux calls the present boot of the machine; empty if it does not tell."""
    with suppress(OSError):
        return BOOT.read_text().strip()
    return ""


def numa_node(bus: str | bytes) -> int:
    """The NUMA node of a PCI device. Raises OSError or ValueError if Linux does not tell it."""
    text = bus.decode() if isinstance(bus, bytes) else bus
    domain, _, rest = text.lower().partition(":")
    node = int((PCI / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    if node < 0:
        raise ValueError("the machine has one node")
    return node


def free_memory() -> int:
    """Bytes of memory that are available to new processes."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 8 * 2**30  # a guess that only decides whether workers take turns
