"""The words for what is measured: dtype, direction, case, and the timers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import prod
from typing import NamedTuple

DTYPES = {"fp32": 4, "fp16": 2, "bf16": 2}
"""Bytes per element of each dtype."""


OPERATION = "softmax"
"""The operation of a case that names none, as in older files."""
Value = bool | int | float | str
"""The value of an operation's parameter."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")
"""A name of a backend or an operation."""
_WORD = r"[A-Za-z_][A-Za-z0-9_.]{0,63}"
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")
_SETTING = rf"{_WORD}=(?:{_WORD}|{_NUMBER.pattern})"
MAX_PARAMETERS = 16
"""Parameters of an operation, at most."""
OP = re.compile(rf"({NAME.pattern})(?:\(({_SETTING}(?:,{_SETTING}){{0,{MAX_PARAMETERS - 1}}})\))?")
"""The text of an operation with its parameters: `softmax`, `softmax(scale=0.7,out_dtype=fp32)`."""
LONGEST_OP = 256
CPU_TIMER = "torch.utils.benchmark"
TIMERS = ("queued", "do_bench", "device", "graph", "host")
"""Timers on a GPU: events around a queued call, around a call, its kernels, the replay of a CUDA graph, issuing the call.

The first is the default. The second also times calls that wait for the GPU, which cannot be queued."""
DO_BENCH = TIMERS[1]


class Direction(StrEnum):
    """What one timed call computes."""

    FORWARD = "forward"
    """y = softmax(x)."""
    BACKWARD = "backward"
    """dx from (dy, y), without autograd's bookkeeping."""
    BOTH = "both"
    """y and dx through autograd, as in a training step."""
    FUSED = "fused"
    """A result and its gradient in one call, which reads the input once: a loss and dx."""


def safe_name(text: str) -> str:
    """A file's name as a valid backend name, for tables and files."""
    return text if NAME.fullmatch(text) else re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:64] or "plugin"


def parse_op(text: str) -> tuple[str, dict[str, Value]]:
    """The name and the parameters of an operation's text.

    Raises:
        ValueError: it is no such text, or has a parameter twice.
    """
    found = OP.fullmatch(text) if len(text) <= LONGEST_OP else None
    if found is None:
        raise ValueError(f"'{text[:40]}' is no operation; write {OPERATION}, or {OPERATION}(scale=0.7)")
    pairs = [part.partition("=") for part in (found[2] or "").split(",") if part]
    values = {name: parse_value(value) for name, _, value in pairs}
    if len(values) < len(pairs):
        raise ValueError(f"'{text[:40]}' has a parameter twice")
    return found[1], values


def parse_value(text: str) -> Value:
    """A bool from `true` and `false`, a number if the text is one, else the text."""
    if text in ("true", "false"):
        return text == "true"
    if (number := _NUMBER.fullmatch(text)) is None:
        return text
    return float(text) if number[1] or number[2] else int(text)


def value_text(value: Value) -> str:
    """The inverse of `parse_value`; a float that is a whole number has no fraction."""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def op_text(name: str, parameters: Mapping[str, Value]) -> str:
    """The inverse of `parse_op`."""
    inner = ",".join(f"{key}={value_text(value)}" for key, value in parameters.items())
    return f"{name}({inner})" if inner else name


PRESET = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
"""The name of an operation's preset of shapes. A shape begins with a digit."""
AT_DIM = "@dim"
"""Stands before the dimension in a shape's text."""
MAX_EXTENT = 2**48
"""Largest number of rows or columns. It is beyond any memory, and M * N * itemsize stays an exact number."""
MAX_DIMENSIONS = 8
MAX_CELLS = 1_000_000
"""Cells of a run and of a results file, at most: backends times cases. Every command reads a file of so many."""


DIMS = ("B", "H", "S", "N")
"""The axes of attention scores: batch, heads, queries, and keys, which are the columns."""


def first_sees(S: int, N: int) -> int:
    """How many of N keys the first of S queries sees, if none sees a later key: the last query sees all keys if there are as many."""
    return 1 + max(0, N - S)


class Shape(NamedTuple):
    """The shape of a case's tensors where they are not (M, N), and the dimension of the rows."""

    sizes: tuple[int, ...]
    """The sizes of all dimensions."""
    dim: int
    """The dimension that an operation reduces; its size is N. It counts from 0."""

    @property
    def rows(self) -> int:
        """M: the product of the other sizes."""
        return prod(self.sizes[: self.dim] + self.sizes[self.dim + 1 :])

    @property
    def columns(self) -> int:
        """N: the size of the dimension."""
        return self.sizes[self.dim]

    @property
    def plain(self) -> bool:
        """True if the tensors are (M, N)."""
        return len(self.sizes) == 2 and self.dim == 1

    def with_rows(self, most: int) -> Shape:
        """The same dimensions with fewer rows, at most `most`. The last dimensions keep their sizes first."""
        sizes = list(self.sizes)
        for place in reversed(range(len(sizes))):
            if place != self.dim:
                sizes[place] = max(1, min(sizes[place], most))
                most //= sizes[place]
        return Shape(tuple(sizes), self.dim)

    def __str__(self) -> str:
        """`8x16x1024x1024`, or `64x32x1000@dim1` where the dimension is not the last."""
        last = self.dim == len(self.sizes) - 1
        return "x".join(map(str, self.sizes)) + ("" if last else f"{AT_DIM}{self.dim}")


