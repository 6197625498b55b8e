"""Errors of a request: out of memory, a lost CUDA context, and the reply that reports them."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import torch

from softbench.core.errors import SoftbenchError
from softbench.core.messages import Failure
from softbench.core.outcome import Status
from softbench.core.text import one_line
from softbench.plugins.source import PluginSource
from softbench.worker.error_location import compiler_error, user_line

OUT_OF_MEMORY = re.compile(
    r"DefaultCPUAllocator|(CUDA|HIP)( driver)? error: out of memory|(CUDA|HIP)\]: out of memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|(BLAS|DNN)_STATUS_ALLOC_FAILED"
)
"""Texts of the CPU's allocator in torch, of the runtimes' and drivers' errors in torch, of Triton, cupy and numba, of cuBLAS and cuDNN."""
REASON = 280
"""The longest reason with the place at its end; the stage precedes it in a line of 300."""


def out_of_memory(error: BaseException) -> bool:
    """torch's own error on the GPU; on the CPU its allocator raises a bare RuntimeError.

    Without the allocator the error is CUDA's own: for a context or module on a GPU that others fill, and from kernels of a plugin.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def poisoned() -> bool:
    """True when CUDA cannot be used any more in this process (illegal address, device assert)."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def failure(stage: str, error: Exception, source: PluginSource | None) -> Failure:
    """The reply to a request that raised `error` in the code of a plugin source, if one was loaded."""
    status = Status.OOM if out_of_memory(error) else Status.FAILED
    text = str(error).strip()
    # A compiler's log or a CUDA hint may follow; the first line says what happened, the log keeps the rest.
    reason = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    place, compiled = _place(error, source)
    if isinstance(error, SyntaxError):
        reason = f"{type(error).__name__}: {error.msg}"
    if isinstance(error, SoftbenchError):
        reason, place = text, Path(source.target).name if source is not None and source.kind == "file" else ""
    elif compiled:
        reason, place = f"{type(error).__name__}: {compiled}", ""
    traceback.print_exception(error)
    place = f" ({one_line(place, 100)})" if place else ""
    return Failure(status, "import" if stage == "load" else stage, one_line(reason, REASON - len(place)) + place, poisoned())


def _place(error: BaseException, source: PluginSource | None) -> tuple[str, str]:
    """The user's line and the compiler's first error. Without them if the search fails: it reads files and modules of the plugin."""
    try:
        return user_line(error, source), compiler_error(error)
    except Exception:
        traceback.print_exc()
        return "", ""
