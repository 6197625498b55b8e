"""Imports, first use and annotations of all kernels."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

STAGES = """
import sys
import softbench
import softbench.kernels
import softbench.kernels.common.cuda_toolkit
assert "torch" not in sys.modules and "use" in dir(softbench) and "softmax" in dir(softbench.kernels)

import softbench.kernels.cuda as cuda
import torch
from softbench.kernels.common import rows
assert cuda.softmax(torch.zeros(2, 4), -1)[0, 0] == 0.25 and "triton" not in sys.modules

import importlib.util
assert importlib.util.find_spec("torch.utils.flop_counter")  # finding a module does not import it
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    cuda.softmax(torch.zeros(2, 4))
assert counter.get_total_flops() == 40
assert not any("registration" in type(finder).__module__ for finder in sys.meta_path)

from softbench.kernels.triton import softmax
import softbench.kernels.triton as triton
assert triton.softmax is softmax and not hasattr(triton, "nothing")
assert softmax(torch.zeros(2, 4))[0, 0] == 0.25 and triton.log_softmax(torch.zeros(2, 1))[0, 0] == 0
assert callable(softbench.use)
"""


def test_each_stage_imports_what_it_needs_and_builds_nothing(tmp_path):
    cache = tmp_path / "cache"
    given = {**os.environ, "PATH": "/nonexistent", "SOFTBENCH_CACHE": str(cache), "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", STAGES], check=True, env=given)
    assert not cache.exists()


KERNELS = Path(__file__).parents[2] / "kernels"


def is_kernel(function: ast.FunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.parametrize(
    "path", sorted(set(KERNELS.rglob("*.py")) - set(KERNELS.glob("gallery/*.py"))), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_host_functions_are_annotated(path):
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef) or is_kernel(function):
            continue
        given = function.args
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
        bare = [parameter.arg for parameter in parameters if parameter.annotation is None]
        assert set(bare) <= {"self", "cls"} and function.returns is not None, (function.name, bare)
