"""The grammar of a sweep's axes: `256,1024`, `256:8192:256`, `256:65536:*2`, `8x16x1024x1024`, `softmax(scale=0.7)`, `scale=0.7`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path

from softbench.core.case import (
    AT_DIM,
    DTYPES,
    LONGEST_OP,
    MAX_CELLS,
    MAX_EXTENT,
    PRESET,
    Direction,
    Value,
    parse_op,
    parse_value,
    shape_of,
    value_text,
)
from softbench.core.errors import ConfigError, UsageError
from softbench.core.text import did_you_mean_file, one_line, unknown
from softbench.ops.registry import declared, names

DTYPE_ALIASES = {"float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
"""torch's names of the dtypes."""
Given = tuple[tuple[str, Value], ...]
"""Parameters of an operation and their values, of one `--set`."""
DEFAULTS: tuple[Given, ...] = ((),)


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
            if len(values) > MAX_CELLS:
                raise UsageError(f"{name} {text}: more than {MAX_CELLS} values; take a larger step, or a factor as in 256:65536:*2")
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
    if not (text.isascii() and text.removeprefix("-").isdigit()):
        raise UsageError(f"{name}: '{text}' is not a whole number; lists and ranges look like 256,1024 or 256:8192:256 or 256:65536:*2")
    if len(text) > len(str(MAX_EXTENT)) or not 1 <= int(text) <= MAX_EXTENT:
        raise UsageError(f"{name}: {one_line(text, 30)} is out of range; values are from 1 to {MAX_EXTENT}")
    return int(text)


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


def parse_parameters(texts: Iterable[str], flag: str) -> tuple[Given, ...]:
    """The parameters of each text, such as `scale=0.7,out_dtype=fp32`. A range, as in `K=64:256:64`, makes one for each number.

    Raises:
        UsageError: a part is not NAME=VALUE, or a name comes twice.
    """
    found: dict[Given, None] = {}
    for text in texts:
        values: dict[str, Sequence[Value]] = {}
        for part in text.split(","):
            name, sign, value = (piece.strip() for piece in part.partition("="))
            if not name or not sign or not value:
                raise UsageError(f"{flag} {text}: write NAME=VALUE, as in scale=0.7,out_dtype=fp32")
            if name in values:
                raise UsageError(f"{flag} {text}: {name} comes twice; repeat {flag} for cases of its own")
            values[name] = _values(value, f"{flag} {name}")
        found |= dict.fromkeys(_combined(values))
    return tuple(found)


def parameters_from_toml(value: object, at: str) -> tuple[Given, ...]:
    """The parameters of a table such as `{scale = [0.5, 1.0], out_dtype = "fp32"}`, or of a list of such tables.

    Raises:
        ConfigError: it is none.
    """
    found: dict[Given, None] = {}
    for table in value if isinstance(value, list) else [value]:
        if not isinstance(table, dict):
            raise ConfigError(f"{at}: must be a table such as {{scale = 0.7}}, or a list of tables, not {table!r}")
        values: dict[str, Sequence[Value]] = {}
        for name, given in table.items():
            items = given if isinstance(given, list) else [given]
            if not items or not all(isinstance(item, bool | int | float | str) for item in items):
                raise ConfigError(f"{at}.{name}: must be a number, a text, true, false or a list of them, not {given!r}")
            values[name] = [one for item in items for one in (_values(item, f"{at}.{name}") if isinstance(item, str) else (item,))]
        found |= dict.fromkeys(_combined(values))
    if not found:
        raise ConfigError(f"{at}: is empty; leave it out, or write set = {{scale = 0.7}}")
    return tuple(found)


def _values(text: str, at: str) -> Sequence[Value]:
    if ":" in text:
        return parse_axis(text, at)
    try:
        number = float(text)
    except ValueError:
        return (parse_value(text),)
    return (parse_value(value_text(number)),)


def _combined(values: Mapping[str, Sequence[Value]]) -> list[Given]:
    return [tuple(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


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
            with suppress(OSError):  # of a text that is too long for the name of a file
                if Path(f"{name}.py").is_file():
                    raise UsageError(f"{flag}: unknown operation '{name}'{did_you_mean_file(Path(name))}")
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
