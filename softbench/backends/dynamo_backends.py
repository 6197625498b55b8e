"""Dynamo's other backends as `compile:NAME`: what this torch registers, what a package would bring, and what PyTorch has removed.

Sources: `torch._dynamo.list_backends(None)` of the torch that runs; PyTorch's pull requests 93382, 93878, 105789, 122128 and 158262.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from softbench.backends.torch_compile import Compiled
from softbench.core.case import Case
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler

KNOWN = {
    "eager": ("Dynamo alone: the graph is captured and run eagerly", "to see what capturing itself costs a call"),
    "aot_eager": ("Dynamo and AOTAutograd, then eager", "to tell Inductor's part from AOTAutograd's"),
    "inductor": ("Inductor by its name, each shape compiled anew", "never by this name: it is torch.compile's default"),
    "cudagraphs": ("the eager kernels, recorded as a CUDA graph", "when the host is the limit and nothing is to be compiled"),
    "ts": (
        "TorchScript, frozen and optimized for inference",
        "behind torch.compile it fails in torch 2.11 and 2.13; jit-script and jit-trace work",
    ),
    "aot_ts": ("AOTAutograd, then TorchScript", "behind torch.compile it fails in torch 2.11 and 2.13; jit-script and jit-trace work"),
    "tvm": ("Apache TVM", "when the model goes to TVM's targets"),
    "openxla": ("XLA, by torch_xla", "on TPUs; its tensors live on XLA's device"),
    "openxla_eval": ("XLA, by torch_xla, without AOTAutograd", "as openxla, for inference"),
}
"""What the ones that people ask for are, and when to pick them."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that brings a backend."""

    module: str
    """Importing it registers the backend, where PyTorch does not."""
    advice: str
    what: str = ""


PACKAGES = {
    "openxla": Package("torch_xla", "pip install torch_xla"),
    "openxla_eval": Package("torch_xla", "pip install torch_xla"),
    "tvm": Package("tvm", "pip install apache-tvm; PyTorch calls tvm.relay, which TVM 0.20 and later do not have"),
    "tensorrt": Package("torch_tensorrt", "pip install torch-tensorrt of torch's own version", "NVIDIA's TensorRT"),
    "torch_tensorrt": Package("torch_tensorrt", "pip install torch-tensorrt of torch's own version", "NVIDIA's TensorRT"),
    "ipex": Package(
        "intel_extension_for_pytorch",
        "pip install intel-extension-for-pytorch, which ended with torch 2.8; instead: compile",
        "Intel's",
    ),
    "openvino": Package("openvino.torch", "pip install openvino", "Intel's OpenVINO"),
    "hidet": Package("hidet", "pip install hidet", "CentML's Hidet"),
}
"""Backends that need a package: PyTorch's own that only call it, and those that it registers itself."""

NVFUSER = "nvFuser lives on outside PyTorch, in lightning-thunder; for a fused softmax: compile"
GONE = {
    "nvfuser": ("2.0", f"it became aot_ts_nvfuser, which is gone since 2.1; {NVFUSER}"),
    "ts_nvfuser": ("2.0", f"it became aot_ts_nvfuser, which is gone since 2.1; {NVFUSER}"),
    "aot_nvfuser": ("2.0", f"it became aot_ts_nvfuser, which is gone since 2.1; {NVFUSER}"),
    "prims_nvfuser": ("2.0", f"it became nvprims_nvfuser, which is gone since 2.1; {NVFUSER}"),
    "aot_ts_nvfuser": ("2.1", NVFUSER),
    "nvprims_nvfuser": ("2.1", NVFUSER),
    "nvprims_aten": ("2.1", "aot_eager runs AOTAutograd's graph eagerly"),
    "ofi": ("2.0", "torch.jit.optimize_for_inference of a scripted function; for speed: compile"),
    "nnc": ("2.0", "jit-script, whose fuser NNC is; for speed: compile"),
    "fx2trt": ("2.0", "torch-tensorrt: compile:tensorrt"),
    "onnx2tensorrt": ("2.0", "torch-tensorrt: compile:tensorrt"),
    "torch2trt": ("2.0", "torch-tensorrt: compile:tensorrt"),
    "onnx2tf": ("2.0", "torch.onnx.export, and the other runtime by itself"),
    "static_runtime": ("2.0", "torch.export and AOTInductor: triton-aoti shows that way"),
    "ansor": ("2.0", "tvm, whose tuner Ansor was"),
    "taso": ("2.0", "nothing; Inductor fuses on its own: compile"),
    "aot_cudagraphs": ("2.0", "cudagraphs"),
    "cudagraphs_ts": ("2.0", "cudagraphs; compile:reduce-overhead"),
    "torchxla_trivial": ("2.4", "openxla"),
    "torchxla_trace_once": ("2.4", "openxla_eval"),
    "aot_torchxla_trivial": ("2.4", "openxla"),
    "aot_torchxla_trace_once": ("2.4", "openxla"),
    "onnxrt": ("2.9", "torch.onnx.export(dynamo=True), and ONNX Runtime by itself"),
}
"""Backends that PyTorch has removed: the release since which they are gone, and what to use instead."""

