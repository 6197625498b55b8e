"""Whether a row's bits depend on the other rows of its batch: on how many they are, on its position among them, or on the run.

FIXED rows stand in batches of different numbers of rows, beside other rows. Each of them takes each place of a batch in turn. The bits of
its outputs are compared with those at place 0, with those of the first batch, and with those of the same call again.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import replace

import torch

from softbench.core import text
from softbench.core.case import Case, Direction
from softbench.core.messages import RowsCompared
from softbench.ops.registry import operation
from softbench.plugins.backend import Backend, Call
from softbench.plugins.traits import interpreted
from softbench.worker.callables import prepared, refused
from softbench.worker.checking import any_dim, output_checks

Tensors = tuple[torch.Tensor, ...]

FIXED = 4
"""Rows with the same bits in all batches."""
PLACES = 8
MAX_ELEMENTS = {"cuda": 2**30, "cpu": 2**20}
"""Elements of a tensor of the largest batch, unless FIXED rows have more."""
FREE_BYTES = 32
"""Free bytes of a GPU for each element: a call has several tensors, and other workers too."""
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
LOUDER = 8.0
"""Factor of every third neighbour's values; as many are smaller by it."""


def compare_rows(backend: Backend, case: Case, counts: Sequence[int], seconds: float, seed: int) -> RowsCompared | str:
    """What a row's bits depend on, or why the backend is skipped.

    Args:
        backend: the backend.
        case: dtype, direction, device, operation and N; its M does not matter.
        counts: numbers of rows in the order in which they are tried. Those that memory has no room for are left out.
        seconds: after so many no further number is tried.
        seed: of the rows.
    """
    if only := interpreted(backend):
        return f"{only[0]}, which adds in another order"
    if reason := refused(backend, of_rows(case, FIXED)):
        return reason
    ends, rows, tried = time.monotonic() + seconds, _Rows(case, counts, seed), list[int]()
    most, found = rows.most, _Found()
    for M in counts:
        if most < M or refused(backend, of_rows(case, M)):
            continue
        try:
            call = prepared(backend, of_rows(case, M))
            found.add(M, rows.bits(call, M), rows.dtypes, rows.which)
        except torch.OutOfMemoryError:
            if not tried:
                raise
            most = M - 1
            continue
        tried.append(M)
        if time.monotonic() > ends and len(tried) > 1:
            break
    if len(tried) < min(2, len(counts)):
        return f"it takes {text.count(len(tried), 'number')} of rows here, and the comparison needs two"
    return RowsCompared(tuple(tried), found.differences(), found.checksum())


def of_rows(case: Case, M: int) -> Case:
    """The case with so many rows: attention scores have a batch for each."""
    return replace(case, M=M, shape=f"{M}x1x1x{case.N}" if operation(case.op).scores else "")


