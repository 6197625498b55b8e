"""What operations that make y of x over rows share: declaration, inputs, and the check cases of every backend.

The cases are those beside the tensor that a backend is timed on: shapes, values, layouts, contract, size. An operation adds gradients.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from softbench.core.case import Case, Direction
from softbench.ops import second_opinion, structured_rows
from softbench.ops.check import row_chunks
from softbench.ops.check_case import CheckCase, Draw, Tensors
from softbench.ops.lazy import torch
from softbench.ops.operation import Operation, Pass, Preset, TensorSpec
from softbench.ops.parameters import Parameter
from softbench.ops.registry import operation
from softbench.ops.structured_rows import MAX_SHIFT, Places
from softbench.ops.values import Values

ROWS = TensorSpec(("M", "N"))
PRESETS = MappingProxyType(
    {
        "vocabularies": Preset(
            tuple(f"{M}x{N}" for M in (1, 64, 4096) for N in (32000, 50257, 128256, 151936, 201088, 262144)),
            "logits of Llama 2, GPT-2, Llama 3, Qwen 3, gpt-oss and Gemma 3, for 1, 64 and 4096 tokens",
        ),
        "attention": Preset(
            ("64x12x197x197", "32x12x512x512", "8x12x1024x1024", "1x32x4096x4096"),
            "scores of ViT-B/16 (64 images), BERT-base (32 texts), GPT-2 (8) and Llama 2 7B (1), a head and a query in each row",
        ),
        "segmentation": Preset(
            ("8x21x512x512@dim1", "4x150x256x256@dim1", "2x19x1024x2048@dim1"),
            "classes of each pixel: PASCAL VOC, ADE20K and Cityscapes",
        ),
        "strided": Preset(
            ("64x512x28x28@dim1", "8x16x1024x1024@dim2", "4096x8192@dim0"),
            "other dimensions than the last: channels, attention scores over queries, and columns of a matrix",
        ),
    }
)
"""The vocabularies and the heads are those of the models' published configurations."""


def declare(
    name: str,
    summary: str,
    *,
    result: TensorSpec = ROWS,
    others: Mapping[str, TensorSpec] = MappingProxyType({}),
    parameters: tuple[Parameter, ...] = (),
) -> Operation:
    """An operation that makes y of x, and dx of dy and y; these tensors are (M, N), or rows along any dimension.

    `result` is the form of y and dy. `others` are inputs of every pass, behind x, dy and y.
    """
    more = tuple(others)
    return Operation(
        name=name,
        summary=summary,
        any_dim=True,
        presets=PRESETS,
        tensors=MappingProxyType({"x": ROWS, "y": result, "dy": result, "dx": ROWS, **others}),
        passes=MappingProxyType(
            {
                Direction.FORWARD: Pass(inputs=("x", *more), outputs=("y",), reads=("x", *more)),
                Direction.BACKWARD: Pass(inputs=("dy", "y", *more), outputs=("dx",), reads=("dy", "y", *more)),
                Direction.BOTH: Pass(inputs=("x", "dy", *more), outputs=("y", "dx"), reads=("x", "dy", "y", *more)),
            }
        ),
        parameters=parameters,
    )


HUGE = {"fp32": 3.4e38, "fp16": 65504.0, "bf16": 3.38e38}

OVER_INT32 = "over-2^31-elements"
HUGE_TENSORS = 6
"""Tensors of the case over 2^31 elements that are in memory at once, at most: two inputs, an output, and three temporaries of `naive`."""

LEAST_LONG, LONGEST = 4096, 2**18
DISTANCES = 80.0
"""Beyond it, 1/N of an exponential is below the smallest float32 in a row of 2^19."""
COLUMNS = 1023  # of the value cases: no multiple of a vector, and just below a tier of most kernels
ROWS_OF_CASES = 16
SMALL = (37, 33)
"""M and N of the cases of very many calls."""
UNALIGNED = (3, 1000)
"""M and N of the case whose rows begin within a vector."""
CONTRACT = {
    "twice the same": "twice",
    "another stream": "stream",
    "outputs held over later calls": "held",
    "many calls": "many",
    "calls on two streams": "streams",
}
"""Check cases of more than one call: name and `CheckCase.repeat`."""
SHAPES = ((1, 1), (1, 7), (37, 33), (3, 1000), (64, 781), (300, 60), (0, 16))
LONG_SHAPES = (
    *((6, 3002), (5, 4102), (2, 20011), (3, 50257), (2, 128256), (1, 201088), (1, 262144)),
    *((1823, 256), (65537, 9)),
)
"""M and N of the check cases of other operations: odd and even, one row, many rows, and the vocabularies of models. LONG_SHAPES have
structured rows only, and half of these are normal."""
BEYOND_INT32 = (2**13 + 1, 2**18)
"""M and N of their check case beyond 2^31 elements."""
ROWS_AT_ONCE = 4096
LONG = 20011  # columns of the value cases with several tiles: no multiple of a tile


