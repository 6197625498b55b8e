"""The strategies of `kernels/gallery`: a file each, with the functions `softmax(x)` and `softmax_backward(dy, y)`.

Each is an entry point `softbench.backends.gallery:STEM` of the file `kernels/gallery/STEM.py`.
"""

from __future__ import annotations

import importlib
from importlib import resources
from pathlib import Path

import torch

from softbench.backends.calls import by_direction, differentiable
from softbench.backends.third_party import ThirdParty
from softbench.core.case import Case, Direction
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call

FOLDER = "softbench.kernels.gallery"
CUPY = "pip install cupy-cuda13x (for CUDA 12: cupy-cuda12x)"
NUMBA = "pip install 'numba-cuda[cu13]' (for CUDA 12: 'numba-cuda[cu12]')"
REGISTERS = "a row must fit one program"


class Strategy(ThirdParty):
    """A file of the gallery. Extras are not in `all`: they are to be read, and other backends do the same faster."""

    extra = True
    only_nvidia = True

    def __init__(self, name: str, stem: str, advice: str, **traits: object) -> None:
        vars(self).update(traits)
        self.name, self.advice, self.module = name, advice, f"{FOLDER}.{stem}"
        self.file = Path(str(resources.files(FOLDER))) / f"{stem}.py"
        self.summary = self.file.read_text().partition('"""')[2].partition("\n")[0]

    def supports(self, case: Case) -> str | None:
        """What the file says."""
        reason: str | None = self._module().supports(case)
        return reason

    def sources(self) -> list[Path]:
        """The file."""
        return [self.file]

    def prepare(self, case: Case) -> Call:
        module = self._module()
        forward, backward = module.softmax, module.softmax_backward
        return by_direction(case, differentiable(forward, backward) if case.direction is Direction.BOTH else forward, backward)


class OfTorch(Strategy):
    """A file that needs PyTorch only, and runs on a CPU too."""

    only_nvidia = False

    def available(self) -> str | None:
        return None


class OfTriton(Strategy):
    """A file of Triton kernels. Without a GPU, the interpreter checks them (`softbench.worker.triton_on_cpu`)."""

    extra, only_nvidia = False, False

    def available(self) -> str | None:
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return f"triton cannot be imported ({error}); pip install triton"
        return missing_compiler(cuda=True) if torch.cuda.is_available() else None


class OfNvcc(Strategy):
    """A file of CUDA C++, which `softbench.build` compiles once for all shapes."""

    def available(self) -> str | None:
        reason: str | None = self._module().library.unavailable()
        return reason


class OfPackage(Strategy):
    """A file that needs the package of a language."""

    def __init__(self, name: str, stem: str, advice: str, package: str, needs: str, install: str = "", **traits: object) -> None:
        """`package` is pip's name for the module `needs`."""
        super().__init__(name, stem, advice, **traits)
        self.package, self.needs, self.install = package, needs, install or f"pip install {package}"


class OfNumba(OfPackage):
    """Numba's file."""

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


eager = OfTorch("eager", "eager", "to see what each line costs without a compiler", compiles=False)
compiled = OfTorch("compiled", "compiled", "to see what a compiler makes of eager code")
triton_row = OfTriton("triton-row", "triton_row", "to learn from, and to reproduce the tutorial's results")
triton_tile = OfTriton("triton-tile", "triton_tile", "for many short rows, if the first call of an autotuner is acceptable")
cuda_row = OfNvcc("cuda-row", "cuda_row", "for a first kernel in CUDA C++")
cuda_online = OfNvcc("cuda-online", "cuda_online", "for a kernel in CUDA C++ that reads vectors and takes any row")
gluon_row = OfPackage(
    "gluon", "gluon_row", "to choose layouts and copies by hand, in Triton's language", "triton", "triton.experimental.gluon"
)
cute_row = OfPackage(
    "cute", "cute_row", "for CUTLASS's layouts in Python", "nvidia-cutlass-dsl", "cutlass", "pip install 'nvidia-cutlass-dsl[cu13]'"
)
cutile_row = OfPackage("cutile", "cutile_row", "for tiles without threads", "cuda-tile", "cuda.tile", "pip install 'cuda-tile[tileiras]'")
tilelang_row = OfPackage("tilelang", "tilelang_row", "for tiles that a compiler lays out, through nvcc", "tilelang", "tilelang")
helion_row = OfPackage(
    "helion",
    "helion_row",
    "to write a kernel in PyTorch syntax; Helion's autotuner is off here",
    "helion",
    "helion",
    only_nvidia=False,
    extra=False,
)
cupy_row = OfPackage(
    "cupy", "cupy_row", "for CUDA C++ without nvcc and without a build step", "cupy", "cupy", CUPY, compiles="always", extra=False
)
numba_row = OfNumba(
    "numba", "numba_row", "for a first kernel in Python, in fp32", "numba-cuda", "numba", NUMBA, compiles="always", extra=False
)
