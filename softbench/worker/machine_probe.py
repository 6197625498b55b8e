"""What the machine is, as a probe worker sees it. Host names, user names and device UUIDs are not stored."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from softbench.core.machine import Gpu, Machine, free_memory, numa_node, peak_gbps
from softbench.worker.guarding import overrides

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


def probe() -> Machine:
    """Look at torch, the GPUs and the CPU. Never raises for what is merely absent."""
    error, gpus = "", []
    if torch.cuda.is_available():
        try:
            gpus = [_gpu(index) for index in range(torch.cuda.device_count())]
        except Exception as raised:  # a broken driver is a finding, not a crash
            error, gpus = str(raised), []
    return Machine(torch.__version__, error or _why_no_gpu(), tuple(gpus), _cpu_name(), free_memory(), software(), host_label())


def describe_gpu(index: int) -> dict[str, object]:
    """What is stored of GPU `index`: memory, driver, clocks, limits, peak, ECC, MIG. Fields that NVML does not give are absent."""
    properties = torch.cuda.get_device_properties(index)
    found: dict[str, object] = {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "gpu_sm_count": properties.multi_processor_count,
        "gpu_l2_bytes": properties.L2_cache_size,
        "gpu_compute_capability": f"{properties.major}.{properties.minor}" if torch.version.hip is None else properties.gcnArchName,
        "gpu_count": torch.cuda.device_count(),
    }
    with _nvml(index) as (nvml, handle):
        for key, read in {
            "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
            "compute_mode": lambda: COMPUTE_MODES[nvml.nvmlDeviceGetComputeMode(handle)],
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
            "sm_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_max_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "sm_clock_at_start_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_at_start_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "memory_bus_bits": lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle),
            "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
            "gpu_index": lambda: nvml.nvmlDeviceGetIndex(handle),
            "gpu_numa_node": lambda: numa_node(nvml.nvmlDeviceGetPciInfo(handle).busId),
            "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        }.items():
            with suppress(Exception):  # NVML says NotSupported for some fields on some cards
                found[key] = read()
        with suppress(Exception):
            # One is this process, whose context was made before. In a container NVML may show none, or numbers that are not ours.
            found["gpu_other_processes"] = max(0, len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)) - 1)
    clock, bus = found.get("memory_clock_max_mhz"), found.get("memory_bus_bits")
    if isinstance(clock, int) and isinstance(bus, int) and clock and bus:
        found["peak_gbps"] = peak_gbps(clock, bus)
        found["peak_source"] = f"NVML: {clock} MHz x 2 x {bus} bits"
    return found


def host_label() -> str:
    """The environment variable SOFTBENCH_HOST, or a hash of the host's name: results may be published."""
    given = re.sub(r"[^A-Za-z0-9._-]", "-", os.environ.get("SOFTBENCH_HOST", ""))[:40]
    return given or f"host-{hashlib.sha256(platform.node().encode()).hexdigest()[:6]}"


def software() -> dict[str, object]:
    """Versions, the CPU, and what changes torch: the number of threads and overridden operators."""
    found: dict[str, object] = {
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release().partition('-')[0]}",  # what follows names a distribution, or a host's own build
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    if torch.version.hip is not None:
        found["rocm"] = torch.version.hip
    for package in ("triton", "numpy", "quack-kernels", "nvidia-cutlass-dsl", "liger-kernel", "cut-cross-entropy", "flashinfer-python"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    if replaced := overrides.active():
        found["overrides"] = replaced
    return found


def _gpu(index: int) -> Gpu:
    free, total = torch.cuda.mem_get_info(index)
    facts = describe_gpu(index)
    return Gpu(str(facts["gpu"]), gpu_uuid(index), total, free, str(facts.get("compute_mode", "")), facts, _hip_device(index))


def _hip_device(index: int) -> str:
    """What HIP_VISIBLE_DEVICES calls torch's GPU `index`: its place among all, or among those that the user chose. Empty with CUDA."""
    if torch.version.hip is None:
        return ""
    chosen = os.environ.get("HIP_VISIBLE_DEVICES") or os.environ.get("CUDA_VISIBLE_DEVICES") or ""
    places = [place.strip() for place in chosen.split(",") if place.strip()]
    return places[index] if index < len(places) else str(index)


@contextmanager
def _nvml(index: int) -> Iterator[tuple[Any, Any]]:
    """NVML and its handle of torch's GPU `index`; two Nones where there is no driver library, or on a MIG slice."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        yield None, None
        return
    try:
        handle = None
        with suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(gpu_uuid(index))
        yield pynvml, handle
    finally:
        pynvml.nvmlShutdown()


def gpu_uuid(index: int) -> str:
    """As NVML and CUDA_VISIBLE_DEVICES take it. On ROCm it only tells GPUs apart."""
    return f"GPU-{torch.cuda.get_device_properties(index).uuid}"


def _why_no_gpu() -> str:
    if torch.cuda.is_available():
        return ""
    if torch.version.hip is not None:
        return "torch sees no AMD GPU; is the driver amdgpu loaded, may this user open /dev/kfd, and is HIP_VISIBLE_DEVICES right?"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "torch sees no CUDA GPU; is the driver installed, and CUDA_VISIBLE_DEVICES right?"


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
