"""The settings that the functions of Python have as keywords, with their types, for editors and type checkers.

A setting is declared in `softbench.plan`; here is only what Python takes for it. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from softbench.core.case import Value

Axis = int | str | Iterable[int | str]
"""The values of an axis: `4096`, `[256, 512]`, `range(256, 8192, 256)`, or a text such as `"256:8192:*2"`."""
Words = str | Iterable[str] | Any
"""One or several words. A dtype may be one of torch: `torch.bfloat16`."""
Operations = str | PathLike[str] | Sequence[str | PathLike[str]] | None
"""An operation's name, the Python file of one, or several."""


class CheckKeywords(TypedDict, total=False):
    """The keywords of `check`."""

    plugins: str | Path | list[str | Path]
    set: Mapping[str, Value] | str | Sequence[Mapping[str, Value] | str]
    device: Any
    """`auto`, `cpu`, `cuda`, `cuda:K`, or a device of torch."""
    seed: int
    timeout: float | str | Mapping[str, float]


class GateKeywords(CheckKeywords, total=False):
    """The keywords of `run_gate`."""

    M: Axis
    N: Axis
    dtype: Words
    direction: Words
    shape: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
    dim: int | str | Sequence[int]
    threads: int
    rounds: int
    processes: int
    wait: float | str


class RunKeywords(GateKeywords, total=False):
    """The keywords of `compare`."""

    max_rounds: int
    precision: float
    relative_to: str
    timer: str
    l2: str
    profile: str


KEYWORDS = {"run": RunKeywords, "gate": GateKeywords, "check": CheckKeywords}
"""The keywords of the function of each command."""
