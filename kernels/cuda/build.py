"""Build softmax.cu into a shared library on first use, and load it.

nvcc compiles for the very architecture of the device, without torch's headers, and an operation a process: seconds, not a minute. The
library is cached under a hash of the sources, the flags, the architecture and the versions of nvcc, torch and its CUDA; a lock lets two
processes build at once without harm. nvcc comes from a toolkit or from pip (`nvidia-cuda-nvcc`, `nvidia-cuda-cccl` and
`nvidia-cuda-runtime`, version 13 or later).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("softmax.cu")
MISSING = "no nvcc on PATH, under CUDA_HOME or in pip's packages; install the CUDA toolkit or: pip install 'softbench[cuda]'"
FEW_CORES = 4  # fewer, and reading the source once is faster than several compilers at a time
FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")


class BuildError(RuntimeError):
    """The library cannot be built; the message is one line and names the compiler's log where there is one."""


def nvcc() -> str | None:
    """Path of CUDA's compiler: on PATH, under CUDA_HOME, CUDA_PATH or /usr/local/cuda, or among Python's packages; or None.

    `softbench/toolchain.py` has the same rule for `softbench doctor`, which must not import torch.
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = ["nvcc", str(Path(home) / "bin" / "nvcc"), *(str(folder / "bin" / "nvcc") for folder in _packaged_toolkits())]
    return next((path for place in places if (path := shutil.which(place))), None)


def _packaged_toolkits() -> list[Path]:
    """Where NVIDIA's wheels put a toolkit, newest first: site-packages/nvidia/cu13 and so on."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or [])] if found else []
    return sorted((kit for folder in folders for kit in folder.glob("cu[0-9]*")), reverse=True)


def cache_folder() -> Path:
    """Where built libraries are kept: $SOFTBENCH_CACHE, else softbench under the user's cache folder."""
    if chosen := os.environ.get("SOFTBENCH_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softbench"
    except RuntimeError:  # a user without a home, as containers have them
        return Path(tempfile.gettempdir()) / f"softbench-{os.getuid()}"


def command(compiler: str, architecture: str, out: Path) -> list[str]:
    """The command line that makes a library of the whole source; `architecture` is as in `sm_90a`."""
    number = architecture.removeprefix("sm_")
    libraries = Path(compiler).resolve().parents[1] / "lib"  # the wheels' place; nvcc looks in lib64 only
    paths = [f"-L{libraries}"] if (libraries / "libcudart_static.a").is_file() else []
    return [compiler, *FLAGS, *paths, f"-gencode=arch=compute_{number},code=sm_{number}", "-o", str(out), str(SOURCE)]


def parts() -> int:
    """How many parts the source can be compiled in, by the numbers that it compares SOFTBENCH_PART with; 1 is the whole."""
    return len(set(re.findall(r"^#(?:el)?if SOFTBENCH_PART == (\d+)$", SOURCE.read_text(), re.MULTILINE))) or 1


def _compile(compiler: str, architecture: str, out: Path) -> str:
    """Make the library; on a machine of a few cores in one piece. What the compilers printed; raises _CompilerError with it."""
    whole, number = command(compiler, architecture, out), parts()
    if number == 1 or (os.cpu_count() or 1) < FEW_CORES:
        return _run(whole)
    objects = [out.with_suffix(f".{part}.o") for part in range(number)]
    pieces = [
        [*(word for word in whole if word not in ("-shared", "-o", str(out))), f"-DSOFTBENCH_PART={part}", "-c", "-o", str(made)]
        for part, made in enumerate(objects)
    ]
    with ThreadPoolExecutor(number) as pool:
        texts = list(pool.map(_run, pieces))
    return "".join([*texts, _run([*(word for word in whole if word != str(SOURCE)), *map(str, objects)])])


class _CompilerError(Exception):
    """A compiler ended with an error; args: what it printed, its exit code."""


def _run(line: list[str]) -> str:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _CompilerError(done.stdout + done.stderr, done.returncode)
    return done.stdout + done.stderr


def sources() -> list[Path]:
    """softmax.cu and what it includes."""
    return [SOURCE, *sorted(SOURCE.parent.glob("*.cuh"))]


def architecture_of(capability: tuple[int, int]) -> str:
    """`sm_80`; from Hopper on with the suffix that admits that architecture's own instructions: `sm_90a`."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def build(architecture: str) -> Path:
    """The library for an architecture, built unless it is cached.

    Raises:
        BuildError: no compiler, or it failed; with its first error line.
    """
    compiler = nvcc()
    if compiler is None:
        raise BuildError(MISSING)
    folder = cache_folder() / _key(compiler, architecture)
    library = folder / "softmax.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.is_file():
            return library
        print(f"building {SOURCE.name} for {architecture} with {compiler}", file=sys.stderr, flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / "softmax.so"
            log = folder / "build.log"
            try:
                log.write_text(_compile(compiler, architecture, fresh))
            except _CompilerError as failed:
                text, code = failed.args
                log.write_text(text)
                lines = [line for line in text.splitlines() if "error" in line.lower()] or [f"exit code {code}"]
                raise BuildError(f"nvcc failed: {lines[0].strip()} (log: {log})") from None
            fresh.replace(library)
        print(f"built {SOURCE.name} in {time.monotonic() - began:.0f} s: {library}", file=sys.stderr, flush=True)
    return library


def _key(compiler: str, architecture: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    texts = [path.read_text() for path in sources()]
    digest = hashlib.sha256("\0".join([*texts, *FLAGS, version, torch.__version__, str(torch.version.cuda), architecture]).encode())
    return f"cuda-{architecture}-{digest.hexdigest()[:16]}"


@functools.cache
def load(capability: tuple[int, int]) -> ctypes.CDLL:
    """The library for a device of this compute capability, loaded once. Raises BuildError as `build`."""
    library = ctypes.CDLL(str(build(architecture_of(capability))))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.softbench_forward.argtypes = [pointer] * 2 + [number] * 4 + [ctypes.c_int] * 2 + [pointer, number, pointer, pointer]
    library.softbench_backward.argtypes = [pointer] * 3 + [number] * 5 + [ctypes.c_int] + [pointer, number, pointer, pointer]
    for launch in (library.softbench_forward, library.softbench_backward):
        launch.restype = number
    library.softbench_error.argtypes = [ctypes.c_int]
    library.softbench_error.restype = ctypes.c_char_p
    return library
