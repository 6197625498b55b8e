"""The bounds of masked softmax beside `test_ways.py`: what is said of results, references, and inputs."""

import math
from dataclasses import replace

import pytest
import torch
from masked_softmaxes import OPERATION, RIGHT, WRONG, WRONG_BACKWARD, B, F, case_of, constant, op_of
from sampled import sampled, with_dtypes
from ways import CaseWay

from softbench.core.outcome import Grade
from softbench.ops import second_opinion
from softbench.ops.masked_softmax import logits
from softbench.ops.masks import split
from softbench.ops.registry import numerics, operation
from softbench.worker.checking import any_dim
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
ALL_SET = "scale=0.3,mask=additive,mask_axes=HSN,causal=true,sink=true"


def graded(make, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, make(case), any_dim.make(case, seed, CPU), object(), None).run(seed)


def settings(wrongs):
    return with_dtypes("name text", [(name, text) for name, (texts, _) in wrongs.items() for text in texts], every=2)


@settings(WRONG)
def test_wrong_forwards_are_rejected(name, text, dtype):
    found = graded(WRONG[name][1], case_of(text, dtype, F))
    assert found.grade is Grade.WRONG, found
    assert "should be" in found.detail


@settings(WRONG_BACKWARD)
def test_wrong_gradients_are_rejected(name, text, dtype):
    found = graded(WRONG_BACKWARD[name][1], case_of(text, dtype, B))
    assert found.grade is Grade.WRONG, found


@pytest.mark.parametrize("text", sampled(["", "causal=true", "sink=true", "mask=boolean"], lambda text: text == "sink=true"))
def test_normal_rows_alone_reject_zeros(text):
    for direction, names in ((F, ("y[",)), (B, ("dx[", "dsink["))):
        for dtype in ("fp32", "bf16"):
            case = case_of(text, dtype, direction, (1, 2, 16, 16384))
            given = any_dim.make(case, 0, CPU)
            found = PreCheck(case, constant(0.0)(case), given, object(), None)
            out = constant(0.0)(case)(*given)
            verdict = found._compared(given, out if isinstance(out, tuple) else (out,), 0)
            assert verdict.grade is Grade.WRONG
            assert verdict.detail.startswith(names)


def checked(make, text, name, dtype, direction):
    return CheckCaseRunner(CaseWay("user", OPERATION, {direction: make}), "cpu", operation=op_of(text)).run(name, direction, dtype, 0)


@pytest.mark.parametrize(
    ("name", "text", "case"),
    [
        ("mask by a product", "mask=boolean", "NaN where the mask is False"),
        ("mask ignored in the last tile", "mask=boolean", "a mask without the last keys"),
        ("fully masked rows are zeros", "mask=additive", "a bias without a key in one row"),
        ("sink without the shift", "sink=true", "x and sink at 100"),
        ("sink of 0", "sink=true", "a sink of 300"),
        ("one later key", "causal=true", "shape 2x3x7x7"),
        ("causal from the first key", "causal=true", "shape 1x3x5x1023"),
    ],
)
def test_check_finds_wrong_ways(name, text, case):
    assert checked(WRONG[name][1], text, case, "bf16", F).grade is Grade.WRONG


@pytest.mark.parametrize("text", ["", "mask=boolean", "mask=additive,causal=true", ALL_SET])
def test_the_reference_is_that_of_torch(text):
    """The results and gradients of autograd through cat, masked_fill and softmax, in float64."""
    case, back = case_of(text, "fp32", F), case_of(text, "fp32", B)
    values = operation(case.op).parameter_values
    x, *others = any_dim.make(case, 0, CPU)
    leaf = x.double().requires_grad_()
    z = leaf * values["scale"]
    if values["mask"] != "none":
        z = z + others[0] if values["mask"] == "additive" else z.masked_fill(~others[0], -math.inf)
    if values["causal"]:
        z = z.masked_fill(torch.ones(40, 65, dtype=torch.bool).triu(26), -math.inf)
    sink = (others[-1] if values["sink"] else torch.full((3,), -math.inf)).double().requires_grad_()
    p = torch.softmax(torch.cat([z, sink[:, None, None].expand(2, 3, 40, 1)], dim=-1), dim=-1)
    y, share = p[..., :-1], p[..., -1].detach()
    dy = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    dx, dsink = torch.autograd.grad(y, (leaf, sink), dy)

    def rows(case, given):
        return any_dim.rows_of(case, given, slice(None))

    (expected,) = numerics(case.op).estimate(case, rows(case, (x, *others)))
    torch.testing.assert_close(expected.double(), y.detach().view(-1, 65), rtol=1e-4, atol=1e-7)
    gradients = numerics(case.op).estimate(back, rows(back, (dy, y.detach(), *((share,) if values["sink"] else ()))))
    torch.testing.assert_close(gradients[0].double(), dx.view(-1, 65), rtol=1e-4, atol=1e-6)
    if values["sink"]:
        torch.testing.assert_close(gradients[1].double().view(2, 3, 40).sum(dim=(0, 2)), dsink, rtol=1e-4, atol=1e-6)


def test_a_backward_gets_zeros_beyond_what_queries_see():
    case = case_of("causal=true", "bf16", B, (2, 2, 7, 9))
    _, y = any_dim.make(case, 0, CPU)
    assert torch.equal(y, y.tril(2))
    assert (y.tril(2).amax(dim=-1) > 0).all()


def test_low_precision_says_what_is_rounded():
    found = graded(RIGHT["naive"], case_of("scale=0.3,mask=additive", "bf16", F))
    assert found.detail.startswith("rounds intermediates, such as scale * x or its sum with the bias, to 16 bits: y[")


@pytest.mark.parametrize("text", ["mask=additive", "mask=additive,causal=true,scale=3"])
def test_structured_rows_keep_a_finite_sum_in_float16(text):
    scale = operation(op_of(text)).parameter_values["scale"]
    for seed in range(8):
        case = case_of(text, "fp16", F, (4, 4, 128, 9)).of_rows(2048)
        given = numerics(case.op).make(case, seed, CPU)
        numerics(case.op).make_structured(given, case, seed)
        rows = split(case, given)
        wide = replace(rows, first=rows.first.double(), bias=rows.bias.double())
        lost = ~logits(wide, scale).isneginf().all(-1) & logits(rows, scale).isneginf().all(-1)
        assert not lost.any(), (seed, lost.nonzero()[:, 0].tolist())


@with_dtypes("make", [RIGHT["naive"], WRONG["mask ignored"][1], constant(0.0)])
def test_numpy_agrees_with_torch_in_each_row(make, dtype, monkeypatch):
    monkeypatch.setattr(second_opinion, "chosen", lambda M: frozenset(range(M)))  # a check has two of them
    for text in ("mask=additive", "scale=0.125,mask=additive", ALL_SET):
        assert graded(make, case_of(text, dtype, F)).grade is not Grade.UNVERIFIED
