"""softbench's plain softmax kernels in other GPU languages: `helion`, `cupy` and `numba`. Each needs its package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from softbench.backends.calls import EMPTY, Pair, by_direction, differentiable
from softbench.backends.third_party import ThirdParty
from softbench.core.case import Case, Direction
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler
from softbench.ops.dtypes import DTYPES
from softbench.plugins.backend import Call


class Language(ThirdParty):
    """Base of the three: a module of softbench imports a package that may be missing."""

    def supports(self, case: Case) -> str | None:
        return EMPTY if case.M * case.N == 0 else None

    def sources(self) -> list[Path]:
        """softbench's module, and the root module of the package, which names its version."""
        modules = (sys.modules.get(name) for name in (self.module, self.needs))
        return [Path(module.__file__) for module in modules if module is not None and module.__file__]

    def kernels(self, case: Case) -> Pair:
        """Forward and backward functions without autograd."""
        raise NotImplementedError

    def prepare(self, case: Case) -> Call:
        forward, backward = self.kernels(case)
        return by_direction(case, differentiable(forward, backward) if case.direction is Direction.BOTH else forward, backward)


class Helion(Language):
    """Softmax in Helion: a row per program, fixed configurations by N. Triton compiles it for each shape."""

    name, package, needs, module = "helion", "helion", "helion", "softbench.backends.helion_softmax"
    install = "pip install helion"
    advice = "to write a kernel in PyTorch syntax; Helion's autotuner is off here"

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def kernels(self, case: Case) -> Pair:
        found: Pair = self._module().kernels(case.N)
        return found


class CuPy(Language):
    """A plain CUDA C++ kernel through CuPy's RawModule: a CTA per row, two passes. NVRTC compiles it for each N."""

    name, package, needs, module = "cupy", "cupy", "cupy", "softbench.backends.cupy_softmax"
    only_nvidia = True
    install = "pip install cupy-cuda13x (for CUDA 12: cupy-cuda12x)"
    advice = "for a CUDA C++ kernel without nvcc and without a build step"
    compiles = "always"

    def kernels(self, case: Case) -> Pair:
        found: Pair = self._module().kernels(case.N, DTYPES[case.dtype])
        return found


class Numba(Language):
    """A plain kernel in Numba's CUDA Python: a CTA per row, fp32 only."""

    name, package, needs, module = "numba", "numba-cuda", "numba", "softbench.backends.numba_softmax"
    only_nvidia = True
    install = "pip install 'numba-cuda[cu13]' (for CUDA 12: 'numba-cuda[cu12]')"
    advice = "for a first kernel in Python, in fp32"
    compiles = "always"

    def available(self) -> str | None:
        return super().available() or self._unfit()

    def _unfit(self) -> str | None:
        """Why numba-cuda cannot compile here. A release for an older NumPy fails only at its first compilation."""
        try:
            importlib.import_module("numba.cuda.cudaimpl")
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name == "numba.cuda.cudaimpl":  # this release has the module elsewhere
                return None
            reason = one_line(f"{type(error).__name__}: {error}", 150)
            return f"numba-cuda does not load ({reason}): install a version that fits the other packages: {self.install}"
        return None

    def supports(self, case: Case) -> str | None:
        if case.dtype != "fp32":
            return "this kernel is written for fp32: Numba's arrays have no bf16"
        return super().supports(case)

    def kernels(self, case: Case) -> Pair:
        found: Pair = self._module().kernels()
        return found


helion, cupy, numba = Helion(), CuPy(), Numba()