class _Rows:
    """The inputs of all batches: a batch has the first rows of the same memory."""

    def __init__(self, case: Case, counts: Sequence[int], seed: int) -> None:
        room = MAX_ELEMENTS[case.device]
        if case.device == "cuda":
            room = min(room, torch.cuda.mem_get_info()[0] // FREE_BYTES)
        self.case, self.most = case, min(max(counts), max(1, room // case.N))
        full = of_rows(case, max(self.most, FIXED))
        op = operation(case.op)
        self.given = tuple(tensor.detach() for tensor in any_dim.make(full, seed, torch.device(case.device)))
        specs = [op.tensors[name] for name in op.passes[case.direction].inputs]  # of a whole case too, whose tensors have sizes for axes
        self.outputs = [op.tensors[name] for name in op.passes[case.direction].outputs]
        self.with_rows = [spec.has_rows and len(tensor) == full.M for spec, tensor in zip(specs, self.given, strict=True)]
        device = self.given[0].device
        self.which = ((torch.arange(PLACES)[None, :] + torch.arange(FIXED)[:, None]) % FIXED).to(device)
        """The number of the fixed row at each place, in each turn."""
        drawn = any_dim.make(of_rows(case, FIXED), seed, device)  # these do not depend on the room for others
        self.fixed = [[tensor.detach()[which] for which in self.which] for tensor in self._own(drawn)]
        fitting = [M for M in counts if self.most >= M]
        every = torch.tensor([place for M in fitting for place in places_of(M)], device=device)
        self.places = dict(zip(fitting, every.split([len(places_of(M)) for M in fitting]), strict=True))
        """The places in a batch, by its number of rows."""
        self.dtypes: list[torch.dtype] = []
        """Those of the outputs that have rows."""
        for spec, free, tensor in zip(specs, op.free(full), self.given, strict=True):
            if free and spec.has_columns and tensor.is_floating_point():
                tensor[1::3] *= LOUDER
                tensor[2::3] /= LOUDER

    def _own(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tensors that have rows of their own."""
        return [tensor for tensor, own in zip(tensors, self.with_rows, strict=True) if own]

    def bits(self, call: Call, M: int) -> list[torch.Tensor]:
        """The outputs as integers: (FIXED + 1, places, columns) of each turn, and of the last turn again."""
        case, places = of_rows(self.case, M), self.places[M]
        batch = [tensor[:M] if own else tensor for tensor, own in zip(self.given, self.with_rows, strict=True)]
        if case.direction is Direction.BOTH:
            batch[0].requires_grad_()
        turns = [self._turn(call, case, batch, places, min(turn, FIXED - 1)) for turn in range(FIXED + 1)]
        return [torch.stack(outputs) for outputs in zip(*turns, strict=True)]

    def _turn(self, call: Call, case: Case, batch: Sequence[torch.Tensor], places: torch.Tensor, turn: int) -> list[torch.Tensor]:
        """The outputs of the rows at these places, where row number `turn` is the first."""
        for tensor, turns in zip(self._own(batch), self.fixed, strict=True):
            tensor.data.index_copy_(0, places, turns[turn][: len(places)])
        due = output_checks.forms(case)
        outputs, found = output_checks.as_tuple(call(*batch), due), list[torch.Tensor]()
        if reason := output_checks.misformed(tuple(batch), outputs, due):
            raise TypeError(f"{reason}, for {text.count(case.M, 'row')}")
        self.dtypes = []
        for spec, out in zip(self.outputs, outputs, strict=True):
            if spec.has_rows and len(out) == case.M:
                self.dtypes.append(out.dtype)
                taken = out.detach()[places].reshape(len(places), -1)
                found.append(taken.view(INTEGERS[taken.element_size()]))
        return found


class _Found:
    """The differences of all batches. They stay on the device until the end: where other processes share it, each wait is long."""

    def __init__(self) -> None:
        self.first: tuple[int, list[torch.Tensor]] | None = None
        """The first number of rows, and the bits of its fixed rows at place 0."""
        self.seen: list[tuple[str, int, int]] = []
        """What is compared, the rows of the batch, and those of the other batch or the place of the row."""
        self.numbers: list[torch.Tensor] = []
        """Whether bits differ, and the ULP: (2, n) for as many of these."""

    def add(self, M: int, bits: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype], which: torch.Tensor) -> None:
        """The bits of a batch."""
        own = [one[:FIXED, 0] for one in bits]
        self.first = self.first or (M, own)
        places = places_of(M)
        for mine, place_0, other, dtype in zip(bits, own, self.first[1], dtypes, strict=True):
            turns, expected = mine[:FIXED], place_0[which[:, : len(places)]]
            self.seen += [("run", M, M), ("M", M, self.first[0]), *(("position", M, place) for place in places)]
            for one, its, over in ((mine[FIXED:], turns[-1:], (0, 1, 2)), (place_0, other, (0, 1)), (turns, expected, (0, 2))):
                self.numbers.append(
                    torch.stack(((one != its).long(), ulps(one, its, dtype))).amax([axis + 1 for axis in over]).reshape(2, -1)
                )

    def checksum(self) -> str:
        """That of the fixed rows in the first batch."""
        found = 0
        for one in self.first[1] if self.first else ():
            found = zlib.crc32(one.cpu().numpy().tobytes(), found)
        return f"{found:08x}"

    def differences(self) -> list[tuple[str, int, int, int]]:
        """Of each kind the smallest example, and the worst ULP of all. Where runs differ, nothing is said of the others."""
        if not self.seen:
            return []
        numbers = torch.cat(self.numbers, 1).T.tolist()
        found: dict[str, list[tuple[int, int, int]]] = {}
        for (kind, M, other), (differ, ulp) in zip(self.seen, numbers, strict=True):
            if differ:
                found.setdefault(kind, []).append((M, other, ulp))
        kinds = [kind for kind in (("run",) if "run" in found else ("M", "position")) if kind in found]
        return [(kind, *min(found[kind])[:2], max(ulp for *_, ulp in found[kind])) for kind in kinds]


def places_of(M: int) -> list[int]:
    """Up to eight places among M rows. Of rows of an odd length each begins at another distance from a vector."""
    return sorted({min(max(0, place), M - 1) for place in (0, 1, 2, 5, M // 3, M // 2 + 1, M - 2, M - 1)})[:PLACES]


def ulps(mine: torch.Tensor, its: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of floats of a dtype in units in the last place, from their bits; 0 for integers."""

    def ordered(bits: torch.Tensor) -> torch.Tensor:
        wide = bits.long()
        return torch.where(wide < 0, torch.iinfo(bits.dtype).min - wide, wide)

    return (ordered(mine) - ordered(its)).abs() if dtype.is_floating_point else torch.zeros_like(mine, dtype=torch.int64)
