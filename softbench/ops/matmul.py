"""The product of two matrices, and its bytes and operations: a case that memory does not bound.

    c_ij = sum_k a_ik b_kj

The bound is derived from the arithmetic. u, u_o, eta and c are those of `softbench.ops.error_terms`, and S = |a| |b|:

    c      u_o |c_ij| + u (16 + 2 log2 K + sqrt K) S_ij + eta

The sum of K products in float32 is off by a random walk of its roundings, in any order. Source: Higham, "Accuracy and Stability of
Numerical Algorithms", 2002, sections 3.1 and 2.8.

`low-precision` is a second class: in float32 tensor cores round a and b to TF32, 2 * 2^-11 S_ij. In 16 bits parts of a sum are added in
16 bits, as cuBLAS may do where torch allows reduced precision: u_o S_ij.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops.check import Worst
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.error_terms import ETA, U_OUT, U
from softbench.ops.lazy import torch
from softbench.ops.operation import Operation, Pass, Preset, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.registry import operation
from softbench.ops.values import Change, Values

K = Parameter("K", "whole", 1024, "columns of a and rows of b", least=1)
TF32 = 2.0**-11
SHAPES = ((1, 1, 1), (3, 7, 5), (64, 33, 128), (37, 1000, 65), (130, 64, 257))
"""M, K and N of the check cases."""
OPERATION = Operation(
    name="matmul",
    summary="a @ b of (M, K) and (K, N)",
    tensors=MappingProxyType({"a": TensorSpec(("M", "K")), "b": TensorSpec(("K", "N")), "c": TensorSpec(("M", "N"))}),
    passes=MappingProxyType({Direction.FORWARD: Pass(("a", "b"), ("c",), ("a", "b"), whole=True, multiply_adds=("M", "K", "N"))}),
    presets=MappingProxyType({"llama": Preset(("4096x4096", "4096x14336"), "projections of Llama 3 8B, 4096 tokens; --set K=4096")}),
    parameters=(K,),
)
OPERATORS = ("matmul",)
"""What the tamper guard protects of torch for the reference."""


class MatMul(Values):
    """c of normal matrices, of which some rows and columns are much larger than others, and some rows hold one element.

    In the last each c is one product, so a lost column of a, or factors of few bits, cannot hide in the errors of a long sum.
    """

    __slots__ = ()

    def draw(self, case: Case, random: Draw) -> Tensors:
        size = int(operation(case.op).parameter_values[K.name])
        a, b = random.normal(case.M, size), random.normal(size, case.N)
        a[::3] *= 8
        b[:, ::5] /= 8
        for first, column in ((1, 0), (5, size - 1), (9, int(torch.randint(size, (), generator=random.generator, device=random.device)))):
            kept = a[first::16, column].clone()
            a[first::16] = 0
            a[first::16, column] = kept
        return a, b

    def reference(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        a, b = inputs
        return (torch.matmul(a, b),)

    def bound(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        (exact,), (sizes,) = self.reference(case, *inputs), self.reference(case, *(tensor.abs() for tensor in inputs))
        terms = inputs[0].shape[1]
        c = 16 + 2 * math.log2(terms) + math.sqrt(terms)
        return (U_OUT[case.dtype] * exact.abs() + U * c * sizes + ETA[case.dtype],)

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Tensors:
        (tight,), (sizes,) = self.bound(case, *inputs), self.reference(case, *(tensor.abs() for tensor in inputs))
        return (tight + (U_OUT[case.dtype] or 2 * TF32) * sizes,)

    def rounding(self, case: Case, worst: Worst) -> str:
        return "adds parts of a sum in 16 bits" if U_OUT[case.dtype] else "rounds a and b to TF32"

    def masks_rows(self, case: Case) -> bool:
        return False

    def structured_rows(self, case: Case) -> Mapping[str, Change]:
        return {}

    def check_cases(self, op: str) -> list[CheckCase]:
        """One draw of each shape."""
        found = []
        for M, size, N in SHAPES:
            case = Case(M, N, "fp32", Direction.FORWARD, "cpu", f"{OPERATION.name}(K={size})")
            found.append(CheckCase(f"normal {M}x{size}x{N}", case.direction, partial(self._drawn, case), case=case))
        return found

    def _drawn(self, case: Case, random: Draw) -> Tensors:
        return self.draw(case, random)


NUMERICS = MatMul()
