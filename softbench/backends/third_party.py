"""Softmax kernels of other projects: `quack` (CuTe DSL), `liger` and `flaggems` (Triton), `flashinfer` (CUDA C++). Each needs its package.

The timed call is the project's own entry point. Its output allocation and its look-ups count, as they do for its users.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from softbench.backends import nvidia, third_party_losses
from softbench.backends.autograd import differentiable
from softbench.backends.directions import EMPTY, by_direction
from softbench.core.case import DTYPES, Case, Direction
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call


class ThirdParty:
    """Base class: a module of a package that may be missing."""

    name: str
    package: str
    """Name of the package for pip."""
    module: str
    """The module with the kernels."""
    needs = ""
    """The package to find if `module` is softbench's own."""
    install: str
    advice: str
    compiles: bool | str = True
    only_nvidia = False

    def available(self) -> str | None:
        if self.only_nvidia and torch.version.hip is not None:
            return nvidia.missing()
        try:
            if importlib.util.find_spec(self.needs or self.module.partition(".")[0]) is None:
                return f"{self.package} is not installed; where there is a CUDA GPU: {self.install}"
            if not torch.cuda.is_available():
                return "no CUDA GPU here"
            self._module()
        except Exception as error:  # a DSL that does not find its libraries can raise anything
            reason = one_line(f"{type(error).__name__}: {error}", 150)
            newer = self.install.replace("install", "install -U", 1)
            return f"{self.module} cannot be imported ({reason}); it may not fit the other packages: {newer}"
        return None

    def sources(self) -> list[Path]:
        """The Python files of the imported kernel package. A resumed run measures a changed package again."""
        file = getattr(sys.modules.get(self.module), "__file__", None)
        return sorted(Path(file).parent.glob("*.py")) if file else []

    def _module(self) -> ModuleType:
        """The module from `sys.modules`: the function `quack.softmax` hides the attribute of that name."""
        return importlib.import_module(self.module)


QUACK_TILE_BYTES = 256 * 16  # 256 threads load 16 bytes each: shared memory is allocated in such steps
QUACK_WARPS = 8
QUACK_KERNELS = {"quack.softmax": ("Softmax", "SoftmaxBackward"), "quack.cross_entropy": ("CrossEntropy", "CrossEntropyBackward")}


class Quack(ThirdParty):
    """Dao-AILab's quack: CuTe DSL, a row in the shared memory of up to 16 CTAs, compiled for each N."""

    name, package, module = "quack", "quack-kernels", "quack.softmax"
    install = "pip install quack-kernels (for CUDA 13: 'quack-kernels[cu13]')"
    operations = ("softmax", third_party_losses.QUACK)
    only_nvidia = True
    advice = "for few, aligned N on Hopper or newer, if a build for each N is acceptable"

    def supports(self, case: Case) -> str | None:
        vector = 16 // DTYPES[case.dtype]
        if case.N % vector and case.operation == "softmax":
            return f"it reads rows in 16-byte vectors: N must be a multiple of {vector} in {case.dtype}"
        if (most := self._most_columns(case)) < case.N:
            return f"a row must fit the shared memory of one cluster of CTAs: N is at most {most} here"
        return None

    def _most_columns(self, case: Case) -> int:
        """The longest row that the largest cluster can store (`_set_cluster_n` in quack).

        Each CTA stores its part of x, or of softmax's dy and y, and the exchange buffer. quack chooses a smaller cluster only for rows that
        fit it.
        """
        card: Any = torch.cuda.get_device_properties(torch.cuda.current_device())  # torch's type stub misses a property
        cluster = 1 if card.major < 9 else 8 if card.major == 12 else 16
        exchange = 8 * (QUACK_WARPS * cluster + 1)
        tensors = 1 if case.direction is Direction.FORWARD or case.operation != "softmax" else 2
        tiles = (card.shared_memory_per_block_optin - exchange) // (tensors * QUACK_TILE_BYTES)
        most: int = cluster * tiles * QUACK_TILE_BYTES // DTYPES[case.dtype]
        return most

    def compilations(self) -> int:
        """The number of times that quack's kernels called their compiler. A kernel from quack's cache on disk does not count."""
        found = 0
        for module, kernels in QUACK_KERNELS.items():
            with suppress(KeyError, AttributeError):  # it is not imported, or is another version
                found += sum(getattr(sys.modules[module], kernel).compile.cache_info().misses for kernel in kernels)
        return found

    def prepare(self, case: Case) -> Call:
        if case.operation != "softmax":
            return third_party_losses.quack_cross_entropy(case)
        quack = self._module()
        return by_direction(case, quack.softmax if case.direction is Direction.BOTH else quack.softmax_fwd, quack.softmax_bwd)