TORCHSCRIPT = ("ts", "aot_ts")
PLANTED = ("TESTING_ONLY", "minifier")  # in the names of backends that make errors, or hunt for them


class Other(Compiled):
    """A Dynamo backend other than Inductor in its modes."""

    def __init__(self, backend: str, registered: bool) -> None:
        package = PACKAGES.get(backend)
        what, advice = KNOWN.get(backend, ((package.what if package else "") or "registered with Dynamo", ""))
        graphs = backend == "cudagraphs"
        self.backend, self.registered, self.package = backend, registered, package
        super().__init__(f"compile:{backend}", f", backend {backend}: {what}", advice, reuses_output=graphs, backend=backend)
        self.compiles = "always" if package else backend == "inductor"
        self._tried: str | None = None

    def available(self) -> str | None:
        if self.backend in GONE and not self.registered:
            since, instead = GONE[self.backend]
            return f"gone from PyTorch since {since}; instead: {instead}"
        if any(word in self.backend for word in PLANTED):
            return "a tool for finding Dynamo's errors, or one that makes them; not a way to compile"
        if self.package and (reason := self._missing(self.package)):
            return reason
        if not self.registered and self.backend not in torch._dynamo.list_backends(None):
            return f"torch {torch.__version__} has no Dynamo backend '{self.backend}'"
        if self.backend == "cudagraphs" and not torch.cuda.is_available():
            return "no CUDA GPU here"
        return missing_compiler(cuda=torch.cuda.is_available()) if self.backend == "inductor" else None

    def _missing(self, package: Package) -> str | None:
        top = package.module.partition(".")[0]
        try:
            if importlib.util.find_spec(top) is None:
                return f"{top} is not installed: {package.advice}"
            importlib.import_module(package.module)
        except Exception as error:  # a package for another torch fails in ways of its own
            return f"{package.module} cannot be imported ({one_line(f'{type(error).__name__}: {error}', 150)}): {package.advice}"
        return None

    def supports(self, case: Case) -> str | None:
        """Dynamo's debugging backends are registered even where they cannot compile anything: that is found out, once."""
        if self._tried is None:
            self._tried = "" if self.package or self.backend in ("cudagraphs", "inductor") else _trouble(self.backend)
        return super().supports(case) or self._tried or None

    def prepare(self, case: Case) -> Callable[..., Any]:
        if self.package:
            importlib.import_module(self.package.module)  # that registers it
        return super().prepare(case)


def _trouble(backend: str) -> str:
    """Why a backend compiles not even a sum; empty when it does."""
    try:
        torch.compile(_sum, backend=backend)(torch.ones(2))
    except Exception as error:  # whatever that backend makes of it
        instead = "jit-script, jit-trace or compile" if backend in TORCHSCRIPT else "compile"
        return f"it fails in torch {torch.__version__} on any function; instead: {instead} ({one_line(str(error), 160)})"
    finally:
        torch._dynamo.reset()
    return ""


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x + x


def others() -> list[Other]:
    """Every backend that Dynamo knows here, then those that a package would bring, then those that are gone."""
    import torch._dynamo

    registered = torch._dynamo.list_backends(None)
    names = dict.fromkeys([*registered, *PACKAGES, *GONE])
    return [Other(name, name in registered) for name in names]
