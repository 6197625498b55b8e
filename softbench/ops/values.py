"""The values of an operation: inputs, rows on which wrong kernels differ from right ones, float64 reference and bounds. Workers use it.

An operation of softbench and one of a user have the same base. A user writes the four abstract methods; `softbench run --op FILE` reads an
instance named NUMERICS.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops import registry, structured_rows
from softbench.ops.check import Worst, check
from softbench.ops.check_case import CheckCase, Draw, See, Tensors
from softbench.ops.error_terms import Bounded
from softbench.ops.lazy import torch
from softbench.ops.operation import TensorSpec
from softbench.ops.second_opinion import Again, Array

SHAPES = ((1, 1), (1, 7), (3, 1000), (64, 781), (5, 4097), (300, 64), (2, 20000))
"""M and N of the check cases: odd and even, one row, and rows longer than a block."""
Change = Callable[..., object]
"""Changes some rows of the inputs in place. Inputs without rows come whole and stay as they are."""


class Values(ABC):
    """Inputs, float64 reference and error bound of an operation."""

    __slots__ = ()  # an attribute of the instance would replace a method that the tamper guard protects

    def __setattr__(self, name: str, value: object) -> None:
        """A user's class has no slots, and its instances would take attributes."""
        raise AttributeError(f"{name} is read-only; make it an attribute of the class")

    @abstractmethod
    def draw(self, case: Case, random: Draw) -> Sequence[torch.Tensor]:
        """The inputs of a case, in the order, shapes and dtypes of its pass. The same `random` must give the same values."""

    @abstractmethod
    def reference(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """The outputs for these inputs in float64, in the order of the pass: tensors of (M, N) or the axes that the pass declares.

        Floating inputs come in float64, integers in their dtype, and `case.M` is the number of their rows.
        """

    @abstractmethod
    def bound(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor | Bounded]:
        """The largest error of each element of the outputs that right arithmetic makes; the inputs are those of `reference`.

        An element is a tensor of the output's shape, or for all outputs a `Bounded`, which has the reference and both bounds: it may
        depend on the output.
        """

    @abstractmethod
    def structured_rows(self, case: Case) -> Mapping[str, Change]:
        """Rows on which wrong kernels differ from right ones: constant, large, tiny, one element far from the others.

        By name, functions that get the inputs of some rows and change them in place. An input without rows comes whole and must stay.
        """

    def low_precision(self, case: Case, *inputs: torch.Tensor) -> Sequence[torch.Tensor] | None:
        """The largest errors of the class `low-precision`; None if the operation has no such class. Arguments as in `bound`."""
        return None

    def rounding(self, case: Case, worst: Worst) -> str:
        """What an output of low precision rounds, in words, from its worst element."""
        return "rounds intermediates"

    def again(self, case: Case, *inputs: Array) -> Sequence[Again] | None:
        """The outputs by numpy, which no operator of torch reaches; None without such a check. All inputs come in float64."""
        return None

    def masks_rows(self, case: Case) -> bool:
        """True if -inf in the first input masks elements: such a row may be NaN in the class `finite-only`."""
        return True

    def accepted(self, case: Case, given: Tensors) -> str:
        """Which output that computes nothing the bound accepts for these inputs, in words; empty if it rejects all."""
        return ""

    def adapted(self, case: Case, call: Callable[..., object], backend: object) -> Callable[..., object]:
        """A backend's callable as one of the tensors of the pass, which returns those of its outputs."""
        return call

    def passing(self, case: Case) -> Grade:
        """The class of an output within its bound."""
        return Grade.PASS

    def looser(self, case: Case) -> Grade:
        """The class of an output that only its second bound accepts."""
        return Grade.LOW_PRECISION

    def make(self, case: Case, seed: int, device: torch.device) -> Tensors:
        """The inputs of a case, in the order of its pass. The same seed gives the same values in every worker on the same device.

        Raises:
            TypeError: `draw` returns other tensors than those of the pass.
        """
        generator = torch.Generator(device)
        generator.manual_seed(zlib.crc32(f"{seed} {case.key}".encode()))  # the CPU's takes 32 bits and drops the rest
        drawn = self.draw(case, Draw(generator, case.dtype, device, None))
        if not isinstance(drawn, tuple | list) or not all(isinstance(tensor, torch.Tensor) for tensor in drawn):
            raise TypeError(f"draw of {case.op} returns {type(drawn).__name__}; give a tuple of tensors, those of the pass in order")
        given = tuple(drawn)
        _compare_forms(case, given, registry.operation(case.op).inputs(case))
        if case.direction is Direction.BOTH:
            given[0].requires_grad_()
        return given

    def refill(self, given: Tensors, case: Case, seed: int) -> None:
        """Write the values of another seed into the memory of `given`.

        An output that a backend kept from before, and knows by its address, is then wrong.
        """
        with torch.no_grad():
            for tensor, values in zip(given, self.make(case, seed, given[0].device), strict=True):
                tensor.copy_(values)

    def drawn(self, given: Tensors) -> bool:
        """False if the inputs are not what `make` draws, so that an operator that draws them was replaced."""
        return True

    def kinds(self, case: Case) -> Sequence[str]:
        """The names of the kinds of structured rows."""
        return list(self.structured_rows(case))

    def make_structured(self, given: Tensors, case: Case, seed: int, order: Sequence[str] = ()) -> list[str]:
        """Change normal rows into structured rows, in place. The kind of a row is at its number modulo the number of returned names.

        `order` has the kind of each row.
        """
        changes, with_rows = self.structured_rows(case), registry.operation(case.op).with_rows(case)
        with torch.no_grad():
            return structured_rows.change_rows(given, with_rows, list(order) or list(changes), case.M, changes)

    def estimate(self, case: Case, given: Tensors) -> Tensors:
        """The outputs for some rows of the inputs in float32. They choose rows to compare, and decide nothing."""
        return tuple(self.reference(case, *(tensor.detach().float() if tensor.is_floating_point() else tensor for tensor in given)))

    def check(
        self,
        case: Case,
        inputs: Tensors,
        outputs: Tensors,
        see: See | None = None,
        kinds: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> Accuracy:
        """The verdict on outputs of the right form: each element within its bound.

        Args:
            case: the case, with the number of rows of these tensors.
            inputs: the arguments of the call.
            outputs: what it returned, as a tuple.
            see: is called with each output's rows and the reference's.
            kinds: the names that `make_structured` returned, to name wrong kinds.
            numbers: the rows' numbers if the tensors are a sample of rows.
        """
        return check(self, case, inputs, outputs, see, kinds, numbers)

    def check_cases(self, op: str) -> list[CheckCase]:
        """The check cases of a case's `op`: of each shape and pass normal values, and structured rows.

        Cases of one shape are neighbours, so that a backend compiles once for each shape.
        """
        found = []
        for M, N in SHAPES:
            for direction in registry.operation(op).directions:
                shape = partial(self._of_shape, op, direction, M, N)
                found += [CheckCase(f"normal {M}x{N}", direction, partial(shape, structured=False))]
                found += [CheckCase(f"structured {M}x{N}", direction, partial(shape, structured=True))]
        return found

    def _of_shape(self, op: str, direction: Direction, M: int, N: int, random: Draw, *, structured: bool) -> Tensors:
        case = Case(random.rows(M, N), N, random.dtype, direction, random.device.type, op)
        given = tuple(self.draw(case, random))
        if structured:
            self.make_structured(given, case, 0)
        return given


def _compare_forms(case: Case, tensors: Tensors, specs: Sequence[TensorSpec]) -> None:
    from softbench.ops.dtypes import TENSOR_DTYPES

    found = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
    expected = [(spec.shape(case), TENSOR_DTYPES[spec.dtype_of(case)]) for spec in specs]
    if found != expected:
        raise TypeError(f"draw of {case.op} returns {found}; its pass has {expected}")
