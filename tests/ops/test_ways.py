"""Each operation beside plain softmax has bounds that accept right ways to compute it, and reject wrong ones in the check of a run."""

import itertools

import pytest
import torch
from log_softmaxes import WRONG_BOTH
from masked_softmaxes import OPERATION as MASKED, op_of
from sampled import with_dtypes
from wrongs import LATER, LIMITED, RIGHT_WAYS, WRONG_WAYS

from softbench.backends import naive, torch_eager
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics
from softbench.worker.checking import any_dim
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
LOSS = "cross_entropy(ignore_index=7,label_smoothing=0.3,z_loss=0.001,softcap=30)"
ALL_SET = "scale=0.3,mask=additive,mask_axes=HSN,causal=true,sink=true"
SCORES = ("", "scale=5", "mask=boolean,mask_axes=BN", ALL_SET, "mask=boolean,causal=true")
BY_NAME = {way.name: way for way in (*RIGHT_WAYS, *WRONG_WAYS)}
SHAPES = ((8, 1), (40, 2), (64, 257), (40, 4099))
RIGHT_AT = {
    **{op: [(op, shape) for shape in SHAPES] for op in ("log_softmax", "logprob", "rms_norm", "cross_entropy")},
    MASKED: [(op_of(text), shape) for text in SCORES for shape in ((2, 3, 40, 65), (1, 2, 9, 4), (1, 1, 5, 129), (1, 2, 30, 1023))],
}
"""The operations with parameters, and the shapes, with which right ways are tried."""
RIGHT_AT["cross_entropy"].append((LOSS, (48, 65)))
WRONG_AT = {"log_softmax": (32, 4096), "logprob": (64, 1024), "cross_entropy": (40, 1024), "rms_norm": (40, 512)}
NOT_OF_16_BITS = {"right-ce-torch-in-16-bits"}
"""With all parameters an lse in 16 bits and sums of float16 are wrong."""
CLOSE = {"right-logprob-subnormal-p-as-0", "right-ce-subnormal-p-as-0", "right-ce-tanh-by-exp"}
"""Right ways in float32 that reach the bound. Others have at most the share below, but for gradients that take their own y."""
SHARES = {("log_softmax", "forward"): 0.5, ("logprob", "forward"): 0.6, ("logprob", "backward"): 0.6}
"""Of the bound: the most that right ways in float32 have, by operation and direction. Of the others it is `SHARE`."""
SHARE = 0.75


def case_of(op, shape, dtype, direction):
    """A case; four sizes are those of scores."""
    rows = shape[0] * shape[1] * shape[2] if len(shape) == 4 else shape[0]
    return Case(rows, shape[-1], dtype, Direction(direction), "cpu", op, "x".join(map(str, shape)) if len(shape) == 4 else "")


def graded(way, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, way.prepare(case), any_dim.make(case, seed, CPU), way, None).run(seed)


def ways(every_way, operations):
    return [(way.name, direction) for way in every_way if way.operations[0] in operations for direction in way.makers]


def allowed(way, op, dtype):
    """torch's log_softmax of float32 is precise, and its gradient of logsumexp with parameters takes a rounded lse."""
    limited = way.name in LIMITED and (way.name, dtype) != ("right-torch", "fp32")
    return {Grade.PASS, Grade.LOW_PRECISION} if limited or (way.name, op) == ("right-ce-torch", LOSS) else {Grade.PASS}


@with_dtypes("name direction", ways(RIGHT_WAYS, RIGHT_AT), every=14)
def test_right_ways_are_accepted(name, direction, dtype):
    way = BY_NAME[name]
    for op, shape in RIGHT_AT[way.operations[0]]:
        if way.name not in NOT_OF_16_BITS or op != LOSS:
            found = graded(way, case_of(op, shape, dtype, direction))
            assert found.grade in allowed(way, op, dtype), (op, shape, found)
            if dtype == "fp32" and found.grade is Grade.PASS and direction != "both" and name not in CLOSE:
                assert found.worst <= SHARES.get((op, direction), SHARE), (op, shape, found)


@pytest.mark.parametrize(
    ("way", "op", "shapes", "share"),
    [
        ("right-ce-two-passes", "cross_entropy", ((36, 33), (36, 4099)), 0.5),
        *(("right-masked-float32", op_of(text), ((1, 2, 30, 1023),), 0.7) for text in SCORES),
    ],
)
def test_float32_has_less_than_a_share_of_the_bound(way, op, shapes, share):
    for direction, shape in itertools.product(BY_NAME[way].makers, shapes):
        assert graded(BY_NAME[way], case_of(op, shape, "fp32", direction)).worst <= share, (direction, shape)


@with_dtypes("name direction", [one for one in ways(WRONG_WAYS, WRONG_AT) if one[0] not in LATER], every=4)
def test_wrong_ways_are_rejected(name, direction, dtype):
    way, (op,) = BY_NAME[name], BY_NAME[name].operations
    of_norm = op == "rms_norm"  # its bounds in 16 bits allow what some of them do
    found = graded(way, case_of(op, WRONG_AT[op], "fp32" if of_norm else dtype, direction))
    assert found.grade is Grade.WRONG, found
    assert "should be" in found.detail


LARGE = ("32000", "50257", "128256", "151936", "201088", "262144", "65537", "1823", "8192", "12289", "16384", "130x197")
LARGE += tuple(f"shape {size}" for size in ("65", "1310", "3x", "5x", "18", "1x13", "1x52"))
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("backend", "dtype", "op"),
    [
        (naive.backend, "bf16", "logprob"),
        pytest.param(torch_eager.backend, "fp32", "cross_entropy", marks=slow),
        pytest.param(naive.backend, "bf16", op_of(ALL_SET), marks=slow),
        pytest.param(torch_eager.backend, "fp32", "logprob", marks=slow),
        pytest.param(naive.backend, "bf16", "cross_entropy", marks=slow),
        pytest.param(torch_eager.backend, "fp32", op_of("mask=boolean"), marks=slow),
        *(pytest.param(torch_eager.backend, dtype, "log_softmax", marks=slow) for dtype in ("fp32", "fp16", "bf16")),
    ],
)
def test_backends_are_right_in_every_check_case(backend, dtype, op):
    for item in numerics(op).check_cases(op):
        if not item.gpu_only and not any(large in item.name for large in LARGE):
            found = CheckCaseRunner(backend, "cpu", operation=op).run(item.name, item.direction, dtype, 0)
            exact = dtype == "fp32" or op in ("logprob", "cross_entropy")
            assert found.grade in ((Grade.PASS,) if exact else (Grade.PASS, Grade.LOW_PRECISION)), (item.name, item.direction, found)


@pytest.mark.parametrize("name", WRONG_BOTH)
def test_a_wrong_result_of_both_is_named(name):
    way = next(way for way in WRONG_WAYS if way.makers.get("both") and way.makers["both"]() is WRONG_BOTH[name])
    found = graded(way, case_of("log_softmax", (32, 512), "fp32", "both"))
    assert found.detail.startswith("dx[" if "dx" in name or "gradient" in name else "y[")
