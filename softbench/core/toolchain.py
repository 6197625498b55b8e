"""The compilers that Triton and Inductor need: what is there, and what to install. The caches of all compilers."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path

FRESH_CACHES = "SOFTBENCH_FRESH_CACHES"
"""The variable of a folder in which each worker has caches of compilers of its own, so that its builds compile."""
PRELOAD = "SOFTBENCH_PRELOAD"
"""The variable with which the name of `preload_file` begins."""
PRELOADED = ("torch", "triton")
"""Packages whose modules import for seconds. Of another package they might start CUDA or be what is measured."""
BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""The variable by which torch asks for the number of GPUs without a start of CUDA."""
CACHES = (
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "SOFTBENCH_CACHE", "CUDA_CACHE_PATH", "CUPY_CACHE_DIR"),
    *("NUMBA_CACHE_DIR", "TILELANG_CACHE_DIR", "CUTE_DSL_CACHE_DIR", "CUDA_TILE_CACHE_DIR", "QUACK_CACHE_DIR", "TVM_FFI_CACHE_DIR"),
    *("FLASHINFER_WORKSPACE_BASE", "XDG_CACHE_HOME"),
)
"""Variables of the folders in which compilers and packages keep what they compiled."""


def preload_file() -> Path | None:
    """The file with names of modules of PRELOADED that earlier workers of this environment had; None without PRELOAD.

    A forkserver imports them if the file is there when it starts, or while it is told to wait for it.
    """
    start = os.environ.get(PRELOAD)
    return Path(f"{start}-{hashlib.sha256(sys.prefix.encode()).hexdigest()[:16]}") if start else None


def fresh_caches(folder: str) -> dict[str, str]:
    """The variables of a worker whose caches are in this folder; FRESH_CACHES is then the folder."""
    return {FRESH_CACHES: folder, **{name: f"{folder}/{name}" for name in CACHES}}


def c_compiler() -> str | None:
    """Path of the C compiler that Triton would use, or None."""
    return _first(os.environ.get("CC"), "gcc", "clang", "cc")


def cxx_compiler() -> str | None:
    """Path of the C++ compiler that Inductor would use on the CPU, or None."""
    return _first(os.environ.get("CXX"), "g++", "clang++", "c++")


def packaging_compiler() -> str | None:
    """Path of the C++ compiler for AOTInductor's packages, or None: g++ before $CXX, as torch is linked with GNU's C++ library.

    Some compilers (`zig c++`) link none or another, and loading such a package ends the process.
    """
    return _first("g++", os.environ.get("CXX"), "clang++", "c++")


def python_headers() -> Path | None:
    """The folder of Python.h, or None: Triton and Inductor compile small extension modules."""
    folder = Path(sysconfig.get_path("include"))
    return folder if (folder / "Python.h").is_file() else None


def missing_compiler(*, cuda: bool) -> str | None:
    """What torch.compile lacks here and how to get it; None when nothing is missing."""
    if cuda and c_compiler() is None:
        return "no C compiler for Triton; install gcc (Debian: apt install gcc)"
    if not cuda and cxx_compiler() is None:
        return "no C++ compiler for Inductor; install g++ (Debian: apt install g++)"
    if python_headers() is None:
        return f"no Python.h in {sysconfig.get_path('include')}; install the headers (Debian: apt install python3-dev)"
    return None


def _first(*candidates: str | None) -> str | None:
    return next((path for name in candidates if name and (path := shutil.which(name.split()[0]))), None)
