"""The yardstick moves what `softbench.ops.yardstick` says, by torch and by the Triton kernel. Wrong yardsticks are found."""

from functools import partial
from itertools import count

import pytest
import torch
from compiling import python
from passes import OPERATIONS, inputs

from softbench.backends import copy
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import registry, yardstick
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.timing.rotating_inputs import RotatingInputs

UNDER_THE_INTERPRETER = """
import torch
from passes import OPERATIONS, inputs
from softbench.backends import copy_kernels as kernel
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import registry, yardstick
from softbench.ops.dtypes import TENSOR_DTYPES
kernel.LEAST_BYTES = 4096  # two pieces of words
for name, op in OPERATIONS.items():
    registry._added[name] = op, "file.py"
    one = op.passes["forward"]
    names = dict.fromkeys((*one.inputs, *one.outputs, *one.reads))
    for M, N, dtype in ((5, 1001, "bf16"), (3, 1, "fp16")):
        case = Case(M, N, dtype, Direction.FORWARD, "cpu", name)
        given = inputs(op, case)
        rest = [op.tensors[other] for other in list(names)[len(given):]]
        ours = [torch.ones(spec.shape(case), dtype=TENSOR_DTYPES[spec.dtype_of(case)]) for spec in rest]
        for step in yardstick.steps(op, case):
            kernel.Launch(op, case, step, list(names))([*given, *ours])
        found = yardstick.check(case, given, tuple(ours[:len(one.outputs)]))
        assert found.grade is Grade.YARDSTICK, (name, M, N, dtype)
op, case = OPERATIONS["loss"], Case(4, 501, "fp32", Direction.FORWARD, "cpu", "loss")
launch = kernel.Launch(op, case, yardstick.steps(op, case)[0], ["x", "target", "loss"])
x, target, loss = torch.zeros(4, 501), torch.zeros(4, dtype=torch.int64), torch.ones(4)
launch([x, target, loss])
assert not launch.scratch.any() and not loss.any()
for tensor in (x, target):
    words = tensor.view(torch.int32).view(-1)
    for place in (0, len(words) // 2, len(words) - 1):
        words[place] = kernel.NEVER
        launch([x, target, loss])
        assert (launch.scratch == kernel.NEVER).sum() == 1, (len(words), place)
        words[place] = 0
        launch.scratch.zero_()
print("fine")
"""

FOR_A_GPU = """
import triton
import triton.language as tl
from softbench.backends.copy_kernels import _move
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
types = tl.int8, tl.int16, tl.int32
for block in (256, 2048):  # less than a piece of words, and four of them
    constants = {"SOURCES": (0, 0), "RESULTS": (0, 1), "SUM_BLOCKS": (256,), "TYPES": types, "OTHER_BLOCKS": (block,) * 3, "PIECE": 512}
    tensors = {"sources": (), "results": ("*fp32",), "others": ("*i1", "*bf16", "*i32"), "scratch": "*i32"}
    numbers = {"never": "i32", "sum_counts": ("i32",), "other_counts": ("i32",) * 3, "whole": "i32"}
    signature = tensors | numbers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(_move, signature, {(_move.arg_names.index(name),): value for name, value in constants.items()})
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["sass"]
    for load in ("LDG.E.U8 ", "LDG.E.U16 ", "LDG.E "):
        assert code.count(load) >= 2 * block // 128, (load, code.count(load), block)
print("fine")
"""


@pytest.fixture(autouse=True)
def added(monkeypatch):
    monkeypatch.setattr(registry, "_added", {name: (op, "file.py") for name, op in OPERATIONS.items()})


def test_the_kernel_moves_the_bytes_of_unlike_tensors(run_interpreted):
    run_interpreted(UNDER_THE_INTERPRETER)


@pytest.mark.slow
def test_a_compiler_keeps_reads_that_no_result_depends_on():
    assert python(FOR_A_GPU, TRITON_INTERPRET="0", PYTHONWARNINGS="ignore") == "fine\n"


