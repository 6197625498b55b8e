"""The compilers that Triton, Inductor and CUDA extensions need: what is there, and what to install."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


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


def nvcc() -> str | None:
    """Path of the compiler of softbench's CUDA kernels (`kernels/cuda/build.py` has the same rule), or None: a toolkit's, else pip's."""
    packaged = (shutil.which(str(folder / "bin" / "nvcc")) for folder in _packaged_toolkits())
    return _toolkit_nvcc() or next((path for path in packaged if path), None)


def _toolkit_nvcc() -> str | None:
    """On PATH or under CUDA_HOME."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    return shutil.which("nvcc") or shutil.which(str(Path(home) / "bin" / "nvcc"))


def _packaged_toolkits() -> list[Path]:
    """Where NVIDIA's wheels put a toolkit, newest first: site-packages/nvidia/cu13 and so on."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or [])] if found else []
    return sorted((kit for folder in folders for kit in folder.glob("cu[0-9]*")), reverse=True)


def cuda_home() -> Path | None:
    """The CUDA toolkit's folder, known by its headers, or None: an `nvcc` on PATH may be a script that calls one elsewhere.

    Pip's packages do not count: AOTInductor links with the driver's stub library, too, which only a toolkit is known to have.
    """
    compiler = _toolkit_nvcc()
    beside_nvcc = str(Path(compiler).resolve().parents[1]) if compiler else None
    guesses = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), beside_nvcc, "/usr/local/cuda")
    return next((Path(guess) for guess in guesses if guess and (Path(guess) / "include" / "cuda_runtime.h").is_file()), None)


def our_cache() -> Path:
    """The folder in which softbench's CUDA kernels keep what nvcc compiled (`kernels/cuda/build.py` has the same rule)."""
    chosen = os.environ.get("SOFTBENCH_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "softbench"


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
