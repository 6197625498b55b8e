"""Builds the kernels into shared libraries on first use, one for each function, and loads them.

nvcc compiles for the architecture of the device, without torch's headers, and with a process for each operation. That takes seconds and not
a minute. A library is cached under a hash of the sources, the flags, the function, the architecture, and the versions of nvcc, torch and
torch's CUDA. A lock lets two processes build at the same time.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ..common.cuda_toolkit import cache_folder, cached_library, nvcc

SOURCE = Path(__file__).with_name("softmax.cu")
FUNCTIONS = ("softmax", "log_softmax", "scaled_softmax")
"""The functions of softmax.cu by their number in softmax_ops.cuh."""
LOSSES = ("cross_entropy", "logprob")
"""Losses. Each has a source of its name."""
ALL = (*FUNCTIONS, *LOSSES, "masked_softmax")
"""The functions that have a library: these, and softmax of attention scores, in a source of its name."""
MISSING = "no nvcc on PATH, under CUDA_HOME or in pip's packages; install the CUDA toolkit or: pip install 'softbench[cuda]'"
LIBRARY = "softmax.so"
FEW_CORES = 4  # with fewer, one compiler that reads the source once is faster than several
FLAGS = ("-O3", "-std=c++17", "-fmad=true", "-shared", "-Xcompiler", "-fPIC")
"""-fmad is nvcc's default. As in Triton's kernels (`triton/generic.py`, CONTRACTION), no bound depends on it."""


class BuildError(RuntimeError):
    """The library cannot be built. The message is one line and names the compiler's log, if there is one."""


def command(compiler: str, architecture: str, out: Path, function: str = "softmax") -> list[str]:
    """The command line that compiles a function's source into its library. `architecture` is a name such as `sm_90a`."""
    number = architecture.removeprefix("sm_")
    libraries = Path(compiler).resolve().parents[1] / "lib"  # the folder in pip's packages; nvcc itself looks only in lib64
    paths = [f"-L{libraries}"] if (libraries / "libcudart_static.a").is_file() else []
    return [compiler, *flags(function), *paths, f"-gencode=arch=compute_{number},code=sm_{number}", "-o", str(out), str(source(function))]


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

    Returns what the compilers print, or raises _CompilerError with it.
    """
    whole, count = command(compiler, architecture, out, function), parts(function)
    if count == 1 or (os.cpu_count() or 1) < FEW_CORES:
        return _run(whole)
    objects = [out.with_suffix(f".{part}.o") for part in range(count)]
    commands = [
        [*(word for word in whole if word not in ("-shared", "-o", str(out))), f"-DSOFTBENCH_PART={part}", "-c", "-o", str(made)]
        for part, made in enumerate(objects)
    ]
    with ThreadPoolExecutor(count) as pool:
        texts = list(pool.map(_run, commands))
    return "".join([*texts, _run([*(word for word in whole if word != str(source(function))), *map(str, objects)])])


class _CompilerError(Exception):
    """A compiler failed. args: what it printed, and its exit code."""


def _run(line: list[str]) -> str:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _CompilerError(done.stdout + done.stderr, done.returncode)
    return done.stdout + done.stderr


def sources(function: str = "softmax") -> list[Path]:
    """A function's source, and the headers that it may include."""
    return [source(function), *sorted(SOURCE.parent.glob("*.cuh"))]


def architecture_of(capability: tuple[int, int]) -> str:
    """The name of an architecture: `sm_80`. From Hopper on, a suffix allows instructions of that architecture only: `sm_90a`."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def build(architecture: str, function: str = "softmax") -> Path:
    """Returns the library of a function for an architecture, and builds it unless it is cached.

    Raises:
        BuildError: there is no compiler, or it failed. The message has its first error line.
    """
    compiler = nvcc()
    if compiler is None:
        raise BuildError(MISSING)
    key = _key(compiler, architecture, function)
    if (ready := cached_library(f"{key}/{LIBRARY}")) is not None:
        return ready
    folder = cache_folder() / key
    library = folder / LIBRARY
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.is_file():
            return library
        print(f"building {source(function).name} ({function}) for {architecture} with {compiler}", file=sys.stderr, flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / "softmax.so"
            log = folder / "build.log"
            try:
                log.write_text(_compile(compiler, architecture, fresh, function))
            except _CompilerError as failed:
                text, code = failed.args
                log.write_text(text)
                lines = [line for line in text.splitlines() if "error" in line.lower()] or [f"exit code {code}"]
                raise BuildError(f"nvcc failed: {lines[0].strip()} (log: {log})") from None
            fresh.replace(library)
        print(f"built {source(function).name} in {time.monotonic() - began:.0f} s: {library}", file=sys.stderr, flush=True)
    return library


def built(architecture: str, function: str = "softmax") -> Path | None:
    """The library of a function for an architecture, if it is built; None if it is not, or without the compiler that built it."""
    compiler = nvcc()
    return cached_library(f"{_key(compiler, architecture, function)}/{LIBRARY}") if compiler else None


def _key(compiler: str, architecture: str, function: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    texts = [path.read_text() for path in sources(function)]
    digest = hashlib.sha256(
        "\0".join([*texts, *flags(function), version, torch.__version__, str(torch.version.cuda), architecture]).encode()
    )
    return f"cuda-{architecture}-{digest.hexdigest()[:16]}"


@functools.cache
def load(capability: tuple[int, int], function: str = "softmax") -> ctypes.CDLL:
    """Loads the library of a function for devices of a compute capability, once. Raises BuildError as `build`."""
    library = ctypes.CDLL(str(build(architecture_of(capability), function)))
    for name, arguments in _arguments(function).items():
        launch = getattr(library, f"softbench_{name}")
        launch.argtypes, launch.restype = arguments, ctypes.c_int64
    library.softbench_error.argtypes = [ctypes.c_int]
    library.softbench_error.restype = ctypes.c_char_p
    return library


def _arguments(function: str) -> dict[str, list[Any]]:
    """The types of the arguments of a library's functions, by their names."""
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
    launch = [number] * 2 + [ctypes.c_int] * 2 + [pointer, number, pointer, pointer]  # shape, dtypes, workspace, stream, plan
    if function == "cross_entropy":
        options = [number, real, real, real]
        return {
            "forward": [pointer] * 5 + options + [number] + launch,
            "backward": [pointer] * 6 + options + [number] * 2 + launch,
            "fused": [pointer] * 4 + [number, real] + [number] * 2 + launch,
        }
    if function == "logprob":
        return {"forward": [pointer] * 5 + [number] + launch, "backward": [pointer] * 7 + [number] * 2 + launch}
    if function == "masked_softmax":
        sizes = [number] * 4  # what query 0 sees, B, H, S
        return {
            "forward": [pointer] * 5 + [real, ctypes.c_int] + [number] * 3 + sizes + launch,
            "backward": [pointer] * 5 + [real] + sizes + launch,
        }
    scales: list[Any] = [pointer, real] if function == "scaled_softmax" else []
    return {"forward": [*scales, *[pointer] * 2, *[number] * 2, *launch], "backward": [*scales, *[pointer] * 3, *[number] * 3, *launch]}
