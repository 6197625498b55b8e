"""Which kernels run the functions of `softbench.kernels`, by a rule.

The rule, for each class of calls (`Calls`):

1. torch, where x is not on a CUDA device, or is not float32, float16 or bfloat16.
2. The Triton kernels, over another `dim` than the last that is short (`MOST_SHORT`), where Triton can compile.
3. The CUDA kernels, where their library is built. That of another `dim` than the last is a library of its own, of softmax and log_softmax.
   Nothing is built in a call: `build()` builds. masked_softmax has Triton kernels only.
4. The Triton kernels, where Triton can compile. They are compiled at their first call.
5. torch.

A class is decided at its first call and not again in this process, unless `build()` adds a library.

Source of the order: results/h200/frontier.csv. In each of its 109 cells the CUDA and the Triton kernels take less device time than torch.
CUDA and Triton have the same device time in the median. CUDA is first, because one library serves every shape.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common import extension
from ..common.cuda_toolkit import nvcc
from ..common.rows import DTYPES

SUBJECTS = {
    **{"softmax": "x is", "log_softmax": "x is"},
    **{"cross_entropy": "the logits are", "logprob": "the logits are", "masked_softmax": "the scores are"},
}
"""The functions, and how a reason calls their first argument."""
OF_ROWS = ("softmax", "log_softmax")
"""The functions with arguments `dim` and `dtype`, where `dtype` is that of the result. Their Triton kernels run on AMD's GPUs too."""
SCORES = "masked_softmax"
"""The function that has Triton kernels only."""
OF_COLUMNS = "columns"
"""The CUDA library where `dim` is not the last."""
LEAST_OVER_COLUMNS = 2**22
"""Elements from which cross entropy over another dimension than the last is ours, as softmax in `use()`. This number was not measured."""
MOST_SHORT = {torch.float32: 256, torch.float16: 512, torch.bfloat16: 512}
"""Elements of another dimension than the last up to which Triton's kernels are the faster ones; CUDA's share a longer one in clusters."""
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


class Calls(NamedTuple):
    """A class of calls, which have one decision."""

    function: str
    device: torch.device
    dtype: torch.dtype
    result: torch.dtype | None = None
    """The dtype of the result; None: that of x."""
    last: bool = True
    """Whether `dim` is the last dimension."""
    short: bool = False
    """Whether `dim` is another one, of few elements."""


_choices: dict[Calls, Choice] = {}
FORGETS += [lambda: _choices.clear(), extension.forget_choices]


def which(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, function: str = "softmax") -> Choice:
    """What a function of `softbench.kernels` runs for x in this process, and why. It computes nothing.

    It sees no other arguments: some let torch compute, which docs/kernels/index.md lists.

    Raises:
        ValueError: there is no such function.
    """
    if function not in SUBJECTS:
        raise ValueError(f"function {function!r}: must be one of {', '.join(SUBJECTS)}")
    if function in OF_ROWS:
        return choice(Calls(function, x.device, x.dtype, dtype, is_last(x, dim), is_short(x, dim)))
    if function == "cross_entropy" and not is_last(x, dim):
        if x.numel() < LEAST_OVER_COLUMNS:
            return Choice("torch", f"over another dimension than the last, our kernels take {LEAST_OVER_COLUMNS} elements and more")
        return choice(Calls(function, x.device, x.dtype, last=False))
    converted = function == SCORES and dtype is not None
    found = choice(Calls(function, x.device, dtype if converted and dtype is not None else x.dtype))
    if function == SCORES and found.kernels == "triton" and x.dim() and x.shape[-1] > (most := scores_kernels().MAX_COLUMNS):
        return Choice("triton", f"{found.why}; with a mask, causal order or sink, torch computes rows of more than {most} keys")
    return found


def scores_kernels() -> Any:
    """The module with the kernels of SCORES, which imports Triton."""
    return importlib.import_module("..triton.masked_softmax", __package__)