LIGER_MAX_COLUMNS = 65536  # MAX_FUSED_SIZE: Liger's `calculate_settings` raises for a longer row


class Liger(ThirdParty):
    """LinkedIn's Liger-Kernel: Triton, one block per row; its 16-bit backward multiplies in 16 bits."""

    name, package, module = "liger", "liger-kernel", "liger_kernel.ops.softmax"
    install = "pip install liger-kernel"
    operations = ("softmax", third_party_losses.LIGER)
    advice = "if Liger's other kernels are in use; N up to 65536"

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        if case.M * case.N == 0 and (case.N == 0 or case.operation != "softmax"):
            return EMPTY
        if case.operation != "softmax":
            return third_party_losses.liger_refuses(case)
        return f"a row must fit one block: N is at most {LIGER_MAX_COLUMNS}" if case.N > LIGER_MAX_COLUMNS else None

    def prepare(self, case: Case) -> Call:
        """The forward returns y only. The backward gets the launch settings that Liger's autograd would save.

        The functions come from the module: the package can select another implementation by LIGER_KERNEL_IMPL.
        """
        if case.operation != "softmax":
            return third_party_losses.liger_cross_entropy(case)
        liger = self._module()
        settings = liger.calculate_settings(case.N)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = liger._softmax_forward(x)[0]
            return y

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx: torch.Tensor = liger._softmax_backward(dy, y, *settings, False)  # False: one block per row
            return dx

        return by_direction(case, liger.LigerSoftmaxFunction.apply if case.direction is Direction.BOTH else forward, backward)


class FlagGems(ThirdParty):
    """BAAI's FlagGems: Triton, online or in one block by N; the backward is autotuned."""

    name, package, module = "flaggems", "flag-gems", "flag_gems.ops.softmax"
    operations = ("softmax", "log_softmax")
    install = "pip install flag-gems, of a version that fits this torch and Triton"
    advice = "if all operators of a model come from FlagGems"

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        return EMPTY if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Call:
        """A module and its functions have the name of the operation."""
        gems = importlib.import_module(f"flag_gems.ops.{case.operation}")
        gems_forward, gems_backward = getattr(gems, case.operation), getattr(gems, f"{case.operation}_backward")

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = gems_forward(x, -1)
            return y

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx: torch.Tensor = gems_backward(dy, y, -1, y.dtype)
            return dx

        return by_direction(case, differentiable(forward, backward) if case.direction is Direction.BOTH else forward, backward)


class FlashInfer(ThirdParty):
    """FlashInfer's sampling.softmax: online, CUDA C++, with a temperature; the result is float32."""

    name, package, module = "flashinfer", "flashinfer-python", "flashinfer.sampling"
    operations = ("softmax(scale,out_dtype)",)
    only_nvidia = True
    install = "pip install flashinfer-python"
    advice = "if the probabilities of a sampler come from logits with a temperature"

    def supports(self, case: Case) -> str | None:
        if case.direction is not Direction.FORWARD:
            return "it has only the forward"
        if case.dtype != "fp32" and "out_dtype" not in case.parameters:
            return "its result is float32: add --set out_dtype=fp32"
        return EMPTY if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Call:
        """The temperature is 1 / scale. That of each row is computed in the call, from the scales that it gets."""
        softmax, value = self._module().softmax, case.parameters.get("scale", 1.0)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = softmax(x, temperature=1.0 / float(value))
            return y

        def forward_of_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = softmax(x, temperature=scale.reciprocal())
            return y

        return forward_of_rows if value == "row" else forward


quack, liger, flaggems, flashinfer = Quack(), Liger(), FlagGems(), FlashInfer()
