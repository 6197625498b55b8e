"""Compiles CUDA C++ with nvcc into shared libraries, caches them, and calls their functions with tensors.

`softbench.build` is for the kernels of a plugin. The kernels in `kernels/cuda/` are compiled and cached by the same code.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .cuda_toolkit import cache_folder, cached_library, nvcc

MISSING = "no nvcc on PATH, under CUDA_HOME or in pip's packages; install the CUDA toolkit or: pip install 'softbench[cuda]'"
NO_GPU = "no CUDA GPU here"
SHARED = ("-shared", "-Xcompiler", "-fPIC")
HEADERS = ("*.cuh", "*.h", "*.hpp")
ERRORS = """
#include <cuda_runtime.h>
extern "C" int softbench_last_error() { return (int)cudaGetLastError(); }
extern "C" const char* softbench_error_text(int code) { return cudaGetErrorString((cudaError_t)code); }
"""
"""Compiled into each library of a plugin: a library has a CUDA runtime of its own, and so an error of its own."""


class BuildError(RuntimeError):
    """A library cannot be built. The message is one line and names the compiler's log, if there is one."""


class CompilerError(Exception):
    """A compiler failed. args: what it printed, and its exit code."""


def architecture_of(capability: tuple[int, int]) -> str:
    """The name of an architecture: `sm_80`. From Hopper on, a suffix allows instructions of that architecture only: `sm_90a`."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def target(compiler: str, architecture: str) -> list[str]:
    """Flags of nvcc: the architecture, such as `sm_90a`, and the folder of the runtime if nvcc is one of pip's packages."""
    number = architecture.removeprefix("sm_")
    libraries = Path(compiler).resolve().parents[1] / "lib"  # the folder in pip's packages; nvcc itself looks only in lib64
    paths = [f"-L{libraries}"] if (libraries / "libcudart_static.a").is_file() else []
    return [*paths, f"-gencode=arch=compute_{number},code=sm_{number}"]


def run_compiler(line: list[str], seconds: float | None = None) -> str:
    """What a compiler prints.

    Raises:
        CompilerError: it failed, or took more than `seconds`. It and its own processes are then ended.
    """
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            text, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            _end(process.pid)
            if isinstance(error, subprocess.TimeoutExpired):
                raise CompilerError(f"error: took more than {seconds:g} s", -signal.SIGKILL) from None
            raise
    if process.returncode != 0:
        raise CompilerError(text, process.returncode)
    return text


def _end(pid: int) -> None:
    """End a process and its descendants. They stay in the group of this process, so that whoever ends that ends them too."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(pid, signal.SIGKILL)
        for child in children:
            _end(int(child))


def key(compiler: str, architecture: str, texts: Sequence[str]) -> str:
    """The name of the cache's folder for these sources and flags, by the versions of nvcc, torch and torch's CUDA too."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256("\0".join([*texts, version, torch.__version__, str(torch.version.cuda), architecture]).encode())
    return f"cuda-{architecture}-{digest.hexdigest()[:16]}"


