"""Finds the programs of a CUDA toolkit, and the folder that caches what they build. Importing it does not import torch.

Toolkits come from NVIDIA's installer or from pip: `nvidia-cuda-nvcc`, `nvidia-cuda-cccl` and `nvidia-cuda-runtime`, version 13 or later.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def nvcc() -> str | None:
    """Path of CUDA's compiler, or None: on PATH, in the toolkit's folder, or in pip's packages."""
    return _program("nvcc", _packaged_folders())


def cuobjdump() -> str | None:
    """Path of CUDA's disassembler, or None: on PATH, in the toolkit's folder, beside nvcc, in pip's packages, or in Triton's."""
    compiler = nvcc()
    beside_nvcc = [Path(compiler).resolve().parent] if compiler else []
    triton = importlib.util.find_spec("triton")
    in_triton = [Path(folder) / "backends/nvidia/bin" for folder in (triton.submodule_search_locations or [])] if triton else []
    return _program("cuobjdump", [*beside_nvcc, *_packaged_folders(), *in_triton])


def compute_sanitizer() -> str | None:
    """Path of CUDA's memory checker, or None: on PATH, in the toolkit's folder, or in pip's packages."""
    return _program("compute-sanitizer", _packaged_folders())


def cuda_home() -> Path | None:
    """Folder of the installed CUDA toolkit, recognized by its headers, or None.

    The `nvcc` on PATH may be a script that calls a compiler elsewhere, so its folder is only one of the guesses. Pip's packages do not
    count: AOTInductor also links with the driver's stub library, which only an installed toolkit is sure to have.
    """
    compiler = _program("nvcc", [])
    beside_nvcc = str(Path(compiler).resolve().parents[1]) if compiler else None
    guesses = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), beside_nvcc, "/usr/local/cuda")
    return next((Path(guess) for guess in guesses if guess and (Path(guess) / "include" / "cuda_runtime.h").is_file()), None)


def cache_folder() -> Path:
    """Folder of the built libraries: $SOFTBENCH_CACHE, or `softbench` in the user's cache folder.

    A user without a home, as in some containers, gets a folder among the temporary files.
    """
    if chosen := os.environ.get("SOFTBENCH_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softbench"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / f"softbench-{os.getuid()}"


READ_CACHE = "SOFTBENCH_READ_CACHE"
"""The variable of a cache folder that this process may only read, such as the user's in a plugin's process of the judge."""


def cached_library(name: str) -> Path | None:
    """A library in the cache folder, or in $SOFTBENCH_READ_CACHE; None if it is not built. `name` is relative to the folder."""
    for folder in (cache_folder(), *(Path(other) for other in [os.environ.get(READ_CACHE)] if other)):
        with suppress(OSError):  # this user may not search the folder
            if (library := folder / name).is_file():
                return library
    return None


def _program(name: str, other_folders: list[Path]) -> str | None:
    """Path of a program: on PATH, in the toolkit's folder (CUDA_HOME, CUDA_PATH or /usr/local/cuda), or in other folders."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    places = [name, *(str(folder / name) for folder in (Path(home) / "bin", *other_folders))]
    return next((path for place in places if (path := shutil.which(place))), None)


def _packaged_folders() -> list[Path]:
    """The programs' folders in NVIDIA's wheels, newest toolkit first: site-packages/nvidia/cu13/bin and others."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or [])] if found else []
    return [kit / "bin" for kit in sorted((kit for folder in folders for kit in folder.glob("cu[0-9]*")), reverse=True)]
