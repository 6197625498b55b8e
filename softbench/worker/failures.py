"""Errors of a request: out of memory, a lost CUDA context, and the reply that reports them."""

from __future__ import annotations

import traceback

import torch

from softbench.core.errors import SoftbenchError
from softbench.core.outcome import Status
from softbench.core.replies import Failure
from softbench.core.text import one_line


def out_of_memory(error: BaseException) -> bool:
    """torch's own error on the GPU; on the CPU its allocator raises a bare RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def poisoned() -> bool:
    """True when CUDA cannot be used any more in this process (illegal address, device assert)."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def failure(stage: str, error: Exception) -> Failure:
    """The reply to a request that raised `error`."""
    status = Status.OOM if out_of_memory(error) else Status.FAILED
    text = str(error).strip()
    # A compiler's log or a CUDA hint may follow; the first line says what happened, the log keeps the rest.
    reason = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    reason = text if isinstance(error, SoftbenchError) else reason
    traceback.print_exception(error)
    return Failure(status, "import" if stage == "load" else stage, one_line(reason), poisoned())
