"""L2 lines that persist: a flush does not evict them, so what a backend keeps there is warm although the timer says cold.

CUDA keeps such lines for accesses inside the access policy window of a stream, up to a limit of the device (CUDA C++ Programming Guide, "L2
Set-Aside for Persisting Accesses"). A window of a single launch cannot be seen.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

LIMIT = 0x06
"""CU_LIMIT_PERSISTING_L2_CACHE_SIZE of the driver's header."""
WINDOW = 1
"""CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW; its value begins with a pointer and a size, 8 bytes each."""
ATTRIBUTE_BYTES = 64
FUNCTIONS = ("cuCtxGetLimit", "cuCtxResetPersistingL2Cache", "cuStreamGetAttribute")


@dataclass(slots=True)
class PersistingL2:
    """The driver's settings of persisting lines in this process."""

    driver: Any
    limit_bytes: int | None = None
    """The limit when the inputs of the first case were made; None before. Asking earlier would create a CUDA context in each worker."""

    def remember(self) -> None:
        """Take the present limit for the right one, unless one is known."""
        if self.limit_bytes is None:
            self.limit_bytes = _limit(self.driver)

    def changed(self) -> str:
        """How a plugin changed the settings, in words; an empty text if it did not."""
        self.remember()
        if (now := _limit(self.driver)) != self.limit_bytes:
            return f"set the limit of L2's persisting lines to {now} bytes, which the flush of L2 does not evict"
        if _window_bytes(self.driver):
            return "set an access policy window on the caller's stream, whose lines the flush of L2 does not evict"
        return ""

    def reset(self) -> None:
        """Evict all persisting lines."""
        self.driver.cuCtxResetPersistingL2Cache()


def bind() -> PersistingL2 | None:
    """The driver, before any plugin is imported; None without its library, and on ROCm. It creates no CUDA context."""
    if torch.version.hip is not None:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return PersistingL2(driver) if all(hasattr(driver, name) for name in FUNCTIONS) else None
    except OSError:
        return None


def _limit(driver: Any) -> int:
    """Bytes; -1 on a GPU without such lines."""
    value = ctypes.c_size_t()
    return -1 if driver.cuCtxGetLimit(ctypes.byref(value), LIMIT) else value.value


def _window_bytes(driver: Any) -> int:
    """The size of the access policy window of the caller's stream; 0 without one."""
    value = (ctypes.c_uint64 * (ATTRIBUTE_BYTES // 8))()
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    return 0 if driver.cuStreamGetAttribute(stream, WINDOW, value) else int(value[1])
