"""torch and numpy, imported when something of them is first used.

The parent process reads the declaration of an operation from the file that also has its arithmetic, and it never imports torch. A plugin
that exchanges a package in `sys.modules` is found by the tamper guard. An import statement would call `builtins.__import__`, which a plugin
may replace.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

_MODULES = sys.modules

if TYPE_CHECKING:
    import numpy as numpy
    import numpy.typing
    import torch as torch
else:

    class Torch:
        """torch, without a state that could be exchanged."""

        __slots__ = ()

        def __getattr__(self, name: str) -> Any:
            return getattr(_MODULES["torch"] if "torch" in _MODULES else import_module("torch"), name)

    class Numpy:
        """numpy, as `Torch`."""

        __slots__ = ()

        def __getattr__(self, name: str) -> Any:
            return getattr(_MODULES["numpy"] if "numpy" in _MODULES else import_module("numpy"), name)

    torch, numpy = Torch(), Numpy()
