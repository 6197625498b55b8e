"""torch and numpy, imported when something of them is first used.

The parent process reads the declaration of an operation from the file that also has its arithmetic, and it never imports torch. A plugin
that exchanges a package in `sys.modules` is found by the tamper guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as numpy
    import numpy.typing
    import torch as torch
else:

    class Torch:
        """torch, without a state that could be exchanged."""

        __slots__ = ()

        def __getattr__(self, name: str) -> Any:
            import torch

            return getattr(torch, name)

    class Numpy:
        """numpy, as `Torch`."""

        __slots__ = ()

        def __getattr__(self, name: str) -> Any:
            import numpy

            return getattr(numpy, name)

    torch, numpy = Torch(), Numpy()
