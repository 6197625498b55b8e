"""softbench's CUDA C++ kernels as the backend `cuda`, and their code for `softbench inspect`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from softbench.backends import nvidia
from softbench.backends.own_kernels import LINEAR, Invariant, Kernels, without_linear
from softbench.core.case import Case
from softbench.core.inspection import NAME_CHARACTERS
from softbench.core.text import one_line
from softbench.plugins.backend import Piece


class Cuda(Kernels):
    """softbench's CUDA C++ kernels; nvcc compiles those of an operation on first use."""

    name, module, losses = "cuda", "cuda.launch", "cuda.losses"
    operations: tuple[str, ...] = (
        "softmax(scale,out_dtype)",
        "log_softmax",
        "cross_entropy(ignore_index,label_smoothing,z_loss,softcap)",
        "logprob",
        "linear_cross_entropy(hidden,ignore_index,label_smoothing,z_loss,softcap)",
    )
    advice = "for any shape, if nvcc is available once: one build serves all shapes"

    def available(self) -> str | None:
        if reason := nvidia.missing():
            return reason
        from softbench.kernels.cuda import build

        return build.MISSING if build.nvcc() is None else None

    def generated(self, case: Case, launched: Sequence[str]) -> tuple[list[Piece], dict[str, int]]:
        """As `cuda_code`."""
        return cuda_code(case, launched)


def cuda_code(case: Case, launched: Sequence[str]) -> tuple[list[Piece], dict[str, int]]:
    """PTX, SASS and the assembler's report of the launched CUDA kernels, and the spilled bytes of each.

    `launched` are demangled names from the profiler. If the build fails, the only piece is a report with the reason.
    """
    from softbench.kernels.cuda import build, disassemble

    function = _library(case)
    architecture = build.architecture_of(torch.cuda.get_device_capability())
    try:
        library = build.build(architecture, function)
        taken = disassemble.resources(library)
        by_letters = {"".join(name.split()): name for name in launched}  # demanglers differ in white space
        spelt = {name: one_line(torch._C._demangle(name), NAME_CHARACTERS) for name in taken}
        names = {name: by_letters[letters] for name, text in spelt.items() if (letters := "".join(text.split())) in by_letters}
        if not names:
            return [("softmax.txt", "report", "text", "none of the library's kernels was launched\n")], {}
        lines = [f"{names[name]}\n    {', '.join(f'{key} {value}' for key, value in taken[name].items())}" for name in names]
        pieces = [("softmax.txt", "report", "text", "\n".join(lines) + "\n")]
        pieces += [("softmax.sass", "sass", "gas", disassemble.sass(library, names))]
        pieces += [("softmax.ptx", "ptx", "gas", disassemble.ptx(architecture, names, function))]
        return pieces, {names[name]: taken[name].get("LOCAL", 0) for name in names}
    except build.BuildError as error:
        return [("softmax.txt", "report", "text", f"{error}\n")], {}


def _library(case: Case) -> str:
    """The function of `softbench.kernels.cuda.build` whose library a case calls."""
    if case.operation == LINEAR:
        return "cross_entropy"
    return "scaled_softmax" if "scale" in case.parameters else case.operation


class CudaInvariant(Invariant, Cuda):
    """The CUDA kernels by plans with which a row's bits do not depend on the other rows."""

    name, module, losses = "cuda-invariant", "cuda.invariant", "cuda.invariant"
    operations = without_linear(Cuda.operations)


backend = Cuda()
backends = [backend, CudaInvariant()]
