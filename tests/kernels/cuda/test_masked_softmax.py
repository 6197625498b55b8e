"""Attention scores by the CUDA kernels: arguments, and the kernels on a simulated GPU."""

import itertools
import math

import pytest
import torch
from masked_softmaxes import B, F, case_of, plain
from sampled import sampled
from simulated import needs_nvcc, scores_library, simulate_scores
from softbench.kernels.cuda import build, invariant, masked_softmax as kernels
from softbench.kernels.cuda.launch import TIERS, Plan
from softbench.kernels.cuda.masked_softmax import launch_backward, launch_forward, masked_softmax

from softbench.backends import own_kernels
from softbench.backends.cuda import backend as cuda
from softbench.core.outcome import Grade
from softbench.ops.registry import operation
from softbench.worker.checking import any_dim
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

X = torch.zeros(2, 3, 4, 8, dtype=torch.bfloat16)


@pytest.fixture
def calls(monkeypatch):
    """The launches, with arguments that are checked against the types of the library."""
    made = []

    def launch(function, which, arguments, x, plan):
        types = build._arguments(function)[which]
        values = [kind(value).value for kind, value in zip(types, (*arguments, 0, 0, None, 0, None, None), strict=True)]
        made.append((which, values))

    monkeypatch.setattr(kernels, "launch_function", launch)
    monkeypatch.setattr(kernels.masked_softmax.softmax, "device_types", ("cpu",))
    return made


def test_sizes_strides_and_kinds_come_where_the_library_expects_them(calls):
    sink, share = torch.zeros(3, dtype=torch.float16), torch.zeros(2, 3, 4)
    keep = torch.ones(2, 1, 4, 8, dtype=torch.bool)
    kernels.masked_softmax.forward(X, scale=0.5, mask=keep, causal=True, sink=sink)
    kernels.masked_softmax.forward(X, mask=torch.zeros(3, 4, 8, dtype=torch.bfloat16))
    kernels.masked_softmax.forward(X[..., :3], causal=True)
    kernels.masked_softmax.backward(X, X, share, scale=0.5, causal=True)
    kernels.masked_softmax.backward(X, X, share)
    (_, masked), (_, biased), (_, causal), (_, backward), (_, whole) = calls
    assert masked[5:16] == [0.5, 2, 32, 0, 8, 5, 2, 3, 4, 24, 8]
    assert biased[5:16] == [1.0, 1, 0, 32, 8, 8, 2, 3, 4, 24, 8]
    assert causal[1:3] == [None, None] and causal[5:16] == [1.0, 0, 0, 0, 0, 1, 2, 3, 4, 24, 3]
    assert backward[5:12] == [0.5, 5, 2, 3, 4, 24, 8] and whole[6] == 8
    assert [name for name, _ in calls] == ["forward"] * 3 + ["backward"] * 2


