"""Problem files written for the tests, and what the worker's checks say of a solution."""

from dataclasses import replace
from types import SimpleNamespace

import torch

from softbench.core.case import Case, Direction
from softbench.ops import registry
from softbench.problems.load import load
from softbench.worker.callables import prepared
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.timing.rotating_inputs import RotatingInputs

CPU = torch.device("cpu")
CALLS = 40
NAMES = iter(range(10**6))
FP8 = """
def inputs(M=24, N=64):
    return torch.randn(M, N).to(torch.float8_e4m3fn), torch.rand(M) > 0.5, torch.randint(0, 9, (M,)), torch.zeros(M)

def reference(x, keep, ids, out):
    out.add_(x.float().sum(1) * keep + ids)
    return (x.float() * 0.5).to(torch.float8_e4m3fn), keep ^ (ids > 3)
"""
HALVES = """
import torch

def solution(x, keep, ids, out):
    out += torch.where(keep, x.float().sum(1), 0.0) + ids
    return (x.float() / 2).to(torch.float8_e4m3fn), keep != (ids > 3)
"""
"""A solution of it."""


def problem(folder, text, wanted=()):
    """The problem of a file with this text."""
    file = folder / f"problem{next(NAMES)}.py"
    file.write_text(text if text.lstrip().startswith('"""') else "import torch\n\n" + text)
    return load(str(file), wanted)


def cases(operation):
    """All cases of a problem on the CPU, in its first dtype."""
    return [Case(M, N, operation.case_dtypes[0], Direction.FORWARD, "cpu", op, shape) for op, M, N, shape in operation.cases]


def judged(operation, solution, case=None, *, timed_on="cpu"):
    """Class and detail of a solution: before timing, and of the calls of a batch, which may change and be kept as on a GPU."""
    case = case or cases(operation)[0]
    backend = SimpleNamespace(name="user", prepare=lambda case: solution, supports=lambda case: None, operations=(operation.name,))
    given, call = registry.numerics(case.op).make(case, 0, CPU), prepared(backend, case)
    call(*given)
    found = PreCheck(case, call, given, backend, None).run(1)
    if found.grade not in ("sampled", "tolerance"):
        return found.grade, found.detail
    made = RotatingInputs(replace(case, device=timed_on), given, call, overwrites=False)
    made.widen()
    for _ in range(2):
        body = made.renew()
        made.stir()
        for _ in range(CALLS):
            body()
        made.collect()
        timed = made.verify(lambda _, *parts: verify_outputs(backend, case, *parts))
        if timed and timed.grade == "wrong":
            return timed.grade, timed.detail
    return found.grade, found.detail
