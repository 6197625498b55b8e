"""Whether a user's bound accepts outputs that nobody computed: zeros, the mean, an input, noise.

A bound that rejects them on a small case may accept them on another shape: a softmax over N columns is about 1 / N, and a tolerance of 0.01
accepts zeros from N = 100 on.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from softbench.core.case import Case
from softbench.ops.check import bounds, excess
from softbench.ops.check_case import Tensors
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.registry import operation, rows as rows_in
from softbench.ops.values import Values

ROWS, ELEMENTS = 32, 2**20
"""Rows of a case that are tried, at most, and about their elements."""
DIFFERENT = 0.1
"""The least error, in units of the largest element of the row, that makes such an output another one than the right one."""
MOST = 0.5
"""Share of the rows. A bound that accepts such an output in more of them is too large."""


def row_numbers(case: Case) -> torch.Tensor:
    """The rows to try, spread over all."""
    rows = min(case.M, ROWS, max(1, ELEMENTS // case.N))
    return torch.linspace(0, case.M - 1, rows).long()


def accepted(values: Values, case: Case, given: Tensors, whole: Case) -> str:
    """What the bound of an output accepts in these normal rows of a whole case, in words; empty if nothing."""
    if case.M * case.N == 1:
        return ""  # chance decides for one element
    given = tuple(tensor.detach() for tensor in given)
    for (name, spec), bounded in zip(operation(case.op).outputs(case).items(), bounds(values, case, given), strict=True):
        exact = bounded.expected.reshape(rows_in(case), -1)
        dtype = TENSOR_DTYPES[spec.dtype_of(case)]
        due = exact.to(dtype).double()
        found = []
        for what, output in _others(exact, given):
            output = output.to(dtype)
            loosest = bounded.loosest(output.reshape(bounded.expected.shape)).reshape(rows_in(case), -1)
            peaks = due.abs().amax(dim=-1, keepdim=True) if exact.shape[1] > 1 else due.abs().mean()
            another = ((output.double() - due).abs() > DIFFERENT * peaks).any(dim=-1)
            passes = (excess(output, exact, loosest) <= 1).all(dim=-1) & another
            found += [what] if passes.sum() > MOST * another.sum() else []
        if found:
            where = f"{whole.shape or f'{whole.M}x{whole.N}'} in {case.dtype}"
            return f"at {where} the bound of {name} accepts {', '.join(found)} as well; make it smaller"
    return ""


def _others(exact: torch.Tensor, given: Tensors) -> Iterator[tuple[str, torch.Tensor]]:
    """Outputs that nobody computed, (rows, columns), in words and values."""
    generator = torch.Generator(exact.device).manual_seed(0)
    noise = torch.randn(exact.shape, generator=generator, device=exact.device, dtype=exact.dtype)
    spread, mean = (exact, exact.mean(dim=-1, keepdim=True)) if exact.shape[1] > 1 else (exact.T, exact.mean())
    yield "zeros", torch.zeros_like(exact)
    yield "the mean of the row" if exact.shape[1] > 1 else "the mean of all rows", mean.expand_as(exact)
    yield "noise", mean + spread.std(dim=-1, keepdim=True) * noise
    for tensor in given:
        if tensor.is_floating_point() and tensor.numel() == exact.numel():
            yield "its input", tensor.double().reshape(exact.shape)
