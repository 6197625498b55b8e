"""What a row of masked softmax has beside x: scale, mask or bias, causal order and sink; changes of them, and check cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from softbench.core.case import Case, Direction
from softbench.ops import scores
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.lazy import torch
from softbench.ops.parameters import Parameter
from softbench.ops.registry import numerics, operation
from softbench.ops.rowwise import CONTRACT, unaligned
from softbench.ops.structured_rows import MASSIVE, Places, put

NONE, ADDITIVE, BOOLEAN = "none", "additive", "boolean"
SCALE = Parameter("scale", "number", 1.0, "the factor of x, before the mask is added", least=1e-4, most=1e4)
MASK = Parameter(
    "mask",
    "choice",
    NONE,
    "additive: a bias in the dtype of x is added. boolean: only elements where a bool is True take part",
    choices=(NONE, ADDITIVE, BOOLEAN),
)
MASK_AXES = Parameter(
    "mask_axes",
    "choice",
    "BSN",
    "the axes of bias or mask; it has size 1 along the others, which share it",
    choices=("BHSN", "BSN", "HSN", "SN", "BN"),
)
CAUSAL = Parameter("causal", "bool", False, "a query sees no later key: query s sees its first s + 1 + max(0, N - S)")
SINK = Parameter("sink", "bool", False, "a logit of each head joins the sum and has no output, as in gpt-oss")
LOWEST = {"fp32": -(2.0 - 2**-23) * 2**127, "fp16": -65504.0, "bf16": -(2.0 - 2**-7) * 2**127}
"""What code adds in place of -inf. A sum with z overflows only in float16, to -inf, so each row has another element."""
SHAPES = (
    *((1, 1, 1, 1), (1, 1, 5, 2), (2, 3, 7, 7), (1, 2, 33, 33), (2, 2, 128, 128), (3, 2, 130, 197), (1, 3, 5, 1023), (2, 1, 9, 1025)),
    *((2, 5, 70, 33), (1, 2, 4, 4097), (1, 1, 3, 8192), (2, 1, 2, 12289), (1, 2, 2, 16384)),
)
"""B, H, S and N: one query, more queries than keys and fewer, odd numbers, and the longest rows."""
UNALIGNED = (1, 1, 3, 8192)
"""Its rows of whole vectors begin within a vector, too."""
SMALL = (2, 2, 24, 321)
FEW = (1, 2, 33, 33)
WIDE = (2, 8, 128, 4097)
HUGE = (1, 33, 16384, 4096)
"""More than 2^31 elements."""
HUGE_TENSORS = 6
Change = Callable[["torch.Tensor", Places], object]
"""Changes rows of a mask, a bias or a sink in place."""
RowsChange = Callable[["Rows", Places], object]
"""Changes the rows of all inputs in place."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs of some rows, by name; those that a case lacks are None."""

    first: torch.Tensor
    """x or dy, (rows, N)."""
    y: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    sink: torch.Tensor | None = None
    """The sink of a forward or its share of a backward, (rows,)."""
    seen: torch.Tensor | None = None
    """How many columns each row sees, (rows,)."""


def names(case: Case) -> tuple[str, ...]:
    """The names of the inputs of rows of a case, in order: fields of Rows."""
    given = case.parameters
    second = {ADDITIVE: ("bias",), BOOLEAN: ("mask",)}.get(str(given.get(MASK.name)), ())
    second = second if case.direction is Direction.FORWARD else ("y",)
    return "first", *second, *("sink",) * (SINK.name in given), *("seen",) * (CAUSAL.name in given)


def split(case: Case, inputs: Sequence[torch.Tensor]) -> Rows:
    """The inputs of rows of a case by name."""
    return Rows(**dict(zip(names(case), inputs, strict=True)))


def scale_of(case: Case) -> float:
    """The factor of x."""
    return float(case.parameters.get(SCALE.name, SCALE.default))


def _one_key(values: torch.Tensor, places: Places, *, off: float) -> None:
    values.fill_(off)
    put(values, places, 1 if values.dtype is torch.bool else 0)


def _first(values: torch.Tensor, places: Places, *, off: float) -> None:
    values[places.before(len(values))] = off


