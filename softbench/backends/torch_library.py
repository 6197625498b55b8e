"""softbench's kernels through PyTorch's compiler: `triton-compiled`, `triton-op`, `triton-custom-op`, `triton-aoti` and `cuda-op`.

They launch the same kernels as `triton` and `cuda`, so the difference is the cost of the operator. They are unavailable without a GPU:
there the operators call torch's own functions.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch

import softbench.backends.torch_compile  # noqa: F401  # keeps Inductor from starting a pool of compile processes
from softbench.backends import nvidia
from softbench.backends.calls import Pair, TensorCall, by_direction, differentiable
from softbench.backends.cuda import cuda_code
from softbench.backends.own_kernels import sources_of
from softbench.core.case import OPERATION, Case, Direction, parse_op
from softbench.core.toolchain import missing_compiler, packaging_compiler
from softbench.kernels.common.cuda_toolkit import cuda_home
from softbench.ops.dtypes import DTYPES
from softbench.plugins.backend import Call, Piece


class OperatorBackend:
    """Base of the five backends."""

    name: str
    package, module = "triton", "operator"
    compiles: bool | str = True

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA GPU here; without one the operator is torch's own function"
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return f"triton cannot be imported ({error}); pip install triton"
        return missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        return None

    def sources(self) -> list[Path]:
        """The kernels' files; preparing a case imports them."""
        return sources_of(self.package)

    def _module(self) -> ModuleType:
        return importlib.import_module(f"softbench.kernels.{self.package}.{self.module}")


class TritonCompiled(OperatorBackend):
    """The raw Triton kernels, called inside torch.compile(fullgraph=True)."""

    name, module = "triton-compiled", "user_defined"
    advice = "to see how torch.compile calls raw Triton kernels; in a model, triton-op"

    def prepare(self, case: Case) -> Call:
        """`both` connects two compiled functions by an autograd.Function, as the raw kernels have no gradient."""
        torch._dynamo.reset()
        kernels = self._module()
        forward, backward = (torch.compile(function, dynamic=False, fullgraph=True) for function in (kernels.forward, kernels.backward))
        if case.direction is not Direction.BOTH:
            return by_direction(case, forward, backward)
        return by_direction(case, differentiable(forward, backward), backward)


class TritonOp(OperatorBackend):
    """The Triton kernels behind torch.library.triton_op, through torch.compile(fullgraph=True)."""

    name, operator = "triton-op", "triton_{}"
    operations = ("softmax", "log_softmax")
    advice = "in a compiled model: the compiler sees the kernel"

    def prepare(self, case: Case) -> Call:
        return by_direction(case, *self._compiled(case.operation))

    def over_dim(self, direction: Direction, op: str = OPERATION) -> TensorCall:
        forward, backward = self._compiled(parse_op(op)[0])
        return forward if direction is Direction.FORWARD else backward

    def _compiled(self, operation: str) -> Pair:
        """Newly compiled functions: automatic dynamic shapes would replace the kernel under test."""
        torch._dynamo.reset()
        self._module()
        name = self.operator.format(operation)
        forward, backward = (getattr(torch.ops.softbench, which).default for which in (name, f"{name}_backward"))

        def function(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
            result: torch.Tensor = forward(x, dim)
            return result

        def gradient(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
            result: torch.Tensor = backward(dy, y, dim)
            return result

        return tuple(torch.compile(one, dynamic=False, fullgraph=True) for one in (function, gradient))  # type: ignore[return-value]


class TritonCustomOp(TritonOp):
    """The Triton kernels behind a custom operator, opaque to torch.compile(fullgraph=True)."""

    name, operator = "triton-custom-op", "triton_{}_opaque"
    advice = "in a compiled model, if the compiler must not change the kernel"


class CudaOp(TritonOp):
    """The CUDA C++ kernels behind an operator of torch.library, opaque to torch.compile(fullgraph=True)."""

    name, package, operator = "cuda-op", "cuda", "cuda_{}"
    advice = "the CUDA kernels in a compiled or differentiated model"

    def available(self) -> str | None:
        if reason := super().available():
            return reason
        if reason := nvidia.missing():
            return reason
        from softbench.kernels.cuda import build

        return build.MISSING if build.nvcc() is None else None

    def generated(self, case: Case, launched: Sequence[str]) -> tuple[list[Piece], dict[str, int]]:
        """PTX, SASS and the assembler's report of the CUDA kernel behind the operator."""
        return cuda_code(case, launched)


class TritonAoti(OperatorBackend):
    """The Triton operator, exported and packaged by AOTInductor: one package for each shape, for calls of one thread."""

    name = "triton-aoti"
    operations = ("softmax", "log_softmax")
    advice = "if no Python may compile at run time: build a package for each shape beforehand"
    compiles = "always"
    build_seconds = 12.0  # in the median of 65 packages on an H200; the first build of a shard takes a minute more
    extra = True  # it compiles C++ for each shape, which takes seconds

    def available(self) -> str | None:
        if reason := super().available():
            return reason
        if reason := nvidia.missing():
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

    def prepare(self, case: Case) -> Call:
        """Exports and packages the operator. torch finds headers and the driver's stub library through CUDA_HOME."""
        os.environ["CUDA_HOME"] = str(cuda_home())  # without it torch uses the folder above `nvcc`, which may be a script
        self._module()
        example = torch.empty(case.M, case.N, dtype=DTYPES[case.dtype], device=case.device)
        exported = (
            torch.export.export(_Function(case.operation), (example,))
            if case.direction is Direction.FORWARD
            else torch.export.export(_Gradient(case.operation), (example, example.clone()))
        )
        with tempfile.TemporaryDirectory(prefix="softbench-") as folder:
            inductor = importlib.import_module("torch._inductor")
            with inductor.config.patch({"cpp.cxx": (None, packaging_compiler())}):
                package = inductor.aoti_compile_and_package(exported, package_path=str(Path(folder) / "softmax.pt2"))
            # a package has one instance, and otherwise a call waits on the host until the GPU has ended the call before
            call: Call = inductor.aoti_load_package(package, run_single_threaded=True)
        return call


class _Function(torch.nn.Module):
    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operator = getattr(torch.ops.softbench, f"triton_{operation}").default

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.operator(x, -1)
        return result


class _Gradient(torch.nn.Module):
    def __init__(self, operation: str) -> None:
        super().__init__()
        self.operator = getattr(torch.ops.softbench, f"triton_{operation}_backward").default

    def forward(self, dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.operator(dy, y, -1)
        return result


compiled, op, custom_op, aoti, cuda_op = TritonCompiled(), TritonOp(), TritonCustomOp(), TritonAoti(), CudaOp()