def build_once(folder_name: str, library_name: str, what: str, compile_to: Callable[[Path], str], compiler: str = "nvcc") -> Path:
    """Path of a library in the cache. If it is missing, `compile_to(path)` makes it, and returns what the compilers print.

    A lock lets two processes build at the same time. stderr says what is built.

    Raises:
        BuildError: the compiler failed. The message has its first error line.
    """
    if (ready := cached_library(f"{folder_name}/{library_name}")) is not None:
        return ready
    folder = cache_folder() / folder_name
    library = folder / library_name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if library.is_file():
            return library
        print(f"building {what}", file=sys.stderr, flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / library_name
            log = folder / "build.log"
            try:
                log.write_text(compile_to(fresh))
            except CompilerError as failed:
                text, code = failed.args
                log.write_text(text)
                lines = [line for line in text.splitlines() if "error" in line.lower()] or [f"exit code {code}"]
                raise BuildError(f"{compiler} failed: {lines[0].strip()} (log: {log})") from None
            fresh.replace(library)
        print(f"built {what.partition(' ')[0]} in {time.monotonic() - began:.0f} s: {library}", file=sys.stderr, flush=True)
    return library


def build(source: str | Path, *more: str | Path, flags: Sequence[str] = ("-O3",), seconds: float = 300) -> CudaLibrary:
    """A library of CUDA C++ for the current device: `library.NAME(...)` calls its function `extern "C" void NAME(...)`.

    Each source is a text, or the path of a file. A relative path starts at the folder of the calling file. The first call of a function
    compiles: one nvcc for each source, all at once, and without torch's headers. The library is cached under the sources, the headers in
    their folders, the flags, and the versions.

    A tensor becomes its device pointer, an int `int64_t`, a float `float`, a bool `bool`, None a null pointer, and a stream
    (`torch.cuda.current_stream()`) `cudaStream_t`. The types are not compared with those of the source. An error of the launch is raised.

    Args:
        flags: more flags of nvcc. -shared, -fPIC and the device's architecture are always there.
        seconds: the limit on the time of each compiler.

    Raises:
        FileNotFoundError: a source has no line break, and no file has this path.
        BuildError: by the first call: no GPU, no nvcc, or nvcc failed.
    """
    folder = Path(sys._getframe(1).f_code.co_filename).parent
    texts: list[tuple[str, str, Path | None]] = []
    for number, given in enumerate((source, *more)):
        if isinstance(given, str) and "\n" in given:
            texts.append((f"source{number}.cu", given, None))
        elif (file := folder / given).is_file():
            texts.append((file.name, file.read_text(), file))
        else:
            raise FileNotFoundError(f"softbench.build: no file {file}; a source is the path of a file, or a text of several lines")
    return CudaLibrary(texts, tuple(flags), seconds)


class CudaLibrary:
    """What `build` returns."""

    def __init__(self, sources: list[tuple[str, str, Path | None]], flags: tuple[str, ...], seconds: float) -> None:
        """`sources` have name, text, and file or None."""
        self._sources, self._flags, self._seconds = sources, flags, seconds
        self._loaded: ctypes.CDLL | None = None

    def unavailable(self) -> str | None:
        """None, or why no function can be called here."""
        if not torch.cuda.is_available():
            return NO_GPU
        return MISSING if nvcc() is None else None

    def files(self) -> list[Path]:
        """The source files, and the headers in their folders."""
        own = [file for *_, file in self._sources if file]
        return [*own, *sorted({header for file in own for kind in HEADERS for header in file.parent.glob(kind)})]

    def compile(self, architecture: str = "") -> Path:
        """Compile unless the library is cached. Path of the library, for an architecture such as `sm_90a`, or the current device's.

        Raises:
            BuildError: no GPU if no architecture is given, no nvcc, or nvcc failed.
        """
        compiler = nvcc()
        if reason := MISSING if compiler is None else None if architecture else self.unavailable():
            raise BuildError(reason)
        assert compiler is not None
        architecture = architecture or architecture_of(torch.cuda.get_device_capability())
        texts = [*(text for _, text, _ in self._sources), *(file.read_text() for file in self.files()), *self._flags, ERRORS]
        name = Path(self._sources[0][0]).stem

        def compile_to(library: Path) -> str:
            common = [compiler, *self._flags, *target(compiler, architecture)]
            lines, objects = [], []
            for number, (source, text, file) in enumerate([*self._sources, ("softbench_error.cu", ERRORS, None)]):
                path = file or library.with_name(source)
                if file is None:
                    path.write_text(text)
                objects.append(str(library.with_name(f"{number}.o")))
                lines.append([*common, "-Xcompiler", "-fPIC", "-x", "cu", "-c", str(path), "-o", objects[-1]])
            with ThreadPoolExecutor(len(lines)) as pool:
                printed = list(pool.map(lambda line: run_compiler(line, self._seconds), lines))
            return "".join([*printed, run_compiler([*common, *SHARED, "-o", str(library), *objects], self._seconds)])

        what = f"{self._sources[0][0]} for {architecture} with {compiler}"
        return build_once(key(compiler, architecture, texts), f"{name}.so", what, compile_to)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """A function of the library. Raises BuildError as `compile`, AttributeError without such a function."""
        if name.startswith("__"):
            raise AttributeError(name)
        if self._loaded is None:
            library = ctypes.CDLL(str(self.compile()))
            library.softbench_error_text.restype = ctypes.c_char_p
            self._loaded = library
        library = self._loaded
        try:
            function = getattr(library, name)
        except AttributeError:
            raise AttributeError(f'{self._sources[0][0]} has no function {name}; declare it as extern "C" void {name}(...)') from None
        function.restype = None

        def call(*arguments: Any) -> None:
            function(*map(_argument, arguments))
            if code := library.softbench_last_error():
                raise RuntimeError(f"{name}: {library.softbench_error_text(code).decode()}")

        setattr(self, name, call)
        return call


def _argument(value: Any) -> Any:
    """The ctypes value of an argument.

    Raises:
        TypeError: it has none.
    """
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, torch.cuda.Stream):
        return ctypes.c_void_p(value.cuda_stream)
    if value is None:
        return ctypes.c_void_p()
    if isinstance(value, bool):
        return ctypes.c_bool(value)
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_float(value)
    raise TypeError(f"no argument of a CUDA function: {type(value).__name__}; a tensor, an int, a float, a bool, a stream or None is")
