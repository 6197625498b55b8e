"""Softmax and cross entropy over a dimension that is not the last, under the interpreter: any inner extent, alignment and strides."""

ANY_DIMENSION = """
import torch
from softbench.kernels.triton import dispatch, strided

torch.manual_seed(0)
F, B = torch.float32, torch.bfloat16
for dtype, result, shape, dim, scale, log in (
    (F, F, (2, 21, 4, 16), 1, None, False), (F, F, (3, 5, 7), 1, 1.5, True),
    (B, B, (2, 40, 28), 1, None, False), (B, B, (130, 6), 0, 0.5, True), (B, F, (5, 9, 3), -2, 2.0, False),
):
    function = dispatch.log_softmax if log else dispatch.softmax
    unit = 3e-7 if result is F else 2**-8
    x = torch.randn(shape).to(dtype).transpose(0, -1).contiguous().transpose(0, -1) if shape == (3, 5, 7) else torch.randn(shape).to(dtype)
    x.movedim(dim, -1)[..., 0, 1:] = -torch.inf
    y = function.forward(x, dim, dtype=result, scale=scale)
    wide = x.double() * (scale or 1)
    expected = torch.log_softmax(wide, dim) if log else torch.softmax(wide, dim)
    assert y.is_contiguous() and y.dtype is result and torch.allclose(y.double(), expected, rtol=unit, atol=4 * unit), (dtype, shape, log)
    dy = torch.randn(shape).to(result)
    y = torch.log_softmax(torch.randn(shape), dim).to(result)
    y = y if log else y.exp()
    dx = function.backward(dy, y, dim, dtype=dtype, scale=scale)
    a, b = y.double(), dy.double()
    expected = b - a.exp() * b.sum(dim, keepdim=True) if log else a * (b - (a * b).sum(dim, keepdim=True))
    unit = 3e-7 if dtype is F else 2**-8
    assert torch.allclose(dx.double(), expected * (scale or 1), rtol=unit, atol=8 * unit), (dtype, shape, log)
assert strided.launch(torch.ones(1, 5000, 2), torch.ones(1, 5000, 2)) is False  # no program holds so many rows
for dtype, count in ((F, 2**31), (B, 2**32), (F, 2**31 - 4)):  # the kernel multiplies columns by their unit, in their type
    x = torch.empty(1, 2, count, dtype=dtype, device="meta")
    columns, unit = (strided.prepare((x, x)).arguments[at] for at in (8, 14))
    assert columns >= 2**31 or columns * unit < 2**31, (dtype, count)
print("fine")
"""


LOSS = """
import torch
from softbench.kernels.triton import strided_losses

torch.manual_seed(0)
B = torch.bfloat16
kept = strided_losses.kept_tile
for dtype, (outer, R, inner), smoothing, z_loss, softcap, scale in (
    (torch.float32, (2, 21, 8), 0.1, 1e-2, 0, 1.5), (B, (3, 37, 5), 0, 0, 0, 1), (torch.float32, (1, 130, 3), 0, 1e-3, 5.0, 1)
):
    strided_losses.kept_tile = kept if R < 100 else lambda *_: None  # as columns that no program keeps, which take two passes
    x, target = torch.randn(outer, R, inner).to(dtype), torch.randint(R, (outer, inner))
    target[:, ::3] = -100
    options = {"label_smoothing": smoothing, "z_loss": z_loss, "softcap": softcap, "logit_scale": scale}
    loss, lse = strided_losses.cross_entropy_forward(x, target.view(-1), **options)
    wide = x.double().requires_grad_()
    z = softcap * torch.tanh(wide / softcap) if softcap else wide * scale
    expected = torch.logsumexp(z, 1)
    assert torch.allclose(lse.double(), expected.view(-1), atol=2e-6)
    more = torch.where(target == -100, 0, z_loss * expected.square())
    of_each = torch.nn.functional.cross_entropy(z, target, reduction="none", label_smoothing=smoothing) + more
    assert torch.allclose(loss.double(), of_each.view(-1), atol=2e-6)
    unit = 2e-6 if dtype is torch.float32 else 2**-8
    statistics = strided_losses.cross_entropy_statistics(x, target.view(-1), **options)[1]
    for base, dloss in ((lse, torch.randn(of_each.shape)), (statistics, torch.ones(()).expand(of_each.shape))):
        (slope,) = torch.autograd.grad(of_each, wide, dloss.double(), retain_graph=True)
        dx = strided_losses.cross_entropy_backward(x, target.view(-1), base, dloss.reshape(-1), **options)
        assert torch.allclose(dx.double(), slope, rtol=unit, atol=2e-6)
    again, dx = strided_losses.cross_entropy_fused(x, target.view(-1), **options)
    assert torch.allclose(again, loss, atol=2e-6) and torch.allclose(dx.double(), slope, rtol=unit, atol=2e-6)
wrong = torch.tensor([-1, R, 2**32]).repeat(3)[: outer * inner]
loss, dx = strided_losses.cross_entropy_fused(x, wrong)
assert loss.isnan().all() and dx.isnan().all()
for R in (4_000_000, 40_000_000):  # a grid's second axis has at most 65535 programs
    part = strided_losses.part_of(torch.empty(1, R, 2, dtype=B, device="meta"), False)
    assert R <= part.rows * part.tiles * 65535
print("fine")
"""


def test_cross_entropy_of_columns_and_its_gradient(run_interpreted):
    run_interpreted(LOSS)


def test_any_dimension_is_right_without_copies(run_interpreted):
    run_interpreted(ANY_DIMENSION)
