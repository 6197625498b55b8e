"""softbench's kernels through PyTorch's compiler: `triton-compiled`, `triton-op`, `triton-custom-op`, `triton-aoti` and `cuda-op`.

The same kernels, other doors: what each costs beside the plain launch (`triton`, `cuda`) is what the rows tell. None runs without a GPU:
there the operators are torch's own softmax, and a row of that under our name would be a lie.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import softbench.backends.torch_compile  # noqa: F401  # no pool of compile processes in a worker
from softbench.backends.autograd import differentiable
from softbench.backends.directions import by_direction
from softbench.backends.own_kernels import Piece, of_the_library, sources_of
from softbench.core.case import Case, Direction
from softbench.core.toolchain import missing_compiler, packaging_compiler
from softbench.kernels.common.cuda_toolkit import cuda_home
from softbench.ops.dtypes import DTYPES

Call = Callable[..., torch.Tensor]


class OperatorBackend:
    """What all have in common."""

    name: str
    package, module = "triton", "operator"
    compiles: bool | str = True

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA GPU here; without one the operator is torch's own softmax"
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return f"triton cannot be imported ({error}); pip install triton"
        return missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        return None

    def sources(self) -> list[Path]:
        """The kernels' files; they are imported only when a case is prepared."""
        return sources_of(self.package)

    def _module(self) -> Any:
        return importlib.import_module(f"softbench.kernels.{self.package}.{self.module}")


class TritonCompiled(OperatorBackend):
    """The raw Triton kernels, autotuned, called inside torch.compile(fullgraph=True)."""

    name, module = "triton-compiled", "recipe"
    advice = "to see what torch.compile makes of raw Triton kernels; in a model, triton-op"

    def prepare(self, case: Case) -> Callable[..., Any]:
        """`both` joins two compiled functions by an autograd.Function: the raw kernels have no gradient of their own."""
        torch._dynamo.reset()
        recipe = self._module()
        forward, backward = (torch.compile(function, dynamic=False, fullgraph=True) for function in (recipe.forward, recipe.backward))
        if case.direction is not Direction.BOTH:
            return by_direction(case, forward, backward)
        return by_direction(case, differentiable(forward, backward), backward)


class TritonOp(OperatorBackend):
    """The Triton kernels behind torch.library.triton_op, through torch.compile(fullgraph=True)."""

    name, operator = "triton-op", "triton_softmax"
    advice = "in a model that is compiled: the compiler sees the kernel"

    def prepare(self, case: Case) -> Callable[..., Any]:
        return by_direction(case, *self._compiled())

    def over_dim(self, direction: Direction) -> Call:
        forward, backward = self._compiled()
        return forward if direction is Direction.FORWARD else backward

    def _compiled(self) -> tuple[Call, Call]:
        """Compiled anew: otherwise automatic dynamic shapes would swap the kernel under test."""
        torch._dynamo.reset()
        self._module()
        forward = getattr(torch.ops.softbench, self.operator).default
        backward = getattr(torch.ops.softbench, f"{self.operator}_backward").default

        def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
            result: torch.Tensor = forward(x, dim)
            return result

        def gradient(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
            result: torch.Tensor = backward(dy, y, dim)
            return result

        return tuple(torch.compile(function, dynamic=False, fullgraph=True) for function in (softmax, gradient))  # type: ignore[return-value]


class TritonCustomOp(TritonOp):
    """The Triton kernels behind torch.library.custom_op, opaque to torch.compile(fullgraph=True)."""

    name, operator = "triton-custom-op", "triton_softmax_opaque"
    advice = "in a model that is compiled, where the kernel must stay as it is"


class CudaOp(TritonOp):
    """The CUDA C++ kernels behind an operator of torch.library, opaque to torch.compile(fullgraph=True)."""

    name, package, operator = "cuda-op", "cuda", "cuda_softmax"
    advice = "the CUDA kernels in a model that is compiled or differentiated"

    def available(self) -> str | None:
        if reason := super().available():
            return reason
        from softbench.kernels.cuda import build

        return build.MISSING if build.nvcc() is None else None

    def generated(self, case: Case, launched: Sequence[str]) -> tuple[list[Piece], dict[str, int]]:
        """PTX, SASS and the assembler's report of the CUDA kernel behind the operator."""
        return of_the_library(case, launched)


class TritonAoti(OperatorBackend):
    """The Triton operator exported, packaged by AOTInductor and loaded again, one shape a package."""

    name = "triton-aoti"
    advice = "where no Python compiles at run time: a package for each shape, built beforehand"
    compiles = "always"

    def available(self) -> str | None:
        if reason := super().available():
            return reason
        if packaging_compiler() is None:
            return "no C++ compiler for AOTInductor; install g++ (Debian: apt install g++)"
        if cuda_home() is None:
            return "no CUDA toolkit whose headers AOTInductor's C++ could include; install it, or set CUDA_HOME to its folder"
        return None

    def supports(self, case: Case) -> str | None:
        if case.direction is Direction.BOTH:
            return "a package holds no autograd"
        return "nothing to export: the tensor has no elements" if case.M * case.N == 0 else None

    def prepare(self, case: Case) -> Callable[..., Any]:
        # torch looks for headers and for the driver's stub library in CUDA_HOME, and takes the folder above `nvcc` where that is not set.
        os.environ["CUDA_HOME"] = str(cuda_home())
        self._module()
        example = torch.empty(case.M, case.N, dtype=DTYPES[case.dtype], device=case.device)
        forward = case.direction is Direction.FORWARD
        exported = torch.export.export(_Softmax() if forward else _Gradient(), (example,) if forward else (example, example.clone()))
        with tempfile.TemporaryDirectory(prefix="softbench-") as folder:
            inductor = importlib.import_module("torch._inductor")
            with inductor.config.patch({"cpp.cxx": (None, packaging_compiler())}):
                package = inductor.aoti_compile_and_package(exported, package_path=str(Path(folder) / "softmax.pt2"))
            call: Callable[..., Any] = inductor.aoti_load_package(package)
        return call


class _Softmax(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.softbench.triton_softmax.default(x, -1)
        return result


class _Gradient(torch.nn.Module):
    def forward(self, dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.softbench.triton_softmax_backward.default(dy, y, -1)
        return result


compiled, op, custom_op, aoti, cuda_op = TritonCompiled(), TritonOp(), TritonCustomOp(), TritonAoti(), CudaOp()
