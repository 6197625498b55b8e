"""softbench's own kernels as backends: `triton-row`, `triton-tile`, `triton` and `cuda`.

Without a GPU the Triton ones run under Triton's interpreter: they are checked there, on a few rows, and never timed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from softbench.backends.directions import by_direction
from softbench.core.case import Case, Direction
from softbench.core.inspection import NAME_CHARACTERS
from softbench.core.text import one_line
from softbench.core.toolchain import missing_compiler

INTERPRETED_ROWS = 32  # the interpreter takes about a millisecond a program


class Kernels:
    """What the four have in common: a module of `softbench.kernels` that holds a `softmax`."""

    name: str
    module: str
    compiles = True

    def available(self) -> str | None:
        raise NotImplementedError

    def supports(self, case: Case) -> str | None:
        return None

    def softmax(self) -> Any:
        """The module's `softbench.kernels.common.softmax.Softmax`."""
        return importlib.import_module(f"softbench.kernels.{self.module}").softmax

    def sources(self) -> list[Path]:
        """The kernels' files; they are imported only when a case is prepared."""
        return sources_of(self.module.partition(".")[0])

    def prepare(self, case: Case) -> Callable[..., Any]:
        softmax = self.softmax()
        if case.M == 0 or case.N == 0:
            return by_direction(case, softmax.forward, softmax.backward)
        return by_direction(case, softmax if case.direction is Direction.BOTH else softmax.forward_rows, softmax.backward_rows)

    def over_dim(self, direction: Direction) -> Callable[..., torch.Tensor]:
        """`f(x, dim)` or `f(dy, y, dim)` on tensors of any shape and strides."""
        softmax = self.softmax()
        return softmax.forward if direction is Direction.FORWARD else softmax.backward


def sources_of(package: str) -> list[Path]:
    """The files of a package of `softbench.kernels` and of the shared one, and the tables that decide what is launched."""
    files = [Path(str(entry)) for name in (package, "common") for entry in resources.files(f"softbench.kernels.{name}").iterdir()]
    tables = [table for folder in files for table in folder.glob("*.json")]
    return sorted([file for file in files if file.suffix in (".py", ".cu", ".cuh")] + tables)


class Triton(Kernels):
    """What the Triton ones have in common."""

    def available(self) -> str | None:
        try:
            if not torch.cuda.is_available():
                os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, or never
            import triton  # noqa: F401
        except ImportError as error:
            return f"triton cannot be imported ({error}); pip install triton"
        return missing_compiler(cuda=True) if torch.cuda.is_available() else _interpreter_trouble()

    def interpreted(self) -> tuple[str, int] | None:
        """Why it is not timed here, and how many rows are checked; None where it runs for real."""
        if torch.cuda.is_available():
            return None
        return "Triton's interpreter, as there is no GPU", INTERPRETED_ROWS


def _interpreter_trouble() -> str | None:
    """Why Triton's interpreter does not run a loop here, found by running one; None when it does."""
    from softbench.kernels.triton.plain import forward_loop

    x = torch.zeros(1, 32)
    try:
        forward_loop[(1,)](x, torch.empty_like(x), 32, 32, 1, 32, 16)
    except Exception as error:  # whatever the interpreter makes of it
        return f"Triton's interpreter fails here ({one_line(str(error), 120)}); Triton 3.6's needs: pip install 'numpy<2.5'"
    return None


class TritonRow(Triton):
    """The way of Triton's fused-softmax tutorial: a row per program, persistent grid."""

    name, module = "triton-row", "triton.row"
    advice = "to learn from, and where the tutorial's own figures are to be met"

    def supports(self, case: Case) -> str | None:
        from softbench.kernels.triton.row import MAX_COLUMNS

        return f"a row must fit one program: N is at most {MAX_COLUMNS}" if case.N > MAX_COLUMNS else None


class TritonTile(Triton):
    """Several rows a program, by tensor descriptors where strides allow, warps autotuned."""

    name, module = "triton-tile", "triton.tile"
    advice = "for many short rows, where an autotuner's first call does not hurt"


class TritonOwn(Triton):
    """softbench's own Triton softmax: tiers by N, configurations by rule."""

    name, module = "triton", "triton.tiers"
    advice = "for any shape without nvcc: nothing is tuned at run time, and no N is compiled for itself"


class Cuda(Kernels):
    """softbench's own CUDA C++ softmax, compiled by nvcc on first use."""

    name, module = "cuda", "cuda.launch"
    advice = "for any shape where nvcc is at hand once: one build serves them all"

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA GPU here"
        from softbench.kernels.cuda import build

        return build.MISSING if build.nvcc() is None else None

    def generated(self, case: Case, launched: Sequence[str]) -> tuple[list[Piece], dict[str, int]]:
        """See `of_the_library`."""
        return of_the_library(case, launched)


Piece = tuple[str, str, str, str]


def of_the_library(case: Case, launched: Sequence[str]) -> tuple[list[Piece], dict[str, int]]:
    """PTX, SASS and the assembler's report of the CUDA kernels among those launched, and the bytes that each spills.

    `launched` are names as the profiler demangles them; what cannot be had is a report that says why.
    """
    from softbench.kernels.cuda import build, disassemble

    architecture = build.architecture_of(torch.cuda.get_device_capability())
    try:
        library = build.build(architecture)
        taken = disassemble.resources(library)
        by_letters = {"".join(name.split()): name for name in launched}  # demanglers differ in their blanks
        spelt = {name: one_line(torch._C._demangle(name), NAME_CHARACTERS) for name in taken}
        names = {name: by_letters[letters] for name, text in spelt.items() if (letters := "".join(text.split())) in by_letters}
        if not names:
            return [("softmax.txt", "report", "text", "none of the library's kernels was launched\n")], {}
        lines = [f"{names[name]}\n    {', '.join(f'{key} {value}' for key, value in taken[name].items())}" for name in names]
        pieces = [("softmax.txt", "report", "text", "\n".join(lines) + "\n")]
        pieces += [("softmax.sass", "sass", "gas", disassemble.sass(library, names))]
        pieces += [("softmax.ptx", "ptx", "gas", disassemble.ptx(architecture, names))]
        return pieces, {names[name]: taken[name].get("LOCAL", 0) for name in names}
    except build.BuildError as error:
        return [("softmax.txt", "report", "text", f"{error}\n")], {}


row, tile, own, cuda = TritonRow(), TritonTile(), TritonOwn(), Cuda()
