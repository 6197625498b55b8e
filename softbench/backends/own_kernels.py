"""softbench's own kernels as backends: `triton-row`, `triton-tile`, `triton` and `cuda`.

Without a GPU the Triton kernels run in Triton's interpreter: a few rows are checked, nothing is timed. Importing this module selects
the interpreter, as Triton reads TRITON_INTERPRET when it is imported; only the worker of such a backend imports this module.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from softbench.backends import nvidia, own_losses, own_scores, scores
from softbench.backends.directions import TensorCall, by_direction
from softbench.core.case import OPERATION, Case, Direction, Value, parse_op
from softbench.core.inspection import NAME_CHARACTERS
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler
from softbench.ops.dtypes import DTYPES
from softbench.plugins.backend import Call, Piece

if TYPE_CHECKING:
    from softbench.kernels.common.softmax import Softmax

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

INTERPRETED_ROWS = 32  # the interpreter takes about a millisecond per program


class Kernels:
    """Base of the four: a module of `softbench.kernels` that has a `softmax`, and perhaps a `log_softmax`."""

    name: str
    module: str
    losses = ""
    """The module with the functions of `softbench.backends.own_losses`, if there is one."""
    operations: tuple[str, ...] = (OPERATION,)
    compiles = True

    def available(self) -> str | None:
        raise NotImplementedError

    def supports(self, case: Case) -> str | None:
        return None

    def function(self, operation: str = OPERATION) -> Softmax:
        """The module's function of that name, differentiable and over any dimension."""
        found: Softmax = getattr(importlib.import_module(f"softbench.kernels.{self.module}"), operation)
        return found

    def sources(self) -> list[Path]:
        """The kernels' files; preparing a case imports them."""
        return sources_of(self.module.partition(".")[0])

    def prepare(self, case: Case) -> Call:
        if case.operation in own_losses.NAMES:
            return own_losses.prepare(self.losses, case)
        function = self.function(case.operation)
        if case.direction is Direction.BOTH:
            forward, backward = function.__call__, function.backward
        elif case.M == 0 or case.N == 0:
            forward, backward = function.forward, function.backward
        else:
            forward, backward = function.forward_rows, function.backward_rows
        return by_direction(case, given(forward, 1, case.parameters), given(backward, 2, case.parameters, DTYPES[case.dtype]))

    def over_dim(self, direction: Direction, op: str = OPERATION) -> TensorCall:
        """`f(x, dim)`, differentiable, or `f(dy, y, dim)`, on tensors of any shape and strides."""
        operation, parameters = parse_op(op)
        function = self.function(operation)
        if direction is not Direction.FORWARD:
            return given(function.backward, 2, parameters)
        forward, differentiable = (given(call, 1, parameters) for call in (function.forward, function.__call__))
        return lambda x, *others: (differentiable if x.requires_grad else forward)(x, *others)


def given(call: TensorCall, tensors: int, parameters: Mapping[str, Value], narrow: torch.dtype | None = None) -> TensorCall:
    """`call` with the parameters of a case: the first `tensors` arguments are its tensors, and a scale of rows is the next one.

    `narrow` is the dtype of a gradient if results are wider; None for a forward.
    """
    if not parameters:
        return call
    settings: dict[str, Any] = {}
    if "out_dtype" in parameters:
        settings["dtype"] = narrow or torch.float32
    if (scale := parameters.get("scale")) != "row":
        return functools.partial(call, scale=scale, **settings)

    def scaled(*arguments: Any) -> torch.Tensor:
        return call(*arguments[:tensors], *arguments[tensors + 1 :], scale=arguments[tensors], **settings)

    return scaled


def sources_of(package: str) -> list[Path]:
    """The files of a package of `softbench.kernels` and of the shared one, and the tables that decide what is launched."""
    files = [Path(str(entry)) for name in (package, "common") for entry in resources.files(f"softbench.kernels.{name}").iterdir()]
    tables = [table for folder in files for table in folder.glob("*.json")]
    return sorted([file for file in files if file.suffix in (".py", ".cu", ".cuh")] + tables)