@lru_cache(maxsize=1024)
def shape_of(text: str) -> Shape:
    """The shape of a text that `str` of a Shape gave.

    Raises:
        ValueError: the text is not the shape of a case; the message says why.
    """
    sizes, at, dim = text.partition(AT_DIM)
    words = sizes.split("x")
    if not all(word.isascii() and word.isdecimal() and len(word) < 18 for word in (*words, dim or "0")) or bool(at) != bool(dim):
        raise ValueError(f"'{text[:60]}' is no shape; write sizes with x between them, as in 8x16x1024x1024")
    found = Shape(tuple(map(int, words)), int(dim) if dim else len(words) - 1)
    if not 2 <= len(words) <= MAX_DIMENSIONS:
        raise ValueError(f"'{text[:60]}' is no shape of 2 to {MAX_DIMENSIONS} sizes; for one row give --M 1 and --N")
    if found.dim >= len(words):
        raise ValueError(f"'{text[:60]}' has no dimension {found.dim}; they are 0 to {len(words) - 1}, or -{len(words)} to -1")
    if not all(found.sizes) or max(found.rows, found.columns) > MAX_EXTENT:
        raise ValueError(f"'{text[:60]}' is out of range; each size is at least 1, and there are at most {MAX_EXTENT} rows or columns")
    return found


def valid_shape(text: object, M: int, N: int) -> bool:
    """True if a text from a file is empty, or the shape of an N-D case with so many rows and columns."""
    if not isinstance(text, str):
        return False
    try:
        found = shape_of(text) if text else None
    except ValueError:
        return False
    return found is None or (not found.plain and (found.rows, found.columns, str(found)) == (M, N, text))


class CaseKey(NamedTuple):
    """A case's identity in a results file of one device. Its text is the case's name: `forward-bf16-4096x1024`.

    Other operations than softmax stand in front: `log_softmax-forward-bf16-4096x1024`. An N-D case has its shape in place of MxN.
    """

    direction: str
    dtype: str
    M: int
    N: int
    op: str = OPERATION
    shape: str = ""

    def __str__(self) -> str:
        return f"{pass_name(self.op, self.direction, '-')}-{self.dtype}-{self.size}"

    @property
    def size(self) -> str:
        """The shape: `4096x1024`, or `64x32x1000@dim1`."""
        return self.shape or f"{self.M}x{self.N}"


def pass_name(op: str, direction: str, between: str = " ") -> str:
    """A pass in tables and names: `log_softmax forward`. Softmax has only its direction, as in earlier versions."""
    return direction if op == OPERATION else f"{op}{between}{direction}"


@dataclass(frozen=True, slots=True)
class Case:
    """One operation, shape, dtype, direction and device. The operation's tensors have axes M and N."""

    M: int
    """Rows."""
    N: int
    """Columns: the reduced axis."""
    dtype: str
    """`fp32`, `fp16` or `bf16`."""
    direction: Direction
    """What a call computes."""
    device: str = "cuda"
    """`cuda` or `cpu`."""
    op: str = OPERATION
    """The name of the operation, with the parameters that are not at their default: `softmax(scale=0.7)`."""
    shape: str = ""
    """The shape of an N-D case, such as `8x16x1024x1024`, or `64x32x1000@dim1` with rows along dimension 1; empty if it is (M, N)."""

    @property
    def operation(self) -> str:
        """The name of the operation, without parameters."""
        return parse_op(self.op)[0]

    @property
    def parameters(self) -> dict[str, Value]:
        """The parameters that are not at their default, such as `{"scale": 0.7}`."""
        return parse_op(self.op)[1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of the tensors."""
        return shape_of(self.shape).sizes if self.shape else (self.M, self.N)

    @property
    def dim(self) -> int:
        """The dimension that the operation reduces."""
        return shape_of(self.shape).dim if self.shape else 1

    def of_rows(self, M: int) -> Case:
        """The case of an (M, N) tensor that holds some of the rows, or copies of them."""
        return replace(self, M=M, shape="")

    def with_rows(self, most: int) -> Case:
        """The case with at most so many rows; an N-D case keeps its dimensions."""
        if not self.shape:
            return replace(self, M=min(self.M, most))
        fewer = shape_of(self.shape).with_rows(most)
        return replace(self, M=fewer.rows, shape=str(fewer))

    @property
    def key(self) -> str:
        """The case's name, such as `forward-bf16-4096x1024`; unique in a run."""
        return str(self.identity)

    @property
    def identity(self) -> CaseKey:
        """The case without its device."""
        return CaseKey(self.direction.value, self.dtype, self.M, self.N, self.op, self.shape)


YARDSTICK = "copy"
REFERENCE = "reference"
"""The reference of a problem as a backend."""
