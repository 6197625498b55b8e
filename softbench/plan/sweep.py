"""A sweep: axes, and the cases that are their product."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod

from softbench.core.case import AT_DIM, DIMS, DTYPES, MAX_CELLS, OPERATION, PRESET, Case, CaseKey, Direction, parse_op, shape_of
from softbench.core.errors import UsageError
from softbench.core.text import unknown
from softbench.ops.operation import Operation
from softbench.ops.registry import NAMES as BUILT_IN, declared as declared_operation, names, operation
from softbench.plan.declare import EVERY, axis, declared
from softbench.plan.grammar import (
    DEFAULTS,
    Given,
    parameters_from_toml,
    parse_axis,
    parse_dims,
    parse_directions,
    parse_dtypes,
    parse_operations,
    parse_parameters,
    parse_shapes_or_presets,
    with_parameters,
)

LAST = -1
"""The dimension of the rows unless `--dim` gives another."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The cartesian product of its axes: M and N, or shape and dim in their place."""

    M: tuple[int, ...] = axis((), parse_axis, "Rows: 4096, or 256,1024, or 256:8192:256, or 256:65536:*2.", shown="of --config")
    N: tuple[int, ...] = axis((), parse_axis, "Columns, the reduced axis; written like --M.", shown="of --config")
    shape: tuple[str, ...] = axis(
        (),
        parse_shapes_or_presets,
        "In place of --M and --N: 8x16x1024x1024, a preset such as vocabularies, or several.",
        shown="M by N",
    )
    """Texts such as `8x16x1024x1024`; one with `@dim1` has its own dimension. A name is a preset of the operation."""
    dim: tuple[int, ...] = axis(
        (LAST,),
        parse_dims,
        "The reduced dimension of --shape: -1 is the last, 0 the first; or several: -1,1.",
    )
    dtype: tuple[str, ...] = axis(("fp32",), parse_dtypes, "fp32, fp16, bf16, or several.", words=tuple(DTYPES), commands=EVERY)
    direction: tuple[Direction, ...] = axis(
        (Direction.FORWARD,),
        parse_directions,
        "forward, backward, both (autograd), fused (output and gradient in one call), or several.",
        words=tuple(direction.value for direction in Direction),
        commands=EVERY,
    )
    op: tuple[str, ...] = axis(
        (OPERATION,),
        parse_operations,
        "Operations, by name or Python file; softbench list --ops has the names. "
        "Or a problem: FILE.py, kernelbench:FILE.py[,SOLUTION.py], kernelbot:FOLDER[,...], flashinfer:FILE.json "
        "or backendbench:FOLDER[,TRACES.txt].",
        words=BUILT_IN,
        also=("--problem",),
        commands=EVERY,
    )
    set: tuple[Given, ...] = axis(
        DEFAULTS,
        parse_parameters,
        "Parameters of the operation: scale=0.7,out_dtype=fp32. Repeated, each makes cases of its own.",
        read=parameters_from_toml,
        repeats=True,
        shown="the defaults",
        metavar="NAME=VALUE",
        commands=EVERY,
    )

    def extents(self, op: str) -> Iterator[tuple[int, int, str]]:
        """M, N and shape of the cases of an operation, in order; the shape is empty where the tensors are (M, N).

        Raises:
            UsageError: a shape has no such dimension, or the operation has no such preset.
        """
        yield from ((M, N, "") for M, N in product(self.M, self.N) if not self.shape)
        shapes = [text for word in self.shape for text in (_preset(op, word) if PRESET.fullmatch(word) else (word,))]
        for text, dim in product(dict.fromkeys(shapes), self.dim):
            dimensions, own = text.count("x") + 1, AT_DIM in text
            if not own and not -dimensions <= dim < dimensions:
                raise UsageError(f"--dim {dim}: {text} has the dimensions 0 to {dimensions - 1}, or -{dimensions} to -1")
            found = shape_of(text if own else f"{text}{AT_DIM}{dim % dimensions}")
            yield found.rows, found.columns, "" if found.plain else str(found)


AXES = declared(Sweep)
"""The axes, by name."""


def _preset(op: str, name: str) -> tuple[str, ...]:
    presets = operation(op).presets
    if name not in presets:
        if not presets:
            raise UsageError(f"--shape {name}: {op} has no presets; give sizes, as in 4096x1024")
        raise UsageError(f"--shape: {unknown(name, presets, f'preset of {op}')}")
    return presets[name].shapes