class NormalValues(Values):
    """The values of an operation whose first input is standard normal, and whose kinds of rows get random `Places` as a last argument."""

    __slots__ = ()

    def drawn(self, given: Tensors) -> bool:
        return second_opinion.drawn(given)

    def make_structured(self, given: Tensors, case: Case, seed: int, order: Sequence[str] = ()) -> list[str]:
        rows = tuple(tensor for tensor, own in zip(given, operation(case.op).with_rows(case), strict=True) if own)
        names = structured_rows.make_structured(rows, case, seed, self.structured_rows(case), order)
        self.derived(case, given)
        return names

    def derived(self, case: Case, given: Tensors) -> None:
        """Compute the inputs that depend on others again, in place."""

    def check_cases(self, op: str) -> list[CheckCase]:
        """Normal and structured rows of each shape, what `special_cases` gives, and cases of several calls, for each pass."""
        return [item for direction in operation(op).directions for item in self._of_direction(op, direction)]

    def special_cases(self, op: str, direction: Direction) -> Iterable[CheckCase]:
        """The operation's own check cases."""
        return ()

    def _of_direction(self, op: str, direction: Direction) -> Iterator[CheckCase]:
        for M, N in (*SHAPES, *LONG_SHAPES):
            normal = self._normal(f"shape {M}x{N}", op, direction, M, N)
            if (M, N) in SHAPES:
                yield normal
            if M:
                yield replace(normal, name=f"structured {M}x{N}", repeat="structured")
            if (M, N) == SMALL:
                yield replace(normal, name="late calls", repeat="late")
            if (M, N) == UNALIGNED:
                yield unaligned(normal, f"{M}x{N}")
        yield from self.special_cases(op, direction)
        for name, repeat in CONTRACT.items():
            wide = (2048, LONG) if repeat == "streams" else (ROWS_OF_CASES, COLUMNS)
            one = self._normal(name, op, direction, *wide)
            yield replace(one, repeat=repeat, gpu_only="streams" if "stream" in repeat else "")
        if operation(op).passes[direction].whole:  # the reference of a huge tensor has no room
            return
        M, N = BEYOND_INT32
        huge = self._normal(OVER_INT32, op, direction, M, N)
        yield replace(huge, repeat="sampled", gpu_only="gigabytes of memory", free_bytes=HUGE_TENSORS * 4 * M * N)

    def _normal(self, name: str, op: str, direction: Direction, M: int, N: int) -> CheckCase:
        def make(random: Draw) -> Tensors:
            return tuple(self.draw(Case(random.rows(M, N), N, random.dtype, direction, random.device.type, op), random))

        return CheckCase(name, direction, make)


def draw(case: Case, random: Draw, forward: Callable[[torch.Tensor, slice], torch.Tensor], result: str = "") -> Tensors:
    """What the case's callable takes: `(x,)`, `(dy, y)` or `(x, dy)`, each (M, N) and contiguous.

    x is standard normal in the case's dtype, dy in that of `result`, which is the case's without it. y is `forward` of some rows of such
    an x, computed in float32 or better and rounded. `forward` also gets the rows.
    """
    of_result = replace(random, dtype=result or case.dtype)
    if case.direction is Direction.FORWARD:
        return (random.normal(case.M, case.N),)
    if case.direction is Direction.BOTH:
        return random.normal(case.M, case.N), of_result.normal(case.M, case.N)
    y = of_result.normal(case.M, case.N)
    for rows in row_chunks(case):
        y[rows] = forward(y[rows].float(), rows).to(y.dtype)
    return of_result.normal(case.M, case.N), y


LAYOUTS: dict[str, tuple[Callable[[Draw], torch.Tensor], int]] = {
    "1-D": (lambda draw: draw.normal(1000), 0),
    "3-D, dim 0": (lambda draw: draw.normal(65, 3, 7), 0),
    "3-D, dim 1": (lambda draw: draw.normal(3, 65, 7), 1),
    "5-D, dim -3": (lambda draw: draw.normal(2, 3, 17, 2, 2), -3),
    "transposed": (lambda draw: draw.normal(100, 12).t(), -1),
    "every second column": (lambda draw: draw.normal(12, 200)[:, ::2], -1),
    "row stride over N": (lambda draw: draw.normal(12, 128)[:, :100], -1),
    "offset by one element": (lambda draw: draw.normal(12 * 128 + 1)[1:].view(12, 128), -1),
    "expanded rows": (lambda draw: draw.normal(1, 100).expand(12, 100), -1),
    "expanded columns": (lambda draw: draw.normal(12, 1).expand(12, 100), -1),
    "channels-last": (lambda draw: draw.normal(2, 16, 3, 5).to(memory_format=torch.channels_last), 1),
}


