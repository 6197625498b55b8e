"""softbench's Triton kernels as the backend `triton`."""

from __future__ import annotations

import torch

from softbench.backends.own_kernels import LINEAR, LOSSES, SCORES, Invariant, Kernels, without_linear
from softbench.core.case import Case
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler

INTERPRETED_ROWS = 32  # the interpreter takes about a millisecond per program


def _interpreter_trouble() -> str | None:
    """Why Triton's interpreter cannot run a loop here, found by running one; None if it can."""
    from softbench.kernels.triton.generic import loop_over_row

    x = torch.zeros(1, 32)
    try:
        loop_over_row[(1,)](x, torch.empty_like(x), 32, 32, 1, 32, 16, False, None)
    except Exception as error:  # the interpreter can raise anything
        return f"Triton's interpreter fails here ({one_line(str(error), 120)}); Triton 3.6's needs: pip install 'numpy<2.5'"
    return None


class Triton(Kernels):
    """softbench's Triton softmax and losses: tiers and plans by the table of the card."""

    name, module, losses, losses_of_columns = "triton", "triton.dispatch", "triton.losses", "triton.strided_losses"
    operations: tuple[str, ...] = (
        "softmax(scale,out_dtype)",
        "log_softmax",
        "cross_entropy(ignore_index,label_smoothing,z_loss,softcap)",
        "logprob",
        "masked_softmax(scale,mask,mask_axes,causal,sink)",
        "linear_cross_entropy(hidden,ignore_index,label_smoothing,z_loss,softcap)",
    )
    advice = "for any shape without nvcc: no tuning at run time, no compilation for each N"

    def available(self) -> str | None:
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return f"triton cannot be imported ({error}); pip install triton"
        return missing_compiler(cuda=True) if torch.cuda.is_available() else _interpreter_trouble()

    def interpreted(self) -> tuple[str, int] | None:
        """Why it is not timed here, and how many rows are checked; None with a GPU."""
        if torch.cuda.is_available():
            return None
        return "Triton's interpreter, as there is no GPU", INTERPRETED_ROWS

    def supports(self, case: Case) -> str | None:
        if case.operation in (*LOSSES, LINEAR, SCORES) and torch.version.hip is not None:
            return f"its kernels of {case.operation} contain PTX, which AMD's GPUs do not run"
        return super().supports(case)


class TritonInvariant(Invariant, Triton):
    """The Triton kernels by plans with which a row's bits do not depend on the other rows."""

    name, module, losses = "triton-invariant", "triton.invariant", "triton.invariant"
    operations = without_linear(Triton.operations)


own = Triton()
backends = [own, TritonInvariant()]
