"""Builds and loads `filter.cpp`, which decides in C++ whether an overridden operator runs our kernel or torch's, and launches ours.

g++ compiles it with torch's headers, once for each version of torch. The library is cached as those of the CUDA
kernels are. A machine without g++ has no filter.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ..common.cuda_toolkit import cache_folder

SOURCE = Path(__file__).with_name("filter.cpp")
FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-Wno-deprecated-declarations")  # std::atomic_load of a shared_ptr is deprecated
SLOTS = 8
"""The most operators with a filter, as in filter.cpp."""

log = logging.getLogger(__name__)


class Filters:
    """The loaded library."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.softbench_install.argtypes = [
            *(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_uint64),
            *[ctypes.POINTER(ctypes.c_int64)] * 2,
        ]
        self._library.softbench_launch_by.argtypes = [*[ctypes.c_int] * 3, *[ctypes.c_void_p] * 2]
        self._library.softbench_launch_by.restype = None
        self._library.softbench_filter_error.restype = ctypes.c_char_p

    def install(
        self, slot: int, name: str, ours: str, key: str, tensor: int, devices: Sequence[int], least: Sequence[tuple[int, int]]
    ) -> None:
        """Register a filter for the operator `name` and a dispatch key, over the kernel that it has there.

        Args:
            slot: a number below SLOTS.
            name, ours: operators with one schema, such as `aten::_softmax`. The second has our kernel.
            tensor: the index of the tensor that the filter looks at; `dim` follows it.
            devices: the indices of the devices on which our kernel may run.
            least: for float32, float16 and bfloat16 the least elements, and the least columns.

        Raises:
            RuntimeError: torch refused the registration.
        """
        elements, columns = ((ctypes.c_int64 * len(least))(*numbers) for numbers in zip(*least, strict=True))
        mask = sum(1 << index for index in devices)
        names = (text.encode() for text in (name, ours, key))
        if self._library.softbench_install(slot, *names, tensor, mask, elements, columns):
            raise RuntimeError(f"no filter for {name}: {self._library.softbench_filter_error().decode()}")

    def launch_by(self, slot: int, device: int, dtype: int, function: int, stream: int) -> None:
        """Let the filter launch our kernel itself, where the tensors are contiguous and the launch needs no workspace.

        Args:
            slot: that of `install`, which forgets earlier launchers.
            device: the index of a device, below 64.
            dtype: 0 for float32, 1 for float16, 2 for bfloat16.
            function: the address of softbench_forward or softbench_backward of softmax.cu, by the number of tensors. It must stay loaded.
            stream: the address of torch's aoti_torch_get_current_cuda_stream.
        """
        self._library.softbench_launch_by(slot, device, dtype, function, stream)

    def remove(self, slot: int) -> None:
        """Undo `install`."""
        self._library.softbench_remove(slot)


@functools.cache
def load() -> Filters | None:
    """The library, which is built unless it is cached; None without a working g++. The log (`logging`, INFO) has the reason."""
    compiler = shutil.which("g++")
    if compiler is None:
        log.info("no filter in C++: no g++ on PATH")
        return None
    try:
        return Filters(_built(compiler))
    except (OSError, subprocess.CalledProcessError) as error:
        log.info("no filter in C++: %s %s", error, getattr(error, "stderr", ""))
        return None


@functools.cache
def current_stream() -> int | None:
    """The address of torch's C function that writes the current stream of a CUDA device; None if this torch has none."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
        return ctypes.cast(library.aoti_torch_get_current_cuda_stream, ctypes.c_void_p).value
    except (OSError, AttributeError) as error:
        log.info("our kernels are launched by Python: %s", error)
        return None


def _built(compiler: str) -> Path:
    root = Path(torch.__file__).parent
    include = root / "include"
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    torchs = [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10", abi]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256("\0".join([SOURCE.read_text(), *FLAGS, version, torch.__version__, str(torch.version.git_version)]).encode())
    folder = cache_folder() / f"filter-{digest.hexdigest()[:16]}"
    library = folder / "filter.so"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.is_file():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                fresh = Path(scratch) / "filter.so"
                subprocess.run([compiler, *FLAGS, str(SOURCE), *torchs, "-o", str(fresh)], capture_output=True, text=True, check=True)
                fresh.replace(library)
    return library