def _last(values: torch.Tensor, places: Places, *, off: float) -> None:
    values[places.before(len(values)).flip(1)] = off


def _lowest(bias: torch.Tensor, places: Places, *, lowest: float) -> None:
    """The first element takes part, whatever was drawn: every causal query sees it."""
    bias.masked_fill_(places.some(len(bias)), lowest)
    bias[:, :1] = 0


def of_mask(off: float) -> Mapping[str, Change]:
    """Changes of rows of a mask or a bias, by name; `off` is what takes an element out."""
    return {
        "as drawn": lambda values, places: values,
        "with one key": partial(_one_key, off=off),
        "without a key": lambda values, places: values.fill_(off),
        "without the first keys": partial(_first, off=off),
        "without the last keys": partial(_last, off=off),
        "with scattered keys": lambda values, places: values.masked_fill_(places.some(len(values)), off),
    }


def of_bias(dtype: str) -> Mapping[str, Change]:
    """Changes of rows of a bias that are none of a mask, by name."""
    alone = {"of the lowest number": partial(_fill, value=LOWEST[dtype])} if dtype != "fp16" else {}
    return alone | {
        "30 times as wide": lambda bias, places: bias.nan_to_num_(neginf=0.0).mul_(30),
        "with the lowest number": partial(_lowest, lowest=LOWEST[dtype]),
        "falling with the distance": lambda bias, places: bias.copy_(
            -0.5 * torch.arange(places.N, device=bias.device).flip(0).clamp(max=120)
        ),
    }


def of_sink() -> Mapping[str, Change]:
    """Changes of sinks, by name."""
    return {
        "as drawn": lambda sink, places: sink,
    } | {f"of {value:g}": partial(_fill, value=value) for size in MASSIVE for value in (size, -size)}


def _fill(values: torch.Tensor, places: Places, *, value: float) -> None:
    values.fill_(value)


def vary(values: torch.Tensor, changes: Mapping[str, Change], places: Places) -> None:
    """A change of its own for each row."""
    chosen = torch.randint(len(changes), (len(values),), generator=places.generator).to(values.device)
    for number, change in enumerate(changes.values()):
        if len(rows := (chosen == number).nonzero()[:, 0]):
            part = values[rows]
            change(part, places)
            values[rows] = part


def check_cases(op: str) -> list[CheckCase]:
    """All check cases of the operation with the parameters of `op`, for each pass."""
    return [item for direction in operation(op).directions for item in _of_direction(op, direction)]


def _of_direction(op: str, direction: Direction) -> Iterator[CheckCase]:
    for shape in SHAPES:
        name = "x".join(map(str, shape))
        normal = _case(f"shape {name}", op, direction, shape)
        yield normal
        yield replace(normal, name=f"structured {name}", repeat="structured")
        if shape == UNALIGNED:
            yield unaligned(normal, name)
    for name, change in _values(op, direction):
        yield _case(name, op, direction, SMALL, change)
    for name, repeat in {**CONTRACT, "late calls": "late"}.items():
        one = _case(name, op, direction, WIDE if repeat == "streams" else FEW if repeat == "late" else SMALL)
        yield replace(one, repeat=repeat, gpu_only="streams" if "stream" in repeat else "")
    huge = _case("over-2^31-elements", op, direction, HUGE)
    elements = math.prod(HUGE)
    yield replace(huge, repeat="sampled", gpu_only="gigabytes of memory", free_bytes=HUGE_TENSORS * 4 * elements)


