"""The sweep grammar (`256,1024`, `256:8192:256`, `256:65536:*2`, `8x16x1024x1024`) and the cases it makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from softbench.core.case import (
    AT_DIM,
    DIMS,
    DTYPES,
    LONGEST_OP,
    MAX_EXTENT,
    OPERATION,
    PRESET,
    Case,
    CaseKey,
    Direction,
    Value,
    parse_op,
    shape_of,
)
from softbench.core.errors import UsageError
from softbench.core.text import unknown
from softbench.ops.registry import declared, names, operation

MAX_VALUES = 10_000  # of one axis: more is a slip of the pen, and would be weeks of measuring
MAX_CASES = 100_000
DTYPE_ALIASES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
"""torch's names of the dtypes."""
LAST = -1
"""The dimension of the rows unless `--dim` gives another."""
Given = tuple[tuple[str, Value], ...]
"""Parameters of an operation and their values, of one `--set`."""
DEFAULTS: tuple[Given, ...] = ((),)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The cartesian product of its axes: M and N, or shape and dim in their place."""

    M: tuple[int, ...] = ()
    N: tuple[int, ...] = ()
    dtype: tuple[str, ...] = ("fp32",)
    direction: tuple[Direction, ...] = (Direction.FORWARD,)
    op: tuple[str, ...] = (OPERATION,)
    set: tuple[Given, ...] = DEFAULTS
    shape: tuple[str, ...] = ()
    """Texts such as `8x16x1024x1024`; one with `@dim1` has its own dimension. A name is a preset of the operation."""
    dim: tuple[int, ...] = (LAST,)

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
                raise UsageError(f"dim {dim}: {text} has the dimensions 0 to {dimensions - 1}, or -{dimensions} to -1")
            found = shape_of(text if own else f"{text}{AT_DIM}{dim % dimensions}")
            yield found.rows, found.columns, "" if found.plain else str(found)


def _preset(op: str, name: str) -> tuple[str, ...]:
    presets = operation(op).presets
    if name not in presets:
        if not presets:
            raise UsageError(f"--shape {name}: {op} has no presets; give sizes, as in 4096x1024")
        raise UsageError(f"--shape: {unknown(name, presets, f'preset of {op}')}")
    return presets[name].shapes


def parse_axis(text: str, name: str) -> tuple[int, ...]:
    """Whole numbers from a list of values and ranges, in the order written, without repeats.

    A range is `start:stop:step` or `start:stop:*factor`, `stop` included when it is hit.

    Raises:
        UsageError: naming `name`, the part that is wrong, and a way to write it.
    """
    values: dict[int, None] = {}
    for part in text.split(","):
        for value in _part(part.strip(), name):
            values[value] = None
            if len(values) > MAX_VALUES:
                raise UsageError(f"{name} {text}: more than {MAX_VALUES} values; take a larger step, or a factor as in 256:65536:*2")
    return tuple(values)


def _part(part: str, name: str) -> Iterable[int]:
    pieces = part.split(":")
    if len(pieces) == 1:
        return (_positive(part, name),)
    if len(pieces) != 3:
        raise UsageError(f"{name} '{part}': a range is start:stop:step or start:stop:*factor, as in 256:8192:256 or 256:65536:*2")
    start, stop = _positive(pieces[0], name), _positive(pieces[1], name)
    if stop < start:
        raise UsageError(f"{name} '{part}': the range stops before it starts; write {stop}:{start}:{pieces[2]}")
    step = pieces[2].strip()
    if not step.startswith("*"):
        return range(start, stop + 1, _positive(step, name))
    factor = _positive(step[1:], name)
    if factor < 2:
        raise UsageError(f"{name} '{part}': the factor must be at least 2, as in {start}:{stop}:*2")
    return _geometric(start, stop, factor)


def _geometric(start: int, stop: int, factor: int) -> Iterable[int]:
    while start <= stop:
        yield start
        start *= factor


def _positive(text: str, name: str) -> int:
    text = text.strip()
    if not text:
        raise UsageError(f"{name}: a number is missing; lists and ranges look like 256,1024 or 256:8192:256 or 256:65536:*2")
    if not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > 18:
        raise UsageError(f"{name}: '{text}' is not a whole number; lists and ranges look like 256,1024 or 256:8192:256 or 256:65536:*2")
    value = int(text)
    if not 1 <= value <= MAX_EXTENT:
        raise UsageError(f"{name}: {value} is out of range; values are from 1 to {MAX_EXTENT}")
    return value


def parse_shapes(text: str, name: str) -> tuple[str, ...]:
    """Shapes of a sweep from a list such as `8x16x1024x1024,64x32x1000@dim1`, without repeats. Raises as `parse_axis`."""
    try:
        return tuple(dict.fromkeys(_canonical(part.strip()) for part in text.split(",")))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _canonical(text: str) -> str:
    """A shape's text with plain numbers. One that names its dimension keeps it, so that `--dim` does not change it."""
    found = shape_of(text)
    return "x".join(map(str, found.sizes)) + (f"{AT_DIM}{found.dim}" if AT_DIM in text else "")


