"""The operations by name. Other packages reach an operation only through this module.

An operation is a package beside this module: its module `spec` has OPERATION, and its module `numerics` has NUMERICS.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from softbench.ops.numerics import Numerics
    from softbench.ops.operation import Operation

NAMES = ("softmax",)
"""The names of all operations."""


@cache
def operation(name: str) -> Operation:
    """The operation of this name, a case's `op`.

    Raises:
        KeyError: there is none.
    """
    if name not in NAMES:
        raise KeyError(name)
    found: Operation = import_module(f".{name}.spec", __package__).OPERATION
    return found


def numerics(name: str) -> Numerics:
    """The values of the operation of this name. It imports torch, so only workers call it. Raises as `operation`."""
    found: Numerics = import_module(f".{operation(name).name}.numerics", __package__).NUMERICS
    return found