def only(case: CaseKey) -> Sweep:
    """The sweep of one case."""
    found = Sweep((case.M,), (case.N,), dtype=(case.dtype,), direction=(Direction(case.direction),), op=(case.op,))
    return replace(found, M=(), N=(), shape=(case.shape,)) if case.shape else found


def require_passes(op: str, directions: Iterable[str]) -> None:
    """Raises a UsageError if an operation has none of the directions."""
    if not set(directions) & set(there := list(operation(op).passes)):
        raise UsageError(f"--direction {','.join(directions)}: {op} has only {', '.join(there)}")


def require_dtypes(op: str, dtypes: Iterable[str]) -> None:
    """Raises a UsageError if the parameters of an operation are for none of the dtypes."""
    if not set(dtypes) & set(there := operation(op).dtypes):
        raise UsageError(f"--dtype {','.join(dtypes)}: {op} is for {', '.join(there)} only")


def cases(sweeps: Iterable[Sweep], device: str) -> tuple[Case, ...]:
    """Every case of the sweeps once: by operation, direction, dtype and M, and N in the order written.

    Raises:
        UsageError: an operation is unknown or lacks a parameter, a pass or a dtype, or there are more than MAX_CELLS.
    """
    given = tuple(sweeps)
    ops = dict.fromkeys(parse_op(op)[0] for sweep in given for op in sweep.op)
    return _cases(given, device, tuple(declared_operation(op) for op in ops if op in names()))


@lru_cache(maxsize=2)  # the cards of a fleet share them
def _cases(sweeps: tuple[Sweep, ...], device: str, operations: tuple[Operation, ...]) -> tuple[Case, ...]:
    """The cases, as long as the operations are declared so."""
    found: dict[Case, None] = {}
    for sweep in sweeps:
        ops = dict.fromkeys(with_parameters(op, given) for op in sweep.op for given in sweep.set)
        axes = (ops, sweep.direction, sweep.dtype)
        of_shape = (sweep.shape, sweep.dim) if sweep.shape else (sweep.M, sweep.N)
        if len(found) + prod(map(len, (*axes, *of_shape))) > MAX_CELLS:  # before they are made
            raise UsageError(f"the sweep has more than {MAX_CELLS} cases, and a run has at most so many cells; split it into several runs")
        for op in ops:
            require_passes(op, sweep.direction)
            require_dtypes(op, sweep.dtype)
            if (there := operation(op)).whole:
                for dtype, ((text, M, N, shape), one) in product(sweep.dtype, there.cases.items()):
                    if dtype in there.dtypes and one.dtype in ("", dtype):
                        found[Case(M, N, dtype, Direction.FORWARD, device, text, shape)] = None
                continue
            extents = tuple(sweep.extents(op))
            if operation(op).scores:
                extents = tuple(_of_scores(op, *one) for one in extents)
            elif any(shape for _, _, shape in extents) and not operation(op).any_dim:
                raise UsageError(f"--shape: {op} takes (M, N) tensors only; give --M and --N, or a shape of two sizes")
            directions = [direction for direction in sweep.direction if direction in there.passes]
            dtypes = [dtype for dtype in sweep.dtype if dtype in there.dtypes]
            for direction, dtype, (M, N, shape) in product(directions, dtypes, extents):
                found[Case(M, N, dtype, direction, device, op, shape)] = None
    return tuple(found)


def _of_scores(op: str, M: int, N: int, shape: str) -> tuple[int, int, str]:
    """M, N and shape of scores. Without a shape they are those of M queries of one head."""
    found = shape_of(shape) if shape else None
    if found and (len(found.sizes) != len(DIMS) or found.dim != len(DIMS) - 1):
        raise UsageError(f"--shape {shape}: {op} takes shapes of {', '.join(DIMS)} with rows along N, as in 8x16x1024x1024")
    return M, N, shape or f"1x1x{M}x{N}"


def thinned(values: tuple[int, ...], keep: int) -> tuple[int, ...]:
    """At most `keep` of the values, evenly spread, the first and last among them."""
    if len(values) <= keep:
        return values
    return tuple(dict.fromkeys(values[round(i * (len(values) - 1) / (keep - 1))] for i in range(keep)))
