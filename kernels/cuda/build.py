"""Build softmax.cu into a shared library on first use, and load it.

nvcc compiles for the very architecture of the device, without torch's headers: seconds, not a minute. The library is cached under a hash
of the source, the flags, the compiler's version and the architecture; a lock lets two processes build at once without harm.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("softmax.cu")
FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")


class BuildError(RuntimeError):
    """The library cannot be built; the message is one line and names the compiler's log where there is one."""


def nvcc() -> str | None:
    """Path of CUDA's compiler: on PATH, else under CUDA_HOME, CUDA_PATH or /usr/local/cuda; None where there is none."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") or shutil.which(str(Path(home) / "bin" / "nvcc"))


def cache_folder() -> Path:
    """Where built libraries are kept: $SOFTBENCH_CACHE, else softbench under the user's cache folder."""
    if chosen := os.environ.get("SOFTBENCH_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softbench"
    except RuntimeError:  # a user without a home, as containers have them
        return Path(tempfile.gettempdir()) / f"softbench-{os.getuid()}"


def command(compiler: str, architecture: str, out: Path) -> list[str]:
    """The compiler's command line; `architecture` is as in `sm_90a`."""
    number = architecture.removeprefix("sm_")
    return [compiler, *FLAGS, f"-gencode=arch=compute_{number},code=sm_{number}", "-o", str(out), str(SOURCE)]


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
        raise BuildError("no nvcc on PATH or under CUDA_HOME; install the CUDA toolkit")
    folder = cache_folder() / _key(compiler, architecture)
    library = folder / "softmax.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.is_file():
            return library
        print(f"building {SOURCE.name} for {architecture} with {compiler}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / "softmax.so"
            done = subprocess.run(command(compiler, architecture, fresh), capture_output=True, text=True, check=False)
            log = folder / "build.log"
            log.write_text(done.stdout + done.stderr)
            if done.returncode != 0:
                lines = [line for line in log.read_text().splitlines() if "error" in line.lower()] or [f"exit code {done.returncode}"]
                raise BuildError(f"nvcc failed: {lines[0].strip()} (log: {log})")
            fresh.replace(library)
    return library


def _key(compiler: str, architecture: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256("\0".join([SOURCE.read_text(), *FLAGS, version, architecture]).encode())
    return f"cuda-{architecture}-{digest.hexdigest()[:16]}"


@functools.cache
def load(capability: tuple[int, int]) -> ctypes.CDLL:
    """The library for a device of this compute capability, loaded once. Raises BuildError as `build`."""
    library = ctypes.CDLL(str(build(architecture_of(capability))))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    library.softbench_forward.argtypes = [pointer] * 2 + [number] * 4 + [ctypes.c_int, pointer]
    library.softbench_backward.argtypes = [pointer] * 3 + [number] * 5 + [ctypes.c_int, pointer]
    library.softbench_error.argtypes = [ctypes.c_int]
    library.softbench_error.restype = ctypes.c_char_p
    return library
