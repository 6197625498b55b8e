"""`softmax` and `log_softmax` by the fastest kernels that work here, chosen by a rule.

The rule, for each class of calls: device, dtype of x, dtype of the result, and whether `dim` is the last dimension.

1. torch, where x is not on a CUDA device, or is not float32, float16 or bfloat16, or `dim` is not the last. In the last case our kernels
   would copy x and the result, three times the bytes, because they read rows of adjacent elements.
2. The CUDA kernels, where their library is built. Nothing is built in a call: `build()` builds.
3. The Triton kernels, where Triton can compile. They are compiled at their first call.
4. torch.

A class is decided at its first call and not again in this process, unless `build()` adds a library.

Source of the order: results/h200/frontier.csv. In each of its 109 cells the CUDA and the Triton kernels take less device time than torch.
CUDA and Triton have the same device time in the median. CUDA is first, because one library serves every shape.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from .cuda_toolkit import nvcc
from .rows import DTYPES

Call = Callable[[Tensor, int, torch.dtype | None], Tensor]
Key = tuple[torch.device, torch.dtype, torch.dtype | None, bool]
"""A class of calls: device, dtype of x, dtype of the result (None: that of x), and whether `dim` is the last dimension."""

FORGETS: list[Callable[[], None]] = []
"""What `build` calls so that this process decides anew."""


class Choice(NamedTuple):
    """What runs a call, and why."""

    kernels: str
    """`cuda`, `triton` or `torch`."""
    why: str
    """The reason, with what would let a faster one run."""

    def __str__(self) -> str:
        return f"{self.kernels}: {self.why}"


def softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """softmax(x) over `dim`: exp(x - max(x)) / sum(exp(x - max(x))), by the fastest kernels that work here.

    - Shapes, strides and gradients: any shape and strides, differentiable twice. The result is contiguous and has x's shape.
    - Dtypes: float32, float16 and bfloat16 by our kernels, others by torch. The result has x's dtype, or `dtype`. Autocast changes nothing.
    - Devices: all of torch's. `softbench.kernels.which(x)` says what runs, and why.
    - torch.compile traces it. Forward mode and torch.func's gradients work where torch runs.

    Raises:
        IndexError: `dim` is out of range.
        RuntimeError: the launch failed, or torch has no softmax of this dtype.
    """
    return _SOFTMAX.call(x, dim, dtype)(x, dim, dtype)


def log_softmax(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> Tensor:
    """log(softmax(x)) over `dim`; otherwise as `softmax`."""
    return _LOG_SOFTMAX.call(x, dim, dtype)(x, dim, dtype)


def which(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, function: str = "softmax") -> Choice:
    """What `softmax(x, dim, dtype)` runs in this process, or the other `function`, and why. It computes nothing.

    Raises:
        ValueError: there is no such function.
    """
    if function not in _FUNCTIONS:
        raise ValueError(f"function {function!r}: must be one of {', '.join(_FUNCTIONS)}")
    return _FUNCTIONS[function].choice(_key(x, dim, dtype))


def build() -> list[Path]:
    """Build the CUDA kernels for every GPU that this process sees, and let later calls take them. Built once, they serve all processes.

    As many are built at once as there are processors.

    Returns the libraries, which are cached in `$SOFTBENCH_CACHE` or the user's cache folder.

    Raises:
        RuntimeError: there is no GPU.
        BuildError: there is no nvcc, or it failed.
    """
    from ..cuda import build as cuda

    if not torch.cuda.is_available() or torch.version.hip is not None:
        raise RuntimeError("softbench.kernels.build: no CUDA GPU here, so there is nothing to build")
    architectures = {cuda.architecture_of(torch.cuda.get_device_capability(index)) for index in range(torch.cuda.device_count())}
    wanted = [(architecture, name) for architecture in sorted(architectures) for name in cuda.ALL]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each is a process of nvcc
        libraries = list(pool.map(lambda one: cuda.build(*one), wanted))
    for forget in FORGETS:
        forget()
    return libraries


def _key(x: Tensor, dim: int, dtype: torch.dtype | None) -> Key:
    return x.device, x.dtype, dtype, dim == -1 or dim == x.dim() - 1


class Function:
    """A function with its kernels and the decisions of this process."""

    def __init__(self, name: str, torchs: Callable[[Tensor, int, bool], Tensor]) -> None:
        """`torchs` is torch's function below autocast, with x, `dim`, and whether 16 bits become float32."""
        self.name, self.torchs = name, torchs
        self.calls: dict[Key, Call] = {}
        self.choices: dict[Key, Choice] = {}
        FORGETS.append(self.forget)

    def call(self, x: Tensor, dim: int, dtype: torch.dtype | None) -> Call:
        """The function for this class of calls, which is decided at the first of them."""
        key = (x.device, x.dtype, dtype, dim == -1 or dim == x.dim() - 1)
        return self.calls.get(key) or self.decide(key)

    def decide(self, key: Key) -> Call:
        """Decide a class of calls for this process."""
        found = self.calls[key] = getattr(self, f"by_{_decided(self.name, *key)}")()
        return found

    def choice(self, key: Key) -> Choice:
        """The decision on a class of calls."""
        if key not in self.choices:
            self.choices[key] = choose(key, self.name)
        return self.choices[key]

    def forget(self) -> None:
        """Decide anew from now on."""
        self.calls.clear()
        self.choices.clear()

    def by_cuda(self) -> Call:
        """The operator of the CUDA kernels."""
        from ..cuda import operator

        found: Call = getattr(operator, self.name)
        return found

    def by_triton(self) -> Call:
        """The operator of the Triton kernels."""
        from ..triton import operator

        function: Callable[[Tensor, int], Tensor] = getattr(operator, self.name)
        return lambda x, dim, dtype: function(x, dim)

    def by_torch(self) -> Call:
        """torch's function. It is called below autocast, whose float32 result our kernels do not have."""

        def run(x: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
            widens = x.is_cuda and x.dtype in DTYPES[1:] and dtype is torch.float32  # without a cast in memory
            given = x if widens or dtype is None else x.to(dtype)
            return self.torchs(given.contiguous(), dim, widens)

        return run


@torch.compiler.assume_constant_result
def _decided(function: str, device: torch.device, dtype: torch.dtype, result: torch.dtype | None, last: bool) -> str:
    """The kernels of a class of calls. torch.compile takes the answer, and does not trace how it is found."""
    return _FUNCTIONS[function].choice((device, dtype, result, last)).kernels


def choose(key: Key, function: str) -> Choice:
    """The rule of this module."""
    device, dtype, result, last = key
    if device.type != "cuda":
        return Choice("torch", f"x is on {device.type}, and our kernels run on CUDA GPUs")
    if dtype not in DTYPES:
        return Choice("torch", f"x is {dtype}, and our kernels take float32, float16 and bfloat16")
    if not last:
        return Choice("torch", "dim is not the last, so our kernels would copy x and the result")
    if result not in (None, dtype) and not (result is torch.float32 and dtype in DTYPES[1:]):
        return Choice("torch", f"the result of {dtype} as {result} needs a cast")
    lacks_cuda = without_cuda(device, function)
    if not lacks_cuda:
        return Choice("cuda", "the CUDA kernels are built")
    if result not in (None, dtype):
        return Choice("torch", f"{lacks_cuda}; the Triton operator has results of x's dtype only")
    lacks_triton = without_triton()
    return Choice("torch", f"{lacks_cuda}; {lacks_triton}") if lacks_triton else Choice("triton", lacks_cuda)


def without_cuda(device: torch.device, function: str) -> str:
    """Why the CUDA kernels cannot run on this device without a build; empty if they can."""
    if torch.version.hip is not None:
        return "the CUDA kernels need an NVIDIA GPU"
    if nvcc() is None:
        return "the CUDA kernels need nvcc"
    from ..cuda import build as cuda

    architecture = cuda.architecture_of(torch.cuda.get_device_capability(device))
    if cuda.built(architecture, function) is None:
        return f"the CUDA kernels are not built for {architecture}: softbench.kernels.build()"
    return ""


def without_triton() -> str:
    """Why Triton cannot compile here; empty if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    compilers = [os.environ.get("CC", "").partition(" ")[0], "gcc", "clang", "cc"]
    if not any(name and shutil.which(name) for name in compilers):
        return "Triton needs a C compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        return "Triton needs the headers of Python"
    return "TRITON_INTERPRET=1 is set" if os.environ.get("TRITON_INTERPRET") == "1" else ""


_SOFTMAX = Function("softmax", torch.ops.aten._softmax.default)
_LOG_SOFTMAX = Function("log_softmax", torch.ops.aten._log_softmax.default)
_FUNCTIONS = {function.name: function for function in (_SOFTMAX, _LOG_SOFTMAX)}