STRIDED = {1: (0,), 2: (-1, 0), 3: (0, 1, -1), 4: (1, -2, -1), 5: (0, -3, -1)}
"""The axes over which tensors of so many axes have random strides."""
MOST_LINES = {1: 1, 2: 40, 3: 9, 4: 4, 5: 3}
"""The size of another axis, at most, by their number."""
DRAWS = 4


def one_hot(like: torch.Tensor) -> torch.Tensor:
    """Zeros, and a one in each row."""
    hot = torch.zeros_like(like)
    hot[:, 77] = 1
    return hot


@dataclass(frozen=True, slots=True)
class RowwiseCases:
    """The check cases of an operation over rows."""

    forward: Callable[..., torch.Tensor]
    """y of x over an axis `dim`."""
    extreme: float = 1.0
    """The largest and the smallest element of a case, as a share of the dtype's range."""

    def items(self, gradients: Iterable[CheckCase]) -> list[CheckCase]:
        """All check cases. Cases of one shape are neighbours, so that a backend compiles once for each shape."""
        forward, backward = Direction.FORWARD, Direction.BACKWARD
        return [
            *(*self.shapes(forward), *self.values(), *self.contract(forward), *self.structured(forward), *self.layouts()),
            *(*self.shapes(backward), *gradients, *self.contract(backward), *self.structured(backward)),
            *(*self.strided(forward), *self.strided(backward), *self.both()),
        ]

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """y of x in x's memory; some rows at a time, since x may fill half of the device."""
        for rows in x.split(ROWS_AT_ONCE):
            rows.copy_(self.forward(rows.float(), dim=-1))
        return x

    def gradient(self, name: str, make: Callable[[torch.Tensor, torch.Tensor], Tensors]) -> CheckCase:
        """A case of the backward; `make` changes normal dy and their y."""

        def of(draw: Draw) -> Tensors:
            return make(draw.normal(ROWS_OF_CASES, COLUMNS), self.of(draw.normal(ROWS_OF_CASES, COLUMNS)))

        return CheckCase(name, Direction.BACKWARD, of)

    def gradients_of_dy(self) -> Iterable[CheckCase]:
        """Cases of dy that all operations have."""
        yield self.gradient("dy = 1", lambda dy, y: (torch.ones_like(dy), y))
        yield self.gradient("dy one-hot", lambda dy, y: (one_hot(dy), y))
        yield self.gradient("dy with a mean", lambda dy, y: (dy + 5, y))

    def shapes(self, direction: Direction) -> Iterable[CheckCase]:
        small = [*((37, N) for N in (1, 2, 33, 255, 256, 257, 1002, 1025)), (9, 2048)]
        tiers = [(5, 4095), (6, 6001), (6, 8196), (7, 16391), (5, 32777), (6, 65532), (1, 131072), (1, 201088), (2, 262145), (1, 2**19 + 6)]
        for M, N in (*small, (128, 1024), (1823, 781), *tiers, (1, 1000), (65537, 9)):
            yield self.shape(f"{M}x{N}", direction, M, N)
        for M, N in ((0, 16), (16, 0)):
            yield self.shape(f"{M}x{N}", direction, M, N)
        for N in (781, 1000):
            yield unaligned(self.shape(f"12x{N}", direction, 12, N), f"12x{N}")
        yield replace(self.shape(f"{2**24 + 3}x2", direction, 2**24 + 3, 2), gpu_only="millions of rows")
        M, N = 2**15 + 1, 2**16
        huge = self.shape(OVER_INT32, direction, M, N)
        yield replace(huge, repeat="sampled", gpu_only="gigabytes of memory", free_bytes=HUGE_TENSORS * 4 * M * N)

    def shape(self, name: str, direction: Direction, M: int, N: int) -> CheckCase:
        """Normal values; long rows are uneven in turn."""

        def make(draw: Draw) -> Tensors:
            rows = draw.rows(M, N)
            x = draw.normal(rows, N)
            if direction is Direction.BOTH:
                return x.requires_grad_(), draw.normal(rows, N)
            if N > LEAST_LONG and (M > 1 or N < LONGEST):
                self._unlike(x, draw)
            elif N > LONGEST:
                every_distance(x, draw.generator)
            if direction is Direction.FORWARD:
                return (x,)
            return draw.normal(rows, N), self.of(x)

        return CheckCase(f"shape {name}", direction, make)

    def _unlike(self, x: torch.Tensor, draw: Draw) -> None:
        """Every second row, or the only one, has tiles of -inf, steps or large elements."""
        places = Places(torch.Generator().manual_seed(int(draw.generator.initial_seed() % 2**31)), x.shape[1], x.device)
        structured_rows.of_x(draw.dtype)[structured_rows.LONG_ROWS[0]](x[len(x) > 1 :: 2], places)

    def structured(self, direction: Direction) -> Iterable[CheckCase]:
        """Structured rows at lengths below and above tiles; one is 4k + 2."""
        for M, N in (SMALL, (37, 1002), (1, 1000), (2, 70), (3, 126), (2, LONG), (2**17 + 5, 9)):
            yield replace(self.shape("", direction, M, N), name=f"structured {M}x{N}", repeat="structured")

    def contract(self, direction: Direction) -> Iterable[CheckCase]:
        for name, repeat, M, N in (
            ("outputs held over later calls", "held", ROWS_OF_CASES, COLUMNS),
            ("many calls", "many", ROWS_OF_CASES, COLUMNS),
            ("late calls", "late", *SMALL),
            ("calls on two streams", "streams", 2048, LONG),
        ):
            gpu_only = "streams" if repeat == "streams" else ""
            yield replace(self.shape("", direction, M, N), name=name, repeat=repeat, gpu_only=gpu_only)

    def both(self) -> Iterable[CheckCase]:
        yield from (replace(self.shape(f"{M}x{N}", Direction.BOTH, M, N), repeat="once") for M, N in ((37, 257), (6, 8196), (1, 1000)))
        yield from (item for item in self.contract(Direction.BOTH) if item.repeat != "many")
        yield from self.structured(Direction.BOTH)

    def values(self) -> Iterable[CheckCase]:
        def item(
            name: str,
            change: Callable[[torch.Tensor, Draw], torch.Tensor],
            repeat: str = "",
            gpu_only: str = "",
            shape: tuple[int, int] = (ROWS_OF_CASES, COLUMNS),
        ) -> CheckCase:
            def make(draw: Draw) -> Tensors:
                return (change(draw.normal(draw.rows(*shape), shape[1]), draw).to(draw.torch_dtype),)

            return CheckCase(name, Direction.FORWARD, make, repeat=repeat, gpu_only=gpu_only)

        def long(name: str, change: Callable[[torch.Tensor, Draw], torch.Tensor]) -> CheckCase:
            return item(f"long, {name}", change, shape=(2, LONG))

        def put(x: torch.Tensor, where: tuple[int | slice, ...], value: float) -> torch.Tensor:
            x[where] = value
            return x

        def ramp(x: torch.Tensor, sign: int) -> torch.Tensor:
            return torch.linspace(0, sign * 60.0, x.shape[1], device=x.device).expand(x.shape[0], -1).clone()

        def extremes(x: torch.Tensor, draw: Draw) -> torch.Tensor:
            largest = self.extreme * HUGE[draw.dtype]
            return put(put(x, (slice(None), 5), largest), (slice(None), 6), -largest)

        def scaled(scale: float) -> Callable[[torch.Tensor, Draw], torch.Tensor]:
            return lambda x, draw: x * scale

        yield from (item(f"scale {scale:g}", scaled(scale)) for scale in (0.1, 10.0, 100.0))
        yield item("shifted", lambda x, draw: x + MAX_SHIFT[draw.dtype])
        yield item("rows far apart", lambda x, draw: x + 60.0 * torch.arange(x.shape[0], device=x.device)[:, None])
        yield item("constant rows", lambda x, draw: torch.full_like(x, 3.25))
        yield item("one-hot", lambda x, draw: put(torch.full_like(x, -50.0), (slice(None), 777), 50.0))
        yield item("rising", lambda x, draw: ramp(x, 1))
        yield item("falling", lambda x, draw: ramp(x, -1))
        yield item("mass in the last column", lambda x, draw: put(x, (slice(None), COLUMNS - 1), 30.0))
        yield item("all negative", lambda x, draw: -x.abs() - 100)
        yield item("largest and smallest", extremes)
        yield item("all the smallest", lambda x, draw: torch.full_like(x, -HUGE[draw.dtype]))
        yield item("-inf scattered", lambda x, draw: torch.where(x > 1, -math.inf, x))
        yield item("-inf first", lambda x, draw: put(x, (slice(None), slice(0, 700)), -math.inf))
        yield item("a row of -inf", lambda x, draw: put(x, (3, slice(None)), -math.inf))
        yield item("one +inf", lambda x, draw: put(x, (3, 500), math.inf))
        yield item("one NaN", lambda x, draw: put(x, (3, 1000), math.nan))
        yield item("twice the same", lambda x, draw: x, repeat="twice")
        yield item("another stream", lambda x, draw: x, repeat="stream", gpu_only="streams")
        yield long("rising", lambda x, draw: ramp(x, 1))
        yield long("falling", lambda x, draw: ramp(x, -1))
        yield long("constant rows", lambda x, draw: torch.full_like(x, 3.25))
        yield long("mass in the last column", lambda x, draw: put(x, (slice(None), LONG - 1), 30.0))
        yield long("-inf first", lambda x, draw: put(x, (slice(None), slice(0, LONG - 100)), -math.inf))
        yield long("one NaN", lambda x, draw: put(x, (0, LONG - 1), math.nan))

    def layouts(self) -> Iterable[CheckCase]:
        for name, (make, dim) in LAYOUTS.items():
            yield CheckCase(f"layout {name}", Direction.FORWARD, partial(_alone, make), dim=dim)

    def strided(self, direction: Direction) -> Iterable[CheckCase]:
        """Tensors of random strides, each with its own: over each axis of one to five."""
        for rank, dims in STRIDED.items():
            for dim in dims:
                for draw in range(DRAWS):
                    made = partial(self._strided, rank, dim, direction)
                    yield CheckCase(f"strides {draw + 1} of {rank}-D, dim {dim}", direction, made, dim=dim)

    def _strided(self, rank: int, dim: int, direction: Direction, draw: Draw) -> Tensors:
        source = random.Random(draw.generator.initial_seed())
        sizes = [source.randint(1, MOST_LINES[rank]) for _ in range(rank)]
        sizes[dim] = source.choice((2, 17, 33, 65, 100))
        given = [draw.normal(*sizes)]
        if direction is Direction.BACKWARD:
            given.append(self.forward(draw.normal(*sizes).float(), dim=dim).to(given[0].dtype))
        return tuple(strided(tensor, source) for tensor in given)


