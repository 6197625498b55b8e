"""Builds the kernels into shared libraries on first use, one for each function, and loads them.

nvcc compiles for the architecture of the device, without torch's headers, and with a process for each operation. That takes seconds and not
a minute. A library is cached under a hash of the sources, the flags, the function, the architecture, and the versions of nvcc, torch and
torch's CUDA. A lock lets two processes build at the same time.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..common.cuda_library import MISSING, SHARED, BuildError, architecture_of, build_once, key, run_compiler, target
from ..common.cuda_toolkit import cached_library, nvcc

SOURCE = Path(__file__).with_name("softmax.cu")
FUNCTIONS = ("softmax", "log_softmax", "scaled_softmax")
"""The functions of softmax.cu by their number in softmax_ops.cuh."""
LOSSES = ("cross_entropy", "logprob")
"""Losses. Each has a source of its name."""
ALL = (*FUNCTIONS, *LOSSES, "columns")
"""The functions that have a library: these, and softmax and log_softmax along other dimensions than the last."""
OF_LIBRARY = tuple(function for function in ALL if function != "scaled_softmax")
"""Those that the functions of `softbench.kernels` call. None of these has a scale, which `launch.softmax` has."""
LIBRARY = "softmax.so"
FEW_CORES = 4  # with fewer, one compiler that reads the source once is faster than several
FLAGS = ("-O3", "-std=c++17", "-fmad=true", *SHARED)
"""-fmad is nvcc's default. As in Triton's kernels (`triton/generic.py`, CONTRACTION), no bound depends on it."""


def command(compiler: str, architecture: str, out: Path, function: str = "softmax") -> list[str]:
    """The command line that compiles a function's source into its library. `architecture` is a name such as `sm_90a`."""
    return [compiler, *flags(function), *target(compiler, architecture), "-o", str(out), str(source(function))]


def source(function: str) -> Path:
    """The file that has a function's kernels; it includes the headers beside it."""
    return SOURCE.with_name(f"{function}.cu") if function not in FUNCTIONS else SOURCE


def flags(function: str) -> tuple[str, ...]:
    """The compiler's flags for a function, on any architecture."""
    return FLAGS if function not in FUNCTIONS else (*FLAGS, f"-DSOFTBENCH_FUNCTION={FUNCTIONS.index(function)}")


def parts(function: str = "softmax") -> int:
    """The number of parts in which a function's source can be compiled, by the numbers that it compares SOFTBENCH_PART with; 1 without."""
    return len(set(re.findall(r"^#(?:el)?if SOFTBENCH_PART == (\d+)$", source(function).read_text(), re.MULTILINE))) or 1


def _compile(compiler: str, architecture: str, out: Path, function: str) -> str:
    """Compiles a function's library, in one piece on a machine of few cores.

    Returns what the compilers print, or raises CompilerError with it.
    """
    whole, count = command(compiler, architecture, out, function), parts(function)
    if count == 1 or (os.cpu_count() or 1) < FEW_CORES:
        return run_compiler(whole)
    objects = [out.with_suffix(f".{part}.o") for part in range(count)]
    commands = [
        [*(word for word in whole if word not in ("-shared", "-o", str(out))), f"-DSOFTBENCH_PART={part}", "-c", "-o", str(made)]
        for part, made in enumerate(objects)
    ]
    with ThreadPoolExecutor(count) as pool:
        texts = list(pool.map(run_compiler, commands))
    return "".join([*texts, run_compiler([*(word for word in whole if word != str(source(function))), *map(str, objects)])])


def sources(function: str = "softmax") -> list[Path]:
    """A function's source, and the headers that it may include."""
    return [source(function), *sorted(SOURCE.parent.glob("*.cuh"))]


def build(architecture: str, function: str = "softmax") -> Path:
    """Returns the library of a function for an architecture, and builds it unless it is cached.

    Raises:
        BuildError: there is no compiler, or it failed. The message has its first error line.
    """
    compiler = nvcc()
    if compiler is None:
        raise BuildError(MISSING)
    what = f"{source(function).name} ({function}) for {architecture} with {compiler}"
    return build_once(_key(compiler, architecture, function), LIBRARY, what, lambda out: _compile(compiler, architecture, out, function))


def built(architecture: str, function: str = "softmax") -> Path | None:
    """The library of a function for an architecture, if it is built; None if it is not, or without the compiler that built it."""
    compiler = nvcc()
    return cached_library(f"{_key(compiler, architecture, function)}/{LIBRARY}") if compiler else None


def _key(compiler: str, architecture: str, function: str) -> str:
    return key(compiler, architecture, [*(path.read_text() for path in sources(function)), *flags(function)])


@functools.cache
def load(capability: tuple[int, int], function: str = "softmax") -> ctypes.CDLL:
    """Loads the library of a function for devices of a compute capability, once. Raises BuildError as `build`."""
    library = ctypes.CDLL(str(build(architecture_of(capability), function)))
    for name, arguments in _arguments(function).items():
        launch = getattr(library, f"softbench_{name}")
        launch.argtypes, launch.restype = arguments, ctypes.c_int64
    if hasattr(library, "softbench_plans"):
        library.softbench_plans.argtypes, library.softbench_plans.restype = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64], None
    if hasattr(library, "softbench_candidate"):
        numbers = [ctypes.c_int] * 2 + [ctypes.c_int64] * 2
        library.softbench_candidate.argtypes = [*numbers, ctypes.c_void_p, ctypes.c_void_p]
    library.softbench_error.argtypes = [ctypes.c_int]
    library.softbench_error.restype = ctypes.c_char_p
    return library


def _arguments(function: str) -> dict[str, list[Any]]:
    """The types of the arguments of a library's functions, by their names."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    launch = [number] * 2 + [ctypes.c_int] * 2 + [pointer, number, pointer, pointer]  # shape, dtypes, workspace, stream, plan
    if function == "cross_entropy":
        options = [number, real, real, real, real]
        return {
            "forward": [pointer] * 5 + options + [number] + launch,
            "backward": [pointer] * 7 + options + [number] * 4 + launch,
            "fused": [pointer] * 5 + [number, real] + [number] * 2 + launch,
            "reduce": [pointer] * 4 + [number, ctypes.c_int, number, pointer],
        }
    if function == "logprob":
        options = [number, real]
        return {"forward": [pointer] * 6 + options + [number] + launch, "backward": [pointer] * 8 + options + [number] * 4 + launch}
    if function == "columns":
        return {"columns": [pointer] * 3 + [number] * 9 + [ctypes.c_int] * 3 + [real] + [ctypes.c_int] * 2 + [pointer]}
    scales: list[Any] = [pointer, real] if function == "scaled_softmax" else []
    return {"forward": [*scales, *[pointer] * 2, *[number] * 2, *launch], "backward": [*scales, *[pointer] * 3, *[number] * 3, *launch]}
