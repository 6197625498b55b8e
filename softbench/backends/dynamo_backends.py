"""Dynamo's other backends as `compile:NAME`: those for users that the torch that runs registers, and those that a package adds."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

import torch

from softbench.backends.torch_compile import Compiled, inductor
from softbench.core.case import Case
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call

KNOWN = {
    "eager": ("Dynamo alone: the graph is captured and run eagerly", "to see what capturing itself costs a call"),
    "aot_eager": ("Dynamo and AOTAutograd, then eager", "to tell Inductor's part from AOTAutograd's"),
    "inductor": ("Inductor by its name, each shape compiled anew", "never by this name: it is torch.compile's default"),
    "cudagraphs": ("the eager kernels, recorded as a CUDA graph", "when the host is the limit and nothing is to be compiled"),
}
"""Description and advice for the backends that users ask for."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that adds a Dynamo backend."""

    module: str
    """Importing it registers the backend, where PyTorch does not."""
    advice: str
    what: str


PACKAGES = {
    "tensorrt": Package("torch_tensorrt", "pip install torch-tensorrt of torch's own version", "NVIDIA's TensorRT"),
    "torch_tensorrt": Package("torch_tensorrt", "pip install torch-tensorrt of torch's own version", "NVIDIA's TensorRT"),
    "openvino": Package("openvino.torch", "pip install openvino", "Intel's OpenVINO"),
    "hidet": Package("hidet", "pip install hidet", "CentML's Hidet"),
}
"""Backends that need a package, by name."""
NOT_HERE = ("openxla", "tvm")
"""Backends that PyTorch registers, of packages of which no release compiles for CPUs and NVIDIA's GPUs with a supported PyTorch."""
OF_USERS = ("eager", "aot_eager")
"""Of the backends that PyTorch tags as debugging or experimental, those that tell users what capturing costs."""


class DynamoBackend(Compiled):
    """A Dynamo backend other than Inductor's modes."""

    def __init__(self, backend: str, registered: bool) -> None:
        package = PACKAGES.get(backend)
        what, advice = KNOWN.get(backend, (package.what if package else "registered with Dynamo", ""))
        graphs = backend == "cudagraphs"
        self.backend, self.registered, self.package = backend, registered, package
        super().__init__(f"compile:{backend}", f", backend {backend}: {what}", advice, reuses_output=graphs, backend=backend)
        self.compiles = "always" if package else backend == "inductor"
        self._tried: str | None = None

    def available(self) -> str | None:
        if self.package and (reason := self._missing(self.package)):
            return reason
        if not self.registered and self.backend not in torch._dynamo.list_backends(None):
            return f"torch {torch.__version__} has no Dynamo backend '{self.backend}'"
        if self.backend == "cudagraphs" and not torch.cuda.is_available():
            return "no CUDA GPU here"
        return missing_compiler(cuda=torch.cuda.is_available()) if self.backend == "inductor" else None

    def _missing(self, package: Package) -> str | None:
        try:
            if not _installed(package):
                return f"{package.module.partition('.')[0]} is not installed: {package.advice}"
            importlib.import_module(package.module)
        except Exception as error:  # a package built for another torch can raise anything
            return f"{package.module} cannot be imported ({one_line(f'{type(error).__name__}: {error}', 150)}): {package.advice}"
        return None

    def supports(self, case: Case) -> str | None:
        """Some registered backends cannot compile anything. The first call tries one function and keeps the result."""
        if self._tried is None:
            self._tried = "" if self.package or self.backend in ("cudagraphs", "inductor") else _trouble(self.backend)
        return super().supports(case) or self._tried or None

    def prepare(self, case: Case) -> Call:
        if self.package:
            importlib.import_module(self.package.module)  # the import registers the backend
        return super().prepare(case)


def _installed(package: Package) -> bool:
    return importlib.util.find_spec(package.module.partition(".")[0]) is not None


def _trouble(backend: str) -> str:
    """Why a backend cannot compile a sum; empty if it can."""
    try:
        torch.compile(_sum, backend=backend)(torch.ones(2))
    except Exception as error:  # a backend can raise anything
        return f"it fails in torch {torch.__version__} on every function; instead: compile ({one_line(str(error), 160)})"
    finally:
        torch._dynamo.reset()
    return ""


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x + x


def dynamo_backends() -> list[DynamoBackend]:
    """The backends for users that Dynamo registers, then those a package adds."""
    import torch._dynamo

    registered = [name for name in (*OF_USERS, *torch._dynamo.list_backends()) if name not in NOT_HERE]
    return [DynamoBackend(name, name in registered) for name in dict.fromkeys([*registered, *PACKAGES])]


def __getattr__(name: str) -> list[Compiled]:
    """`backends`: Inductor's and Dynamo's other backends, created on first use, as listing them imports Dynamo.

    Raises:
        AttributeError: any other name.
    """
    if name == "backends":
        return [*inductor, *dynamo_backends()]
    raise AttributeError(name)