def unaligned(item: CheckCase, shape: str) -> CheckCase:
    """The case with tensors that begin a few elements after aligned memory, and with NaN or the largest integer around them."""

    def make(draw: Draw) -> Tensors:
        return tuple(_within(tensor, 1 + 2 * number) for number, tensor in enumerate(item.make(draw)))

    return replace(item, name=f"rows aligned to an element {shape}", make=make)


def _within(values: torch.Tensor, offset: int) -> torch.Tensor:
    around = math.nan if values.is_floating_point() else torch.iinfo(values.dtype).max if values.dtype is not torch.bool else 1
    memory = values.new_full((values.numel() + 2 * offset,), around)
    return memory[offset : offset + values.numel()].view(values.shape).copy_(values)


def every_distance(x: torch.Tensor, generator: torch.Generator) -> None:
    """Rows whose distances from the maximum are evenly spread, in random order: a table of exponentials has few finer steps."""
    order = torch.randperm(x.shape[1], generator=generator, device=x.device)
    x.copy_(-DISTANCES * order / x.shape[1])


def strided(values: torch.Tensor, source: random.Random) -> torch.Tensor:
    """The values in other memory, whose gaps are NaN: axes in any order, steps, sizes over theirs, an offset, and expanded axes."""
    sizes, axes = values.shape, range(values.dim())
    for axis in axes:
        if source.random() < 1 / 8:
            values = values.narrow(axis, 0, 1)
    order = source.choice([list(axes), list(axes)[::-1], source.sample(axes, len(axes))])
    steps = [source.choice((1, 1, 1, 2, 3)) for _ in axes]
    padded = [size * step + source.choice((0, 0, 1, 4)) for size, step in zip(values.shape, steps, strict=True)]
    offset = source.choice((0, 0, 1, 3, 64))
    flat = values.new_full((math.prod(padded) + offset,), math.nan)
    places = flat[offset:].view([padded[axis] for axis in order]).permute([order.index(axis) for axis in axes])
    places = places[tuple(slice(None, size * step, step) for size, step in zip(values.shape, steps, strict=True))]
    return places.copy_(values).expand(sizes)


def _alone(make: Callable[[Draw], torch.Tensor], draw: Draw) -> Tensors:
    return (make(draw),)
