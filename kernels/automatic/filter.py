"""Calls `filter.cpp`, which decides in C++ whether an overridden operator runs our kernel or torch's."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

from ..common import extension

SLOTS = 8
"""The most operators with a filter, as in filter.cpp."""


class Filters:
    """The loaded library."""

    def __init__(self, library: ctypes.PyDLL) -> None:
        self._library = library
        self._library.softbench_install.argtypes = [
            *(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64),
            *[ctypes.POINTER(ctypes.c_int64)] * 3,
        ]
        self._library.softbench_filter_error.restype = ctypes.c_char_p

    def install(
        self, slot: int, name: str, ours: str, key: str, function: str, tensor: int, devices: Sequence[int],
        least: Sequence[tuple[int, int, int]],
    ) -> None:  # fmt: skip
        """Register a filter for the operator `name` and a dispatch key, over the kernel that it has there.

        Args:
            slot: a number below SLOTS.
            name, ours: operators with one schema, such as `aten::_softmax`. The second has our kernel.
            function: softmax or log_softmax. Where its CUDA kernels were chosen, C++ launches them, if it can.
            tensor: the index of the tensor that the filter looks at; `dim` follows it.
            devices: the indices of the devices on which our kernel may run.
            least: for float32, float16 and bfloat16 the least elements, columns, and elements along another dimension than the last.

        Raises:
            RuntimeError: torch refused the registration.
        """
        sizes = ((ctypes.c_int64 * len(least))(*numbers) for numbers in zip(*least, strict=True))
        mask = sum(1 << index for index in devices)
        names = (text.encode() for text in (name, ours, key))
        if self._library.softbench_install(slot, *names, extension.FUNCTIONS.index(function), tensor, mask, *sizes):
            raise RuntimeError(f"no filter for {name}: {self._library.softbench_filter_error().decode()}")

    def remove(self, slot: int) -> None:
        """Undo `install`."""
        self._library.softbench_remove(slot)


@functools.cache
def load() -> Filters | None:
    """The filters of the extension, which is built unless it is cached; None without a working g++."""
    library = extension.load(build=True)
    return None if library is None else Filters(library)