class Triton(Kernels):
    """Base of the Triton backends."""

    def available(self) -> str | None:
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return f"triton cannot be imported ({error}); pip install triton"
        return missing_compiler(cuda=True) if torch.cuda.is_available() else _interpreter_trouble()

    def interpreted(self) -> tuple[str, int] | None:
        """Why it is not timed here, and how many rows are checked; None with a GPU."""
        if torch.cuda.is_available():
            return None
        return "Triton's interpreter, as there is no GPU", INTERPRETED_ROWS


def _interpreter_trouble() -> str | None:
    """Why Triton's interpreter cannot run a loop here, found by running one; None if it can."""
    from softbench.kernels.triton.generic import forward_loop

    x = torch.zeros(1, 32)
    try:
        forward_loop[(1,)](x, torch.empty_like(x), 32, 32, 1, 32, 16)
    except Exception as error:  # the interpreter can raise anything
        return f"Triton's interpreter fails here ({one_line(str(error), 120)}); Triton 3.6's needs: pip install 'numpy<2.5'"
    return None


class TritonRow(Triton):
    """Triton's fused-softmax tutorial: a row per program, persistent grid."""

    name, module = "triton-row", "triton.tutorial"
    advice = "to learn from, and to reproduce the tutorial's results"

    def supports(self, case: Case) -> str | None:
        from softbench.kernels.triton.tutorial import MAX_COLUMNS

        return f"a row must fit one program: N is at most {MAX_COLUMNS}" if case.N > MAX_COLUMNS else None


class TritonTile(Triton):
    """Several rows per program, tensor descriptors if the strides allow them, autotuned warps."""

    name, module = "triton-tile", "triton.tiled"
    advice = "for many short rows, if the first call of an autotuner is acceptable"


class TritonOwn(Triton):
    """softbench's Triton softmax and losses: tiers by N, configurations by heuristics."""

    name, module, losses = "triton", "triton.dispatch", "triton.losses"
    operations = ("softmax(scale,out_dtype)", "log_softmax", *own_losses.OPERATIONS, *scores.OPERATIONS)
    advice = "for any shape without nvcc: no tuning at run time, no compilation for each N"

    def supports(self, case: Case) -> str | None:
        if case.operation in (*own_losses.NAMES, own_scores.NAME) and torch.version.hip is not None:
            return f"its kernels of {case.operation} contain PTX, which AMD's GPUs do not run"
        return own_scores.refused("triton", case) if case.operation == own_scores.NAME else None

    def prepare(self, case: Case) -> Call:
        return own_scores.prepare("triton", case) if case.operation == own_scores.NAME else super().prepare(case)


class Cuda(Kernels):
    """softbench's CUDA C++ kernels; nvcc compiles those of an operation on first use."""

    name, module, losses = "cuda", "cuda.launch", "cuda.losses"
    operations = ("softmax(scale,out_dtype)", "log_softmax", *own_losses.OPERATIONS, *scores.OPERATIONS)
    advice = "for any shape, if nvcc is available once: one build serves all shapes"

    def available(self) -> str | None:
        if reason := nvidia.missing():
            return reason
        from softbench.kernels.cuda import build

        return build.MISSING if build.nvcc() is None else None

    def supports(self, case: Case) -> str | None:
        return own_scores.refused("cuda", case) if case.operation == own_scores.NAME else None

    def prepare(self, case: Case) -> Call:
        return own_scores.prepare("cuda", case) if case.operation == own_scores.NAME else super().prepare(case)

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
    if case.operation == own_scores.NAME:
        return own_scores.NAME if own_scores.special(case) else "scaled_softmax"
    return "scaled_softmax" if "scale" in case.parameters else case.operation


row, tile, own, cuda = TritonRow(), TritonTile(), TritonOwn(), Cuda()
