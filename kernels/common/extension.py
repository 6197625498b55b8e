"""Builds and loads the extension in C++: the operators of softbench without Python in a call, and the filter of `softbench.use()`.

- `operators.cpp`: autograd of the operators, and launches of the CUDA kernels. masked_softmax is launched by a function of Python.
- `entry.cpp`: what the functions of `softbench.kernels` call first. It needs the headers of Python.
- `filter.cpp`: what overrides of torch's operators call.

g++ compiles them with torch's headers, once for each version of torch. The library is cached as those of the CUDA kernels are. Where
there is no g++, everything runs in Python.

A call that C++ does not launch runs the operator's kernel in Python. That kernel then tells C++ what it needs to launch later calls:
addresses of launchers, workspaces, and which functions run the CUDA kernels. What was told before the library is loaded is kept.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from .cuda_library import build_once, run_compiler
from .cuda_toolkit import cached_library
from .rows import DTYPES

SOURCES = ("extension.cpp", "operators.h", "operators.cpp", "filter.cpp", "entry.cpp")
"""The first includes the others."""
FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-Wno-deprecated-declarations")  # std::atomic_load of a shared_ptr is deprecated
FUNCTIONS = ("softmax", "log_softmax", "cross_entropy", "logprob", "masked_softmax")
"""The functions by their numbers in operators.h. Each has an operator for its forward and one for its backward."""
PASSES = ("forward", "backward", "reduce")
SLOTS, COUNTERS = 0, 1
"""The kinds of workspaces, as in operators.cpp."""
NAME = "extension.so"
CALLS = os.environ.get("SOFTBENCH_CPP") != "0"
"""Whether C++ makes calls of `softbench.kernels`, where the library is built."""
BACKEND = "CUDA"
"""The dispatch key that the operators are implemented for. Tests on the CPU replace it."""

log = logging.getLogger(__name__)


def without(*_given: Any) -> None:
    """A function of `entries` where there is no extension: Python makes the call."""


ENTRIES = (*FUNCTIONS, "numbers_of_part", "take_launches_of_scores", "record_loss")
entries = SimpleNamespace(**dict.fromkeys(ENTRIES, without))
"""A function in C++ for each of ENTRIES. It returns the result, or None where Python has to make the call. Arguments are those of the
public function, with `reduction` after the tensors; entry.cpp has those of others. Compilers do not trace these functions."""
_lock = threading.RLock()
_loaded: ctypes.PyDLL | None = None
_told: dict[tuple[Any, ...], tuple[Any, ...]] = {}
_kept: list[torch.Tensor] = []
_defined: list[str] = []
_launches_of_scores: list[Callable[..., None]] = []


def implement(*functions: str) -> None:
    """Say that Python has defined the operators of these functions. With CALLS, C++ takes them over, now or once it is loaded."""
    with _lock:
        _defined.extend(functions)
        if CALLS and _loaded is not None:
            _implement(_loaded, functions)


def launchers(library: str, device: int, addresses: Sequence[int | None]) -> None:
    """Say where the functions of PASSES of a library of CUDA kernels are, for a device. They must stay loaded."""
    if library in FUNCTIONS and device < 64:
        for number, address in enumerate(addresses):
            _tell("softbench_launcher", FUNCTIONS.index(library), number, device, value=address)


def choose(function: str, device: int, dtype: torch.dtype, yes: bool = True) -> None:
    """Say that C++ may make calls of a function with tensors of this device and dtype."""
    if function in FUNCTIONS and dtype in DTYPES and device < 64:
        _tell("softbench_choose", FUNCTIONS.index(function), device, DTYPES.index(dtype), value=yes)


def forget_choices() -> None:
    """Undo all of `choose`."""
    for name, *given in list(_told):
        if name == "softbench_choose":
            _tell(name, *given, value=False)


def workspace(kind: int, device: int, stream: int, memory: torch.Tensor) -> None:
    """Say that later launches on a stream have this workspace, SLOTS or COUNTERS. It stays allocated, since C++ may still have it."""
    _kept.append(memory)
    _tell("softbench_workspace", kind, device, stream, value=(memory.data_ptr(), memory.numel()))


def _tell(name: str, *given: Any, value: Any) -> None:
    with _lock:
        _told[name, *given] = (*given, *(value if isinstance(value, tuple) else (value,)))
        if _loaded is not None:
            getattr(_loaded, name)(*_told[name, *given])


def load(*, build: bool = False) -> ctypes.PyDLL | None:
    """The library; None where it is neither cached nor to be built, or without a working g++. The log (`logging`, INFO) has the reason.

    Calls that Python makes do not look for it: without CALLS and `build`, it is None unless it is loaded already.
    """
    if _loaded is not None or not (CALLS or build):
        return _loaded
    with _lock:
        return _loaded or _load(build)


@functools.cache
def _load(build: bool) -> ctypes.PyDLL | None:
    global _loaded
    compiler = shutil.which("g++")
    if compiler is None:
        log.info("no extension in C++: no g++ on PATH")
        return None
    try:
        path = _built(compiler) if build else cached_library(f"{_key(compiler)}/{NAME}")
        library = None if path is None else _opened(path)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        log.info("no extension in C++: %s %s", error, getattr(error, "stderr", ""))
        return None
    _loaded = library
    return library


def forget_absence() -> None:
    """Look for the library again in the next `load`."""
    _load.cache_clear()


def _opened(path: Path) -> ctypes.PyDLL:
    library = ctypes.PyDLL(str(path))
    number, pointer = ctypes.c_int, ctypes.c_void_p
    library.softbench_implement.argtypes = [number, ctypes.c_char_p]
    library.softbench_streams.argtypes = [pointer, pointer]
    library.softbench_launcher.argtypes = [number, number, number, pointer]
    library.softbench_choose.argtypes = [number] * 4
    library.softbench_workspace.argtypes = [number, number, pointer, pointer, ctypes.c_int64]
    library.softbench_install.argtypes = [number, *[ctypes.c_char_p] * 3, number, ctypes.c_int64, ctypes.c_uint64, *[pointer] * 3]
    library.softbench_operators_error.restype = library.softbench_filter_error.restype = ctypes.c_char_p
    _tell_all(library)
    return library


def _tell_all(library: ctypes.PyDLL) -> None:
    """Tell C++ what Python knows."""
    library.softbench_streams(current_stream(), _is_capturing())
    if CALLS:
        _take_calls(library)
    for (name, *_), given in _told.items():
        getattr(library, name)(*given)


def launches_of_scores(*launches: Callable[..., None]) -> None:
    """Say which functions launch the forward and the backward of masked_softmax."""
    with _lock:
        _launches_of_scores[:] = launches
        entries.take_launches_of_scores(*launches)


def _take_calls(library: ctypes.PyDLL) -> None:
    _implement(library, _defined)
    if hasattr(library, "softbench_entry"):
        library.softbench_entry.restype = ctypes.py_object
        for index, function in enumerate(ENTRIES):
            setattr(entries, function, library.softbench_entry(index))
        if _launches_of_scores:
            entries.take_launches_of_scores(*_launches_of_scores)


def _implement(library: ctypes.PyDLL, functions: Sequence[str]) -> None:
    for function in functions:
        for number in (FUNCTIONS.index(function), FUNCTIONS.index(function) + len(FUNCTIONS)):
            if library.softbench_implement(number, BACKEND.encode()):
                raise RuntimeError(f"softbench::{function}: {library.softbench_operators_error().decode()}")
    _forget_kernels(functions)


def _forget_kernels(functions: Sequence[str]) -> None:
    """Compilers find the kernels of these functions anew."""
    for function in functions:
        name = f"cuda_{function}" if function in FUNCTIONS[:2] else function
        for packet in (getattr(torch.ops.softbench, name), getattr(torch.ops.softbench, f"{name}_backward")):
            packet.default._dispatch_cache.clear()


@functools.cache
def current_stream() -> int | None:
    """The address of torch's C function that writes the current stream of a CUDA device; None if this torch has none."""
    return _address(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"), "aoti_torch_get_current_cuda_stream")


def _is_capturing() -> int | None:
    return _address("libcuda.so.1", "cuStreamIsCapturing")


def _address(library: str, name: str) -> int | None:
    try:
        return ctypes.cast(getattr(ctypes.CDLL(library), name), ctypes.c_void_p).value
    except (OSError, AttributeError) as error:
        log.info("our kernels are launched by Python: %s", error)
        return None


def _key(compiler: str) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    texts = [Path(__file__).with_name(name).read_text() for name in SOURCES]
    python = sysconfig.get_config_var("SOABI"), (Path(sysconfig.get_path("include")) / "Python.h").is_file()
    versions = version, torch.__version__, str(torch.version.git_version), *map(str, python)
    digest = hashlib.sha256("\0".join([*texts, *FLAGS, *versions]).encode())
    return f"extension-{digest.hexdigest()[:16]}"


def _built(compiler: str) -> Path:
    root = Path(torch.__file__).parent
    include = root / "include"
    headers = [f"-I{folder}" for folder in (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))]
    torchs = [
        f"-L{root / 'lib'}",
        "-ltorch_python",
        "-ltorch_cpu",
        "-lc10",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
    ]
    line = [compiler, *FLAGS, *headers, str(Path(__file__).with_name(SOURCES[0])), *torchs, "-o"]
    return build_once(_key(compiler), NAME, f"{NAME} with {compiler}", lambda out: run_compiler([*line, str(out)]), "g++")
