"""Whether Triton's interpreter ran a kernel in this process. Its time is that of Python, whoever selected it."""

from __future__ import annotations

import sys
from typing import Any

RAN = (
    "Triton's interpreter ran it, which is no time of the kernel: on a GPU unset TRITON_INTERPRET and knobs.runtime.interpret; "
    "without a GPU softbench check examines its outputs"
)


def ran() -> bool:
    """True if a kernel ran there since `forget`."""
    return getattr(_builder(), "grid_idx", None) is not None


def forget() -> None:
    """Forget what ran."""
    if builder := _builder():
        builder.grid_idx = None  # the interpreter sets it for each program


def _builder() -> Any:
    """The interpreter's state; None if Triton has not imported it."""
    return getattr(sys.modules.get("triton.runtime.interpreter"), "interpreter_builder", None)
