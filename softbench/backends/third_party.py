"""Other projects' softmax kernels as backends, each where its package is installed: `quack` (CuTe DSL), `liger` and `flaggems` (Triton).

What is timed is their own entry point: its allocation of the output and its look-ups count, as they would for their users.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from softbench.backends.autograd import differentiable
from softbench.backends.directions import by_direction
from softbench.core.case import DTYPES, Case, Direction
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler


class Peer:
    """What they have in common: a module of a package that may be missing."""

    name: str
    package: str
    """As pip calls it."""
    module: str
    """What is called, or what calls it."""
    needs = ""
    """What must be installed, where the module is ours."""
    install: str
    advice: str
    compiles: bool | str = True

    def available(self) -> str | None:
        try:
            if importlib.util.find_spec(self.needs or self.module.partition(".")[0]) is None:
                return f"{self.package} is not installed; where there is a CUDA GPU: {self.install}"
            if not torch.cuda.is_available():
                return "no CUDA GPU here"
            self._module()
        except Exception as error:  # beside ImportError: what a DSL raises that does not find its libraries
            told = one_line(f"{type(error).__name__}: {error}", 150)
            newer = self.install.replace("install", "install -U", 1)
            return f"{self.module} cannot be imported ({told}); it may not fit the packages beside it: {newer}"
        return None

    def sources(self) -> list[Path]:
        """The files beside the kernels' module, once it is imported: another version of the package is measured anew."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        return sorted(Path(file).parent.glob("*.py")) if file else []

    def _module(self) -> Any:
        """By name in `sys.modules`: the attribute `quack.softmax` is a function that hides the module."""
        return importlib.import_module(self.module)


QUACK_TILE_BYTES = 256 * 16  # a CTA of 256 threads loads a vector each: shared memory is taken in steps of this
QUACK_WARPS = 8


class Quack(Peer):
    """Dao-AILab's quack: CuTe DSL, one read, a row in shared memory of up to 16 CTAs; compiled anew for each N."""

    name, package, module = "quack", "quack-kernels", "quack.softmax"
    install = "pip install quack-kernels (for CUDA 13: 'quack-kernels[cu13]')"
    advice = "for few, aligned N on Hopper or newer, where a build for each N does not hurt"

    def supports(self, case: Case) -> str | None:
        vector = 16 // DTYPES[case.dtype]
        if case.N % vector:
            return f"it reads rows by 16-byte vectors: N must be a multiple of {vector} in {case.dtype}"
        if (most := self._most_columns(case)) < case.N:
            return f"a row must fit the shared memory of one cluster of CTAs: N is at most {most} here"
        return None

    def _most_columns(self, case: Case) -> int:
        """The longest row: the largest cluster's (`_set_cluster_n`), each CTA holding its part of x, or of dy and y, and the exchange.

        Rows for which quack chooses a smaller cluster are shorter than its threshold, and their parts fit.
        """
        card: Any = torch.cuda.get_device_properties(torch.cuda.current_device())  # torch's stub lacks a property
        cluster = 1 if card.major < 9 else 8 if card.major == 12 else 16
        exchange = 8 * (QUACK_WARPS * cluster + 1)
        tensors = 1 if case.direction is Direction.FORWARD else 2
        tiles = (card.shared_memory_per_block_optin - exchange) // (tensors * QUACK_TILE_BYTES)
        most: int = cluster * tiles * QUACK_TILE_BYTES // DTYPES[case.dtype]
        return most

    def prepare(self, case: Case) -> Callable[..., Any]:
        quack = self._module()
        return by_direction(case, quack.softmax if case.direction is Direction.BOTH else quack.softmax_fwd, quack.softmax_bwd)


LIGER_MAX_COLUMNS = 65536  # MAX_FUSED_SIZE of its `calculate_settings`, which raises beyond it


class Liger(Peer):
    """LinkedIn's Liger-Kernel: Triton, a row a program in one block; its 16-bit backward multiplies in 16 bits."""

    name, package, module = "liger", "liger-kernel", "liger_kernel.ops.softmax"
    install = "pip install liger-kernel"
    advice = "where Liger's other kernels are in use already; N up to 65536"

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        if case.N == 0:
            return "it takes no rows without elements"
        return f"a row must fit one block: N is at most {LIGER_MAX_COLUMNS}" if case.N > LIGER_MAX_COLUMNS else None

    def prepare(self, case: Case) -> Callable[..., Any]:
        """The forward is asked for y alone. The backward gets the launch settings, which its autograd keeps from the forward.

        From the module, not the package: that gives another implementation where LIGER_KERNEL_IMPL asks for one.
        """
        liger = self._module()
        settings = liger.calculate_settings(case.N)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = liger._softmax_forward(x)[0]
            return y

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx: torch.Tensor = liger._softmax_backward(dy, y, *settings, False)  # False: never several blocks a row
            return dx

        return by_direction(case, liger.LigerSoftmaxFunction.apply if case.direction is Direction.BOTH else forward, backward)


class FlagGems(Peer):
    """BAAI's FlagGems: Triton, a row a program, online or in one block by N; configurations by rule, its backward's autotuned."""

    name, package, module = "flaggems", "flag-gems", "flag_gems.ops.softmax"
    install = "pip install flag-gems, of a version that fits this torch and Triton"
    advice = "where all of a model's operators come from FlagGems"

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        return "it takes no rows without elements" if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Callable[..., Any]:
        gems = self._module()

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = gems.softmax(x, -1)
            return y

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx: torch.Tensor = gems.softmax_backward(dy, y, -1, y.dtype)
            return dx

        return by_direction(case, differentiable(forward, backward) if case.direction is Direction.BOTH else forward, backward)


quack, liger, flaggems = Quack(), Liger(), FlagGems()