@pytest.mark.parametrize("name", OPERATIONS)
def test_torchs_operators_move_the_bytes_of_unlike_tensors(name):
    for M, N, dtype in ((5, 1001, "bf16"), (1, 1, "fp16"), (64, 64, "fp32")):
        case = Case(M, N, dtype, Direction.FORWARD, "cpu", name)
        given = inputs(OPERATIONS[name], case)
        call = copy.backend.prepare(case)
        results = [call(*given) for _ in range(2)][-1]
        assert yardstick.check(case, given, results if isinstance(results, tuple) else (results,)).grade is Grade.YARDSTICK


def graded(case, wrong):
    """The verdict of the pre-check on softbench's yardstick with another call."""
    given = registry.numerics(case.op).make(case, 0, torch.device("cpu"))
    call = copy.backend.prepare(case)
    return PreCheck(case, lambda *given: wrong(call, *given), given, copy.backend, None).run(1)


def last_rows_kept(call, *given):
    kept = call(*given).clone()
    kept[-1:] = 0
    return kept


def cached(kept, call, *given):
    return kept.setdefault("result", call(*given).clone()).clone()


WRONG = {
    "zeros": lambda call, *given: torch.zeros_like(given[0]),
    "nothing written": lambda call, *given: torch.empty_like(given[0]),
    "one read of two": lambda call, *given: given[0].clone(),
    "without the last row": last_rows_kept,
    "half of each row": lambda call, *given: call(*given).index_fill(1, torch.arange(given[0].shape[1] // 2), 0),
    "the result of the first call": lambda call, *given, kept={}: cached(kept, call, *given),
    "its argument": lambda call, *given: given[0],
    "in 16 bits": lambda call, *given: call(*given).bfloat16().float(),
    "softmax": lambda call, *given: torch.softmax(given[0], -1),
    "another row": lambda call, *given: call(*given).roll(1, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_yardstick_that_moves_less_is_found(name):
    case = Case(64, 128, "fp32", Direction.BACKWARD, "cpu")
    assert graded(case, lambda call, *given: call(*given)).grade is Grade.YARDSTICK
    assert graded(case, WRONG[name]).grade is Grade.WRONG


def timed(case, wrong, batches=6):
    """The verdict on timed batches of softbench's yardstick with another call."""
    call = copy.backend.prepare(case)
    given = registry.numerics(case.op).make(case, 0, torch.device("cpu"))
    rotation = RotatingInputs(case, given, lambda *given: wrong(call, *given), overwrites=True)
    rotation.widen()
    for _ in range(batches):
        body = rotation.renew()
        rotation.stir()
        for _ in range(20):
            body()
        rotation.collect()
        found = rotation.verify(lambda *asked: verify_outputs(copy.backend, *asked))
        if found is not None and found.grade is Grade.WRONG:
            return found
    return found


def sometimes(calls, call, *given):
    """After a few calls it moves a half of the rows."""
    if next(calls) < 10:
        return call(*given)
    kept = call(*given).clone()
    kept[: len(kept) // 2] = 0
    return kept


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_a_yardstick_that_moves_less_later_is_found(direction):
    case = Case(64, 128, "bf16", direction, "cpu")
    assert timed(case, lambda call, *given: call(*given)).grade is Grade.YARDSTICK
    assert timed(case, partial(sometimes, count())).grade is Grade.WRONG
    assert timed(case, partial(cached, {})).grade is Grade.WRONG


def test_a_fused_pass_returns_both_results():
    case = Case(16, 32, "fp32", Direction.BOTH, "cpu")
    assert graded(case, lambda call, *given: call(*given)).grade is Grade.YARDSTICK
    assert graded(case, lambda call, x, dy: (call(x, dy)[0], dy.clone())).grade is Grade.WRONG
    y, dx = copy.backend.prepare(case)(*registry.numerics(case.op).make(case, 0, torch.device("cpu")))
    assert y.grad_fn is None and dx.grad_fn is None
