"""Softmax by the kernels of another commit, as the backends `cuda-before` and `triton-before`.

`git worktree add before COMMIT`, and `softbench run --config tools/plans_ab.toml` compares them with those of this checkout. $BEFORE names
another folder. Each backend has a process of its own, in which the folder's `kernels` is a package. Without a GPU, TRITON_INTERPRET=1 lets
`softbench check --plugin tools/plans_ab.py` examine those of Triton.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch

from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call

KERNELS = Path(os.environ.get("BEFORE", "before")).resolve() / "kernels"
MODULES = {"cuda": "before.cuda.launch", "triton": "before.triton.dispatch"}
PASSES = {Direction.FORWARD: "forward_rows", Direction.BACKWARD: "backward_rows"}
for name in ("before", "before.cuda", "before.triton"):  # without running their `__init__.py`, which defines operators of PyTorch
    folder = KERNELS.joinpath(*name.split(".")[1:])
    spec = spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec is not None
    sys.modules[name] = module_from_spec(spec)
os.environ["SOFTBENCH_PLANS"] = ""  # what `softbench tune` wrote here is of this checkout's kernels


class Before:
    """softbench's softmax of another commit."""

    def __init__(self, language: str) -> None:
        self.name, self.module = f"{language}-before", MODULES[language]

    def available(self) -> str | None:
        file = KERNELS.joinpath(*self.module.split(".")[1:]).with_suffix(".py")
        if not file.is_file():
            return f"there is no {file}; run: git worktree add before COMMIT"
        interpreted = "triton" in self.module and os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreted or torch.cuda.is_available() else "no CUDA GPU here"

    def supports(self, case: Case) -> str | None:
        return None if case.direction in PASSES else "only forward and backward"

    def sources(self) -> list[Path]:
        """The kernels' files, whose digest a run keeps."""
        return sorted(file for file in KERNELS.rglob("*") if file.suffix in (".py", ".cu", ".cuh", ".json"))

    def prepare(self, case: Case) -> Call:
        call: Call = getattr(importlib.import_module(self.module).softmax, PASSES[case.direction])
        return call


backends = [Before(language) for language in MODULES]
