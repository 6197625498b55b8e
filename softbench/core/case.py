"""The words for what is measured: dtype, direction, case, and the timers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
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
OP = re.compile(rf"({NAME.pattern})(?:\(({_SETTING}(?:,{_SETTING}){{0,15}})\))?")
"""The text of an operation with its parameters: `softmax`, `softmax(scale=0.7,out_dtype=fp32)`."""
LONGEST_OP = 256
CPU_TIMER = "torch.utils.benchmark"
TIMERS = ("do_bench", "device", "graph", "host")
"""Timers on a GPU: events around a call, its kernels, the replay of a CUDA graph, issuing the call."""


class Direction(StrEnum):
    """What one timed call computes."""

    FORWARD = "forward"
    """y = softmax(x)."""
    BACKWARD = "backward"
    """dx from (dy, y), without autograd's bookkeeping."""
    BOTH = "both"
    """y and dx through autograd, as in a training step."""


def parse_op(text: str) -> tuple[str, dict[str, Value]]:
    """The name and the parameters of an operation's text.

    Raises:
        ValueError: it is no such text.
    """
    found = OP.fullmatch(text) if len(text) <= LONGEST_OP else None
    if found is None:
        raise ValueError(f"'{text[:40]}' is no operation; write {OPERATION}, or {OPERATION}(scale=0.7)")
    pairs = [part.partition("=") for part in (found[2] or "").split(",") if part]
    return found[1], {name: parse_value(value) for name, _, value in pairs}


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


class CaseKey(NamedTuple):
    """A case's identity in a results file of one device. Its text is the case's name: `forward-bf16-4096x1024`.

    Other operations than softmax stand in front: `log_softmax-forward-bf16-4096x1024`.
    """

    direction: str
    dtype: str
    M: int
    N: int
    op: str = OPERATION

    def __str__(self) -> str:
        return f"{pass_name(self.op, self.direction, '-')}-{self.dtype}-{self.M}x{self.N}"


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
    """A key of DTYPES."""
    direction: Direction
    device: str = "cuda"
    """`cuda` or `cpu`."""
    op: str = OPERATION
    """A name of `softbench.ops.registry`, with the parameters that are not at their default: `softmax(scale=0.7)`."""

    @property
    def operation(self) -> str:
        """The name of the operation, without parameters."""
        return parse_op(self.op)[0]

    @property
    def parameters(self) -> dict[str, Value]:
        """The parameters that are not at their default, such as `{"scale": 0.7}`."""
        return parse_op(self.op)[1]

    @property
    def key(self) -> str:
        """The case's name, such as `forward-bf16-4096x1024`; unique in a run."""
        return str(self.identity)

    @property
    def identity(self) -> CaseKey:
        """The case without its device."""
        return CaseKey(self.direction.value, self.dtype, self.M, self.N, self.op)


YARDSTICK = "copy"
