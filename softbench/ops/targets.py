"""What operations over rows with a target share: draws of targets, structured rows of logits and targets, and check cases."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from softbench.core.case import Case, Direction, shape_of
from softbench.ops import structured_rows
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.lazy import torch
from softbench.ops.registry import operation
from softbench.ops.rowwise import COLUMNS, NormalValues
from softbench.ops.structured_rows import Change as RowChange, Places

IGNORED = 8
"""About one target in so many is ignored."""
OVER_DIM = ("2x21x4x8@dim1", "150x5@dim0")
"""Shapes with classes in another dimension than the last."""
TILE = 4096
"""Columns of a tile that holds only -inf; kernels have smaller ones."""
TAIL = 14.0
"""How far below the largest element those of a small tail are."""
FAR = 1e4
"""A shift at which float32 has a spacing of 2^-10."""
UNDEFINED = ("of -inf", "with one NaN")
"""Rows whose gradient is NaN. quack stores zeros there, so only `softbench check` has them."""
Change = Callable[["torch.Tensor", "torch.Tensor", Places], object]
"""Changes rows of logits and their targets in place."""


def draw_target(case: Case, random: Draw, ignore_index: int | None) -> torch.Tensor:
    """Targets of M rows, each column alike. Some are ignored, of two rows and more at least one, unless `ignore_index` is None."""
    shape = (case.M,)
    target = torch.randint(max(1, case.N), shape, generator=random.generator, device=random.device)
    if ignore_index is None:
        return target
    ignored = torch.randint(IGNORED, shape, generator=random.generator, device=random.device) == 0
    if case.M > 1:
        ignored[torch.randint(case.M, (1,), generator=random.generator, device=random.device)] = True
    return torch.where(ignored, ignore_index, target)


def kinds(case: Case, ignore_index: int | None) -> dict[str, Change]:
    """The kinds of rows, by name. No other row than those of the ignored kinds is ignored, so each tests what it is for."""
    of_x = {name: change for name, change in structured_rows.of_x(case.dtype).items() if name != "with one +inf"}
    found: dict[str, Change] = {name: partial(_of_x, change) for name, change in of_x.items()}
    found |= {
        f"shifted by {FAR:g}": lambda x, target, places: x.add_(FAR),
        f"shifted by {-FAR:g}": lambda x, target, places: x.sub_(FAR),
        "with a tile of -inf first": _masked_tile,
        "with target 0": lambda x, target, places: target.fill_(0),
        "with the last column as target": lambda x, target, places: target.fill_(places.N - 1),
        "with a target at an edge": lambda x, target, places: target.copy_(places.at_blocks(len(x))),
        "with the largest element at the target": partial(_at_target, value=300.0),
        "one-hot at the target": _at_blocks,
        "one-hot elsewhere": _elsewhere,
        "with its sum in two columns": _two_columns,
        "with one element above many small ones": _tail,
        "with -inf at the target": partial(_at_target, value=-math.inf),
    }
    if ignore_index is None:
        return found
    found = {name: partial(_counted, change, ignore_index) for name, change in found.items()}
    ignored: dict[str, Change] = {
        "ignored": lambda x, target, places: target.fill_(ignore_index),
        "ignored, 30 times as wide": lambda x, target, places: (x.mul_(30), target.fill_(ignore_index)),
    }
    return found | ignored


def _of_x(change: RowChange, x: torch.Tensor, target: torch.Tensor, places: Places) -> None:
    change(x, places)


def _counted(change: Change, ignore_index: int, x: torch.Tensor, target: torch.Tensor, places: Places) -> None:
    """The change in rows that count: ignored targets become others."""
    fresh = places.columns(len(x))
    fresh = torch.where(fresh == ignore_index, (fresh + 1) % places.N, fresh)
    target.copy_(torch.where(target == ignore_index, fresh, target))
    change(x, target, places)


def _masked_tile(x: torch.Tensor, target: torch.Tensor, places: Places) -> None:
    """A whole tile of -inf, or half of a shorter row; the target is behind it."""
    masked = min(TILE, places.N // 2)
    x[:, :masked] = -math.inf
    target.clamp_(min=masked)


def _at_target(x: torch.Tensor, target: torch.Tensor, places: Places, *, value: float, others: float | None = None) -> None:
    if others is not None:
        x.fill_(others)
    x.scatter_(1, target[:, None], value)


def _at_blocks(x: torch.Tensor, target: torch.Tensor, places: Places) -> None:
    """A column that two blocks add, or none, is then nearly the whole sum."""
    target.copy_(places.at_blocks(len(x)))
    _at_target(x, target, places, value=50.0, others=-50.0)


def _elsewhere(x: torch.Tensor, target: torch.Tensor, places: Places) -> None:
    """lse is 0, and so are the errors of an entropy: one with a floor is wrong."""
    x.fill_(-100)
    x.scatter_(1, ((target + 1) % places.N)[:, None], 0)


class TargetValues(NormalValues):
    """The values of an operation whose first inputs are logits of shape (M, N) and a target of each row."""

    __slots__ = ()

    @abstractmethod
    def ignore_index(self, case: Case) -> int | None:
        """The target of ignored rows; None if every row counts."""

    @abstractmethod
    def derived(self, case: Case, given: Tensors) -> None:
        """Compute the inputs behind the target that depend on the logits again, in place: lse of changed logits."""

    def upstream(self, case: Case) -> Mapping[str, Callable[..., object]]:
        """Changes of the gradients that the backward gets, by name. A function gets some rows of all inputs, and Places."""
        return MappingProxyType({})

    def structured_rows(self, case: Case) -> Mapping[str, Callable[..., object]]:
        """The kinds of logits and targets, and of the gradients that the backward gets."""
        found = kinds(case, self.ignore_index(case))
        if case.direction is not Direction.FORWARD:
            found = {name: change for name, change in found.items() if name not in UNDEFINED}
        both = {name: partial(_first_two, change) for name, change in found.items()}
        return both | dict(self.upstream(case))

    def special_cases(self, op: str, direction: Direction) -> Iterator[CheckCase]:
        """Rows with NaN, which structured rows lack in a backward, a row with one large element, and classes in another dimension."""
        for shape in OVER_DIM if operation(op).any_dim else ():
            yield self._over_dim(shape, op, direction)
        for name in UNDEFINED:
            yield self._of_row(f"a row {name}", op, direction, structured_rows.of_x("fp32")[name])
        yield self._of_row("one large element", op, direction, _with_large)

    def _over_dim(self, shape: str, op: str, direction: Direction) -> CheckCase:
        found = shape_of(shape)
        case = Case(found.rows, found.columns, "fp32", direction, "cpu", op, shape)

        def make(random: Draw) -> Tensors:
            rows = replace(case.of_rows(case.M), dtype=random.dtype, device=random.device.type)
            tensors = zip(operation(op).inputs(case), self.draw(rows, random), strict=True)
            return tuple(spec.laid_out(case, tensor).contiguous() for spec, tensor in tensors)

        return CheckCase(f"structured {shape}", direction, make, case=case, repeat="structured")

    def _of_row(self, name: str, op: str, direction: Direction, change: RowChange) -> CheckCase:
        def make(random: Draw) -> Tensors:
            case = Case(random.rows(16, COLUMNS), COLUMNS, random.dtype, direction, random.device.type, op)
            given = tuple(self.draw(case, random))
            rows, places = slice(3, 4), Places(torch.Generator().manual_seed(COLUMNS), COLUMNS, random.device)
            given[1][rows] = (COLUMNS // 2) + (self.ignore_index(case) == COLUMNS // 2)
            change(given[0][rows], places)
            self.derived(case, given)
            return given

        return CheckCase(name, direction, make)


def _with_large(x: torch.Tensor, places: Places) -> None:
    """The largest number of float16 in one column of negative numbers."""
    x.abs_().neg_()
    structured_rows.put(x, places, 65504.0)


def _two_columns(x: torch.Tensor, target: torch.Tensor, places: Places) -> None:
    """A quarter of the sum is in the last column or the first, in turn: an entropy without it is off by more than 16 bits can hide."""
    x.fill_(-60)
    x[:, (places.N - 1) // 2] = 0
    x[::2, -1] = -1
    x[1::2, 0] = -1


def _tail(x: torch.Tensor, target: torch.Tensor, places: Places) -> None:
    """Probabilities of about 1e-6, which have nearly all of the entropy: log(max(p, 1e-6)) and log(p + 1e-8) are off by much of it."""
    x.sub_(TAIL)
    structured_rows.put(x, places, 0.0)


def _first_two(change: Change, *given: object) -> None:
    *tensors, places = given
    change(tensors[0], tensors[1], places)  # type: ignore[arg-type]