def parse_shapes_or_presets(text: str, name: str) -> tuple[str, ...]:
    """As `parse_shapes`, for a sweep: a word that begins with a letter is the name of a preset, which `Sweep.extents` looks up."""
    words = dict.fromkeys(part.strip() for part in text.split(","))
    return tuple(one for word in words for one in ((word,) if PRESET.fullmatch(word) else parse_shapes(word, name)))


def parse_dims(text: str, name: str) -> tuple[int, ...]:
    """Dimensions of a sweep from a list such as `-1,1`, without repeats. Raises as `parse_axis`."""
    words = [part.strip() for part in text.split(",")]
    if wrong := [word for word in words if not (word.isascii() and word.removeprefix("-").isdecimal() and len(word) < 4)]:
        raise UsageError(f"{name}: '{wrong[0]}' is no dimension; write -1 for the last, 0 for the first, or several: -1,1")
    return tuple(dict.fromkeys(map(int, words)))


def parse_choices(text: str, name: str, known: Iterable[str], what: str, also: Iterable[str] = ()) -> tuple[str, ...]:
    """Names from a comma-separated list, each one of `known`, without repeats.

    `what` and `also` as in `softbench.core.text.unknown`.

    Raises:
        UsageError: naming `name`, the unknown word and the known ones.
    """
    known = tuple(known)
    chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for word in chosen:
        if word not in known:
            raise UsageError(f"{name}: {unknown(word, known, what, also)}")
    return chosen


def parse_dtypes(text: str, name: str) -> tuple[str, ...]:
    """Dtypes of a sweep: see `parse_choices`. torch's names, such as bfloat16 and half, are known too."""
    short = [DTYPE_ALIASES.get(word.strip().removeprefix("torch."), word) for word in text.split(",")]
    return parse_choices(",".join(short), name, DTYPES, "dtype", DTYPE_ALIASES)


def parse_directions(text: str, name: str) -> tuple[Direction, ...]:
    """Directions of a sweep: see `parse_choices`."""
    return tuple(Direction(word) for word in parse_choices(text, name, [direction.value for direction in Direction], "direction"))


def with_parameters(op: str, given: Given, at: str = "--set") -> str:
    """The text of an operation with these parameters besides its own.

    Raises:
        UsageError: the operation is unknown, or it has no such parameter or value. The message begins with `at`.
    """
    name, own = parse_op(op)
    if name not in names():  # of a baseline, say
        raise UsageError(f"operation {name}: softbench has none of this name; give its file with --op FILE.py")
    try:
        text = declared(name).at({**own, **dict(given)}).text
    except ValueError as error:
        raise UsageError(f"{at} {error}") from None
    if len(text) > LONGEST_OP:
        raise UsageError(f"{at}: {name} with these parameters has {len(text)} characters; a case's operation has at most {LONGEST_OP}")
    return text


def parse_operations(text: str, flag: str) -> tuple[str, ...]:
    """Operations from a list with commas, each a name or a text such as `softmax(scale=0.7)`, without repeats.

    Raises:
        UsageError: naming `flag`, the unknown operation and the known ones.
    """
    found: dict[str, None] = {}
    for word in split(text):
        name = word.partition("(")[0]
        if name not in names():
            raise UsageError(f"{flag}: {unknown(name, names(), 'operation')}")
        try:
            parse_op(word)
        except ValueError as error:
            raise UsageError(f"{flag}: {error}") from None
        found[with_parameters(word, (), flag)] = None
    return tuple(found)


def parse_operation(text: str, flag: str, given: Sequence[Given] = DEFAULTS) -> str:
    """One operation with its parameters: see `parse_operations`."""
    found = [with_parameters(op, one) for op in parse_operations(text, flag) for one in given]
    if len(found) > 1:
        raise UsageError(
            f"{flag} {text}: give one operation" if len(given) == 1 else "--set: give it once, with one value for each parameter"
        )
    return found[0]


def split(text: str) -> list[str]:
    """The parts of a list with commas; the commas between parentheses separate none."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def only(case: CaseKey) -> Sweep:
    """The sweep of one case."""
    found = Sweep((case.M,), (case.N,), (case.dtype,), (Direction(case.direction),), (case.op,))
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
        UsageError: an operation is unknown or lacks a parameter, a pass or a dtype, or there are more than MAX_CASES.
    """
    found: dict[Case, None] = {}
    for sweep in sweeps:
        ops = dict.fromkeys(with_parameters(op, given) for op in sweep.op for given in sweep.set)
        axes = (ops, sweep.direction, sweep.dtype)
        of_shape = (sweep.shape, sweep.dim) if sweep.shape else (sweep.M, sweep.N)
        if prod(map(len, (*axes, *of_shape))) > MAX_CASES:
            raise UsageError(f"the sweep has more than {MAX_CASES} cases; split it into several runs")
        for op in ops:
            require_passes(op, sweep.direction)
            require_dtypes(op, sweep.dtype)
            extents = tuple(sweep.extents(op))
            if operation(op).scores:
                extents = tuple(_of_scores(op, *one) for one in extents)
            elif any(shape for _, _, shape in extents) and not operation(op).any_dim:
                raise UsageError(f"--shape: {op} takes (M, N) tensors only; give --M and --N, or a shape of two sizes")
            for direction, dtype, (M, N, shape) in product(*axes[1:], extents):
                if direction in operation(op).passes and dtype in operation(op).dtypes:
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
