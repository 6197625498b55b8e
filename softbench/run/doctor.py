"""`softbench doctor`: what is there, what is missing, and what to install."""

from __future__ import annotations

from functools import cache

from softbench.core import toolchain
from softbench.core.errors import WorkersError
from softbench.core.machine import Gpu
from softbench.core.text import one_line, size
from softbench.kernels.common import cuda_toolkit
from softbench.plan.settings import PHASES
from softbench.plugins.source import origins
from softbench.processes.session import Session
from softbench.run import info_cache

Finding = tuple[str, str, str]
"""A name; `ok`, `missing`, `absent` (works without it) or `warning`; what it is, or what to do."""

ROCM: list[Finding] = [
    ("CUDA kernels", "absent", "an NVIDIA GPU runs them; softbench's Triton kernels take the tiers without PTX here"),
    ("CUPTI", "absent", "HIP events give the times; device times and kernel names come from roctracer, if this torch has it"),
    ("ncu", "absent", "it profiles NVIDIA's GPUs only; rocprofv3 is AMD's"),
    ("NVML", "absent", "so clocks, power, temperature and the peak bandwidth are not recorded"),
]
"""What a torch for AMD's GPUs does without."""


def examine(deadline: float) -> list[Finding]:
    """Look at everything a run may need. Whatever is wrong is a finding, never an exception."""
    found: list[Finding] = []
    rocm = False
    try:
        with Session("cpu", deadline) as session:
            look = session.machine
    except WorkersError as error:
        found.append(("torch", "missing", str(error)))
    else:
        software = look.software
        toolkit = f"ROCm {software['rocm']}" if software.get("rocm") else f"CUDA {software.get('cuda') or 'none'}"
        found.append(("torch", "ok", f"{look.torch}, {toolkit}, Python {software['python']}"))
        rocm = "rocm" in software
        found += ROCM if rocm else []
        found += [finding for i, gpu in enumerate(look.gpus) for finding in _gpu(i, gpu)]
        if not look.gpus:
            found.append(("GPU", "absent", f"{look.no_gpu}; everything runs on the CPU"))
        if version := software.get("triton"):
            found.append(("triton", "ok", str(version)))
        else:
            found.append(("triton", "missing", "pip install triton (the GPU timer and torch.compile on a GPU need it)"))
    found.append(_tool("C compiler", toolchain.c_compiler(), "missing", "Triton needs one: apt install gcc"))
    found.append(_tool("C++ compiler", toolchain.cxx_compiler(), "missing", "torch.compile on the CPU needs one: apt install g++"))
    headers = toolchain.python_headers()
    found.append(
        _tool("Python.h", str(headers) if headers else None, "missing", "Triton and torch.compile need it: apt install python3-dev")
    )
    if not rocm:
        advice = "only CUDA C++ extensions need it: install the CUDA toolkit, or pip install 'softbench[cuda]'"
        found.append(_tool("nvcc", cuda_toolkit.nvcc(), "absent", advice))
    return found


@cache
def no_gpu() -> str:
    """Why no run can use a GPU here; empty if one can. A process asks once; what an earlier command found out suffices.

    Raises:
        WorkersError: the machine cannot be probed.
    """
    if known := info_cache.read("auto", origins(())):
        machine = known.machine
    else:
        with Session("auto", PHASES["import"]) as session:
            machine = session.machine
    return "" if machine.gpus else machine.no_gpu


def healthy(findings: list[Finding]) -> bool:
    """True when nothing that a run needs is missing."""
    return not any(state == "missing" for _, state, _ in findings)


def _gpu(index: int, gpu: Gpu) -> list[Finding]:
    facts = gpu.facts
    about = f"{one_line(gpu.name)}, {size(gpu.free_bytes)} of {size(gpu.total_bytes)} free, driver {facts.get('driver', 'unknown')}"
    found: list[Finding] = [(f"cuda:{index}", "ok", about)]
    if gpu.exclusive:
        found.append(("compute mode", "warning", f"{gpu.compute_mode}: one worker at a time, so runs are not interleaved"))
    elif gpu.compute_mode == "prohibited":
        found.append(("compute mode", "missing", "prohibited: this GPU takes no work; ask its administrator"))
    else:
        found.append(("compute mode", "ok", gpu.compute_mode or "NVML does not say"))
    return found


def _tool(name: str, path: str | None, otherwise: str, advice: str) -> Finding:
    return (name, "ok", path) if path else (name, otherwise, advice)