def is_last(x: Tensor, dim: int) -> bool:
    """Whether `dim` is the last dimension of x."""
    return dim == -1 or dim == x.dim() - 1


def is_short(x: Tensor, dim: int) -> bool:
    """Whether `dim` is another dimension of x than the last, of at most MOST_SHORT elements."""
    return -x.dim() <= dim < x.dim() - 1 and dim != -1 and x.shape[dim] <= MOST_SHORT.get(x.dtype, 0)


def choice(calls: Calls) -> Choice:
    """The decision on a class of calls."""
    if calls not in _choices:
        found = _choices[calls] = choose(calls)
        if found.kernels == ("triton" if calls.function == SCORES else "cuda") and calls.last:
            extension.load()
            if calls.function == SCORES:
                scores = scores_kernels()
                extension.launches_of_scores(scores.launch_forward, scores.launch_backward)
            extension.choose(calls.function, calls.device.index or 0, calls.dtype)
    return _choices[calls]


def invariant_kernels(function: str, x: Tensor) -> Any:
    """The module with the kernels of a function for x whose results of a row do not depend on the other rows.

    Raises:
        ValueError: only torch computes it.
    """
    found = choice(Calls(function, x.device, x.dtype))
    if found.kernels == "torch":
        raise ValueError(f"invariant=True of {function}: {found.why}")
    return importlib.import_module(f"..{found.kernels}.invariant", __package__)


def choose(calls: Calls) -> Choice:
    """The rule of this module."""
    function, device, dtype, result, last, short = calls
    subject, of_rows = SUBJECTS[function], function in OF_ROWS
    if device.type != "cuda":
        return Choice("torch", f"{subject} on {device.type}, and our kernels run on CUDA GPUs")
    if dtype not in DTYPES:
        return Choice("torch", f"{subject} {dtype}, and our kernels take float32, float16 and bfloat16")
    if result not in (None, dtype) and not (result is torch.float32 and dtype in DTYPES[1:]):
        return Choice("torch", f"the result of {dtype} as {result} needs a cast")
    if short and result in (None, dtype) and not without_triton():
        return Choice("triton", "a program of Triton's kernels holds so short a dimension")
    if function == SCORES:
        lacks_cuda = "masked_softmax has Triton kernels only"
    elif not last and not of_rows:
        lacks_cuda = f"the CUDA kernels of {function} take rows"
    else:
        lacks_cuda = without_cuda(device, function if last else OF_COLUMNS)
    if not lacks_cuda:
        return Choice("cuda", "the CUDA kernels are built")
    if result not in (None, dtype):
        return Choice("torch", f"{lacks_cuda}; the Triton operator has results of x's dtype only")
    lacks_triton = "the Triton kernels contain PTX" if torch.version.hip is not None and not of_rows else without_triton()
    return Choice("torch", f"{lacks_cuda}; {lacks_triton}") if lacks_triton else Choice("triton", lacks_cuda)


def without_cuda(device: torch.device, library: str) -> str:
    """Why the CUDA kernels of a library cannot run on this device without a build; empty if they can."""
    if torch.version.hip is not None:
        return "the CUDA kernels need an NVIDIA GPU"
    if nvcc() is None:
        return "the CUDA kernels need nvcc"
    from ..cuda import build as cuda

    architecture = cuda.architecture_of(torch.cuda.get_device_capability(device))
    if cuda.built(architecture, library) is None:
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


def build() -> list[Path]:
    """Build the CUDA kernels of these functions for every GPU that this process sees, and let later calls take them.

    Built once, they serve all processes. With g++, the extension that calls them in C++ is built too.

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
    wanted = [(architecture, name) for architecture in sorted(architectures) for name in cuda.OF_LIBRARY]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each is a process of nvcc
        host = pool.submit(extension.load, build=True)
        libraries = list(pool.map(lambda one: cuda.build(*one), wanted))
        host.result()
    extension.forget_absence()
    for forget in FORGETS:
        forget()
    return libraries