def _case(name: str, op: str, direction: Direction, shape: tuple[int, ...], change: RowsChange | None = None) -> CheckCase:
    """Normal rows, which `change` changes, in tensors of the shape."""

    def make(random: Draw) -> Tensors:
        B, H, S, N = shape
        fewer = random.rows(B * H * S, N)
        S = min(S, fewer)
        H = min(H, fewer // S)
        B = min(B, fewer // (S * H))
        text = "x".join(map(str, (B, H, S, N)))
        case = Case(B * H * S, N, random.dtype, direction, random.device.type, op, text)
        seed = int(torch.randint(2**31, (), generator=random.generator, device=random.device))
        given = numerics(op).make(case.of_rows(case.M), seed, random.device)
        if change is not None:
            change(split(case, given), Places(torch.Generator().manual_seed(seed), N, random.device))
        return scores.of_rows(case, given)

    return CheckCase(name, direction, make)


def _values(op: str, direction: Direction) -> Iterable[tuple[str, RowsChange]]:
    """RowsChanges of rows by name; those of tensors that the operation with its parameters lacks are left out."""
    there = names(Case(1, 1, "fp32", direction, op=op))
    if direction is Direction.BACKWARD:
        yield "dy = 1", lambda rows, places: rows.first.fill_(1)
        yield "dy with a mean", lambda rows, places: rows.first.add_(5)
        yield "y of 0", lambda rows, places: _y(rows).zero_()
        yield "a row of NaN", lambda rows, places: _y(rows)[3].fill_(math.nan)
        if "sink" in there:
            yield "all in the sink", _all_in_sink
        return
    yield "one NaN", lambda rows, places: rows.first[5, :1].fill_(math.nan)
    yield "a row of -inf", lambda rows, places: rows.first[5].fill_(-math.inf)
    yield "the maximum in the last column", lambda rows, places: rows.first[:, -1].fill_(30)
    yield "x of 100", lambda rows, places: rows.first.fill_(100 / _scale(op))
    if "bias" in there:
        yield from _of_mask("bias", -math.inf)
        yield "a NaN under -inf", _nan_under_bias
    if "mask" in there:
        yield from _of_mask("mask", False)
        yield "NaN where the mask is False", partial(_under_mask, value=math.nan)
        yield "inf where the mask is False", partial(_under_mask, value=math.inf)
    if {"bias", "mask"} & set(there):
        yield "the maximum masked", _masked_maximum
    if "seen" in there:
        yield "NaN in later keys", lambda rows, places: rows.first[::2, -1].fill_(math.nan)
        yield "the maximum in later keys", lambda rows, places: rows.first.copy_(torch.linspace(-30, 30, places.N).expand(rows.first.shape))
    if "sink" in there:
        for value in (90.0, *MASSIVE, -MASSIVE[0]):
            yield f"a sink of {value:g}", partial(_sink, value=value)
        yield "x and sink at 100", partial(_sink, value=100.0, x=100.0 / _scale(op))


def _scale(op: str) -> float:
    return scale_of(Case(1, 1, "fp32", Direction.FORWARD, op=op))


def _of_mask(name: str, off: float) -> Iterator[tuple[str, RowsChange]]:
    for what, change in of_mask(off).items():
        yield f"a {name} {what}", partial(_changed, name, change)
        yield f"a {name} {what} in one row", partial(_changed, name, change, row=3)


def _changed(name: str, change: Change, rows: Rows, places: Places, row: int | None = None) -> None:
    values = getattr(rows, name)
    change(values if row is None else values[row : row + 1], places)


def _y(rows: Rows) -> torch.Tensor:
    assert rows.y is not None
    return rows.y


def _all_in_sink(rows: Rows, places: Places) -> None:
    assert rows.sink is not None
    _y(rows).mul_(2.0**-10)
    rows.sink.fill_(1)


def _sink(rows: Rows, places: Places, *, value: float, x: float = 0.0) -> None:
    assert rows.sink is not None
    rows.sink.fill_(value)
    rows.first.add_(x)


def _nan_under_bias(rows: Rows, places: Places) -> None:
    assert rows.bias is not None
    rows.bias[4, 0], rows.first[4, 0] = -math.inf, math.nan


def _under_mask(rows: Rows, places: Places, *, value: float) -> None:
    """All rows have one mask, so that it is the mask of each head, and such values where it is False."""
    assert rows.mask is not None
    rows.mask[:] = rows.mask[0]
    rows.first.masked_fill_(~rows.mask, value)


def _masked_maximum(rows: Rows, places: Places) -> None:
    off = rows.bias[:1] == -math.inf if rows.bias is not None else ~rows.mask[:1]  # type: ignore[index]
    if rows.bias is not None:
        rows.bias[:] = rows.bias[:1]
    elif rows.mask is not None:
        rows.mask[:] = rows.mask[:1]
    rows.first.masked_fill_(off, 60)
