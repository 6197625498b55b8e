"""The compilers that Triton and Inductor need: what is there, and what to install."""

from __future__ import annotations

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