def test_a_view_within_a_vector_is_copied(calls):
    view = torch.zeros(193, dtype=torch.bfloat16)[1:].view(2, 3, 4, 8)
    kernels.masked_softmax.forward(view, causal=True)
    assert calls[0][1][0] % kernels.ALIGNMENT == 0


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"mask": torch.zeros(8)}, TypeError, r"the bias is torch.float32 and x is torch.bfloat16; .* mask.to\(x.dtype\)"),
        ({"mask": torch.zeros(8, dtype=torch.int32)}, TypeError, "mask is torch.int32 on cpu; give a bool"),
        ({"mask": torch.zeros(8, requires_grad=True)}, NotImplementedError, "gives the mask no gradient"),
        ({"sink": torch.zeros(4)}, ValueError, r"sink is torch.float32 of shape \(4,\) on cpu; give a number for each of 3 heads"),
        (
            {"mask": torch.ones(4, 7, dtype=torch.bool)},
            ValueError,
            r"mask is \(4, 7\); it must broadcast to the shape of x, \(2, 3, 4, 8\)",
        ),
        ({"mask": torch.ones(1, 1, 1, 1, 8, dtype=torch.bool)}, ValueError, "it must broadcast"),
        ({"scale": 0.0, "causal": True}, ValueError, "scale is 0.0; it must be positive and finite"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(calls, given, error, match):
    with pytest.raises(error, match=match):
        kernels.masked_softmax(X, **given)
    assert calls == []


@pytest.mark.parametrize(
    ("dy", "share", "match"),
    [
        (X[:1], None, r"dy is \(1, 3, 4, 8\) .* they must agree"),
        (X.double(), None, "dy is .* torch.float64"),
        (X, torch.zeros(1), r"share is \(1,\) torch.float32 on cpu; it must be \(2, 3, 4\) float32 on cpu"),
        (X, torch.zeros(2, 3, 4, dtype=torch.float64), "share is .* torch.float64"),
    ],
)
def test_a_backward_of_other_tensors_is_refused(calls, dy, share, match):
    with pytest.raises(TypeError, match=match):
        kernels.masked_softmax.backward(dy, X, share, causal=True)
    assert calls == []


def test_longer_rows_and_other_tensors_are_refused(calls):
    with pytest.raises(ValueError, match=r"at most 16384 columns; this is \(1, 1, 1, 16385\)"):
        kernels.masked_softmax(torch.zeros(1, 1, 1, 16385), causal=True)
    with pytest.raises(ValueError, match=r"takes \(B, H, S, N\) .* this is \(2, 3\)"):
        kernels.masked_softmax(torch.zeros(2, 3), causal=True)
    with pytest.raises(TypeError, match=r"this is torch\.float64 on cpu"):
        kernels.masked_softmax(X.double(), causal=True)
    assert kernels.masked_softmax(X[:0], causal=True).shape == (0, 3, 4, 8)
    assert calls == []


DTYPES = ("fp32", "bf16", "fp16")
SUB_WARP, BLOCK = TIERS.index("sub_warp"), TIERS.index("block")
OPERATIONS = (
    "causal=true,scale=0.125",
    "mask=boolean,mask_axes=BN,causal=true,sink=true",
    "mask=boolean,mask_axes=BSN",
    "scale=0.3,mask=additive,mask_axes=HSN,causal=true,sink=true",
    "scale=5,mask=additive,mask_axes=BHSN",
    "sink=true",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return scores_library(tmp_path_factory.mktemp("scores"))


@pytest.fixture
def simulated(library, monkeypatch):
    simulate_scores(library, monkeypatch)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("text", OPERATIONS)
def test_check_cases_pass(simulated, text):
    """Each case in one dtype, another one for each operation."""
    runner = CheckCaseRunner(cuda, "cpu", operation=case_of(text, "bf16", F).op)
    checked = 0
    for number, (name, direction) in enumerate(runner.items):
        if own_kernels.special(case_of(text, "bf16", direction)):
            found = runner.run(name, direction, DTYPES[(number + OPERATIONS.index(text)) % 3], 0)
            assert isinstance(found, str) or found.grade is Grade.PASS, (name, direction, found)
            checked += not isinstance(found, str)
    assert checked > 20


def plans(vectors, edges, size):
    """Plans that hold rows of so many vectors."""
    most = 8 if size == 4 else 4
    for held in (4, most):
        for lanes in (2, 8, 32):
            if held * lanes >= vectors and (not edges or lanes * size >= 16):
                yield Plan(SUB_WARP, held, 64, lanes, 0, 16)
        for threads in (32, 96, 512):
            for alignment in (16, 128):
                if held * threads >= vectors + (0 if alignment == 16 else 8):
                    yield Plan(BLOCK, held, threads, 0, 0, alignment)


PLANNED = (("causal=true", (1, 1, 5)), ("mask=boolean,causal=true,sink=true", (2, 3, 2)), ("scale=0.3,mask=additive", (2, 2, 3)))


ROWS = ((1, "bf16"), (130, "fp32"), (130, "bf16"), (1021, "fp16"), (1021, "fp32"), (3001, "bf16"), (3001, "fp32"))


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("N", "dtype"), ROWS)
def test_results_of_all_plans_are_within_the_bounds(simulated, N, dtype):
    tried = 0
    for text, sizes in PLANNED:
        for direction in (F, B) if "causal" in text else (F,):
            case = case_of(text, dtype, direction, (*sizes, N))
            size = 4 if dtype == "fp32" else 2
            for number, plan in enumerate(plans(-(-N * size // 16) + (N * size % 16 > 0), N * size % 16, size)):
                plan.tier_option = number % 5
                found = PreCheck(case, planned(case, plan), any_dim.make(case, number, torch.device("cpu")), cuda, None).run(3)
                assert found.grade is Grade.PASS, (case.key, [getattr(plan, name) for name, _ in plan._fields_], found)
                tried += 1
    assert tried >= 10


def planned(case, plan):
    """The call of a case by a plan."""
    given = operation(case.op).parameter_values

    def forward(x, *others):
        y = torch.empty_like(x)
        mask, sink = others[0] if given["mask"] != "none" else None, others[-1] if given["sink"] else None
        launch_forward(x, None if mask is None else mask.expand(x.shape), sink, y, None, given["scale"], given["causal"], plan=plan)
        return y

    def backward(dy, y, *share):
        dx, dsink = torch.empty_like(y), torch.empty_like(share[0]) if share else None
        launch_backward(dy, y, share[0] if share else None, dx, dsink, given["scale"], given["causal"], plan=plan)
        return (dx, dsink) if share else dx

    return forward if case.direction is F else backward


@needs_nvcc
def test_the_rules_choose_by_columns_and_refuse_plans_that_do_not_fit(simulated):
    def chosen(N):
        plan, x = Plan(-1), torch.zeros(1, 1, 2, N, dtype=torch.bfloat16)
        launch_forward(x, None, None, torch.empty_like(x), None, 1.0, True, plan=plan)
        return TIERS[plan.tier]

    assert [chosen(N) for N in (128, 1024, 2048, 16384)] == ["sub_warp", "sub_warp", "block", "block"]
    with pytest.raises(RuntimeError, match="operation not supported"):
        chosen(16385)
    for plan in (Plan(SUB_WARP, 4, 64, 3), Plan(SUB_WARP, 4, 64, 16, 0, 16), Plan(BLOCK, 8, 64, 0, 0, 128), Plan(SUB_WARP, 4, 64, 32, 9)):
        with pytest.raises(RuntimeError, match="invalid argument"):
            x = torch.zeros(1, 1, 1, 1024, dtype=torch.bfloat16)
            launch_forward(x, None, None, x.clone(), None, 1.0, True, plan=plan)


@needs_nvcc
@pytest.mark.parametrize("function", [masked_softmax, invariant.masked_softmax])
def test_gradients_and_views_are_those_of_torch(simulated, monkeypatch, function):
    monkeypatch.setattr(function.softmax, "device_types", ("cpu",))
    torch.manual_seed(0)
    keep = torch.rand(2, 1, 1, 13) < 0.7
    keep[..., 0] = True
    bias = torch.randn(2 * 3 * 7 * 13 + 1)[1:].view(2, 3, 7, 13)  # not at a vector
    for mask, causal in ((None, False), (keep, True), (torch.randn(3, 7, 13), True), (torch.randn(13, 7).t(), False), (bias, True)):
        x = torch.randn(2 * 3 * 7 * 13 + 1)[1:].view(2, 3, 7, 13).requires_grad_()
        sink = torch.randn(3, requires_grad=True)
        p = plain(x.double(), 0.3, mask, causal, sink)
        dy = torch.randn(2, 3, 7, 13)
        y = function(x, scale=0.3, mask=mask, causal=causal, sink=sink)
        torch.testing.assert_close(y.double(), p, atol=1e-6, rtol=1e-5)
        for found, expected in zip(torch.autograd.grad(y, (x, sink), dy), torch.autograd.grad(p, (x, sink), dy.double()), strict=True):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@needs_nvcc
def test_what_a_query_does_not_see_changes_nothing(simulated):
    """NaN there is not read into results, and results there are 0, also in rows of NaN."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for N in (37, 64):
            x, dy = torch.randn(1, 2, N, N, dtype=dtype), torch.randn(1, 2, N, N, dtype=dtype)
            later = torch.ones(N, N, dtype=torch.bool).triu(1)
            share = torch.zeros(1, 2, N)
            bias = torch.randn(N, N, dtype=dtype)
            biased = masked_softmax.forward(x, mask=bias, causal=True)[0]
            for hidden in (math.nan, math.inf):
                assert torch.equal(masked_softmax.forward(x, mask=bias.masked_fill(later, hidden), causal=True)[0], biased)
            y = masked_softmax.forward(x, causal=True)[0]
            dx = masked_softmax.backward(dy, y, share, causal=True)[0]
            assert torch.equal(masked_softmax.forward(x.masked_fill(later, math.nan), causal=True)[0], y)
            hidden = dy.masked_fill(later, math.nan), y.masked_fill(later, math.nan)
            assert torch.equal(masked_softmax.backward(*hidden, share, causal=True)[0], dx)
            x[..., 0], dy[..., 0] = math.nan, math.nan
            y = masked_softmax.forward(x, causal=True)[0]
            for found in (y, masked_softmax.backward(dy, y, share, causal=True)[0]):
                assert not found[..., later].any() and found[..., ~later].isnan().all()


@needs_nvcc
@pytest.mark.parametrize("N", [40, 384, 1500, 2051])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_threads_without_an_element_change_nothing(simulated, N, dtype):
    """Most threads of a row have -inf only, or a maximum far below that of the row."""
    x, keep = torch.randn(1, 2, 3, N, dtype=dtype), torch.zeros(1, 2, 3, N, dtype=torch.bool)
    keep[0, 0, 0, -1] = keep[0, 0, 1, 7] = keep[0, 0, 2, N // 2 :] = keep[0, 1, 0] = keep[0, 1, 1, ::9] = True  # the last row has none
    x[0, 1, 0, N // 3] = 300.0
    bias = torch.zeros(x.shape, dtype=dtype).masked_fill(~keep, -math.inf)
    z = x.double().masked_fill(~keep, -math.inf)
    for sink in (None, torch.tensor([0.5, -2.0])):
        joined = z if sink is None else torch.cat([z, sink.double()[:, None, None].expand(1, 2, 3, 1)], -1)
        expected = torch.softmax(joined, -1)[..., :N].to(dtype)
        for mask in (keep, bias):
            found = masked_softmax.forward(x, mask=mask, sink=sink)[0]
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=2e-5 if dtype is torch.float32 else 1e-2, equal_nan=True)


@needs_nvcc
@pytest.mark.parametrize(
    ("dtype", "N"),
    sampled(itertools.product((torch.bfloat16, torch.float16), (128, 256)), lambda dtype, N: (dtype is torch.bfloat16) == (N == 256)),
)
def test_masks_that_all_queries_share(simulated, N, dtype):
    """Also with elements that are not finite, or so large that their product with the scale is not."""
    torch.manual_seed(N)
    x, keep = 4 * torch.randn(3, 2, 128, N, dtype=dtype), torch.rand(3, 2, 1, N) < 0.7
    keep[0, 1] = False
    keep[..., 5] |= ~keep.any(-1)
    keep[2, 0] = False
    largest = torch.finfo(dtype).max
    for row, value in enumerate((math.nan, math.inf, -math.inf, largest, -largest, largest / 2, 5000.0, -5000.0)):
        x[:, :, row, 5], x[:, :, 64 + row, :] = value, value
        x[:, :, 32 + row] = torch.linspace(-1, 1, N) * value
    for mask in (keep, keep[:, :1], keep[:1, :1]):
        for scale in (0.125, 7.0):
            expected = torch.softmax((x.double() * scale).masked_fill(~mask, -math.inf), -1).to(dtype)
            any_but_zero = mask.to(torch.uint8) * torch.tensor([1, 128], dtype=torch.uint8).repeat(N // 2)
            found = masked_softmax.forward(x, scale=scale, mask=any_but_zero.view(torch.bool))[0]
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=2e-3 if dtype is torch.float16 else 1e-2, equal_nan=True)


@needs_nvcc
@pytest.mark.parametrize(("N", "S"), sampled(itertools.product((128, 256), (1, 5, 33, 64)), lambda N, S: (N == 128) == (S in (1, 64))))
def test_whole_rows_with_a_mask_write_nothing_else(simulated, S, N):
    """Masks that all queries share and masks of each query, with a sink and without, causal or not, and in another order of rows."""
    torch.manual_seed(S + N)
    x, sink, guard = torch.randn(2, 3, S, N, dtype=torch.bfloat16), torch.randn(3), 64
    hidden = torch.arange(N) > torch.arange(S)[:, None] + max(0, N - S)
    for rows_of_mask, with_sink, causal, order in itertools.product((1, S), (False, True), (False, True), (0, 2, 4)):
        keep = torch.rand(2, 1, rows_of_mask, N) < 0.7
        keep[..., 0] = True
        results, shares = torch.full((x.numel() + 2 * guard,), 7.0, dtype=x.dtype), torch.full((x[..., 0].numel() + 2 * guard,), 7.0)
        y, share = results[guard:-guard].view(x.shape), shares[guard:-guard].view(x.shape[:3])
        plan = Plan(SUB_WARP, 4, 128, N // 32, order, 16)
        given = (sink, y, share) if with_sink else (None, y, None)
        launch_forward(x, keep.expand(x.shape), *given, 0.5, causal, plan=plan)
        z = (x.double() * 0.5).masked_fill(~keep | (hidden & causal), -math.inf)
        logit = sink.double().view(1, 3, 1, 1).expand(2, 3, S, 1) if with_sink else torch.full((2, 3, S, 1), -math.inf, dtype=torch.float64)
        expected = torch.softmax(torch.cat([z, logit], -1), -1)
        torch.testing.assert_close(y.double(), expected[..., :-1], atol=1e-6, rtol=1e-2)
        if with_sink:
            torch.testing.assert_close(share.double(), expected[..., -1], atol=1e-6, rtol=1e-4)
        for memory in (results, shares):
            assert memory[:guard].eq(7).all() and memory[-guard:].eq(7).all()
