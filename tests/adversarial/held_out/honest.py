"""Right kernels of many styles, none of which may be refused; the class low-precision is fine. tools/measure_checks.py runs them."""

import collections
import concurrent.futures
import contextlib
import functools
import logging
import math
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
import making as right
from making import attention, into, loss_gradient, loss_of, seen, top

backends = []
honest = into(backends)


def exps(x):
    return (x.float() - top(x)).exp()


# --- orders and precisions


@honest()
def three_passes(x):
    """Maximum, sum, division, in float32."""
    e = exps(x)
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@honest()
def online_blocks(x):
    """Online softmax over blocks of 256 columns with a guard for -inf."""
    most = torch.full_like(top(x), -torch.inf)
    total = torch.zeros_like(most)
    for block in x.float().split(256, -1):
        new = torch.maximum(most, top(block))
        safe = torch.where(new == -torch.inf, 0.0, new)
        total = total * (most - safe).exp() + (block - safe).exp().sum(-1, keepdim=True)
        most = new
    return ((x.float() - most).exp() / total).to(x.dtype)


@honest()
def sequential_sum(x):
    """The terms are added one after the other in float32."""
    e = exps(x)
    return (e / (e.cumsum(-1)[:, -1:] if x.shape[-1] else 1)).to(x.dtype)


@honest()
def reversed_columns(x):
    """Columns are read from the last to the first."""
    return torch.softmax(x.flip(-1).float(), -1).flip(-1).to(x.dtype)


@honest()
def in_double(x):
    """Everything in float64."""
    return torch.softmax(x.double(), -1).to(x.dtype)


@honest()
def kahan(x):
    """Blocks of 64 columns, summed with compensation."""
    e = exps(x)
    total, lost = e.new_zeros(len(e)), e.new_zeros(len(e))
    for block in e.split(64, -1):
        term = block.sum(-1) - lost
        new = total + term
        lost, total = (new - total) - term, new
    return (e / total[:, None]).to(x.dtype)


@honest()
def base_two(x):
    """exp2 of the difference times log2(e)."""
    z = x.float()
    e = torch.exp2((z - top(z)) * 1.4426950408889634)
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@honest()
def by_reciprocal(x):
    """Multiplies by the reciprocal of the sum."""
    e = exps(x)
    return (e * e.sum(-1, keepdim=True).reciprocal()).to(x.dtype)


@honest()
def by_logsumexp(x):
    """exp(x - lse), with x shifted by its maximum first."""
    z = x.float() - top(x)
    return (z - z.logsumexp(-1, keepdim=True)).exp().to(x.dtype)


@honest()
def as_log_softmax_exp(x):
    """exp of torch's log_softmax."""
    return torch.log_softmax(x.float(), -1).exp().to(x.dtype)


@honest()
def eager_in_own_dtype(x):
    """Eager operators in the dtype of the input, which round to 16 bits."""
    e = (x - top(x).to(x.dtype)).exp()
    return e / e.sum(-1, keepdim=True)


@honest()
def sum_by_matmul(x):
    """The sum is a product with a vector of ones."""
    e = exps(x)
    return (e / (e @ torch.ones(x.shape[-1], 1, device=x.device))).to(x.dtype)


@honest()
def padded_to_a_block(x):
    """Rows are padded with -inf to a multiple of 128 columns."""
    n = x.shape[-1]
    return torch.softmax(functional.pad(x.float(), (0, -n % 128), value=-torch.inf), -1)[:, :n].to(x.dtype).contiguous()


@honest()
def chunks_of_rows(x):
    """512 rows at a time into an output that exists."""
    y = torch.empty_like(x)
    for a, b in zip(x.split(512), y.split(512), strict=True):
        b.copy_(torch.softmax(a.float(), -1))
    return y


@honest()
def row_by_row(x):
    """Up to 64 rows one after the other, more at once."""
    rows = [torch.softmax(row.float(), 0).to(x.dtype) for row in x] if 0 < len(x) <= 64 else None
    return torch.stack(rows) if rows else torch.softmax(x.float(), -1).to(x.dtype)


@honest()
def transposed_output(x):
    """Computes the transpose, and gives a contiguous result back."""
    return torch.softmax(x.t().contiguous().float(), 0).to(x.dtype).t().contiguous()


# --- frameworks


@honest()
def out_variant(x):
    """torch.softmax with out=."""
    return torch.softmax(x, -1, out=torch.empty_like(x))


@honest(prepared=True)
def module_eval(case):
    """An nn.Module in evaluation mode."""
    return nn.Sequential(nn.Identity(), nn.Softmax(dim=-1)).eval()


@honest()
def own_no_grad(x):
    """Switches gradients off in a context."""
    with torch.no_grad():
        return functional.softmax(x, dim=-1)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return right.gradient(dy, y)


@honest()
def autograd_function(x):
    """The forward of an autograd.Function."""
    return Function.apply(x)


@honest(direction="both")
def function_both(x, dy):
    """Forward and backward of an autograd.Function."""
    y = Function.apply(x)
    (dx,) = torch.autograd.grad(y, x, dy)
    return y.detach(), dx


@honest(direction="both")
def backward_method(x, dy):
    """y.backward on a leaf of its own."""
    leaf = x.detach().requires_grad_()
    y = torch.softmax(leaf, -1)
    y.backward(dy)
    return y.detach(), leaf.grad


@honest(direction="both")
def func_vjp(x, dy):
    """torch.func.vjp."""
    y, pull = torch.func.vjp(lambda x: torch.softmax(x, -1), x.detach())
    return y, pull(dy)[0]


@honest(direction="both")
def y_with_graph(x, dy):
    """y is returned with its graph."""
    y = torch.softmax(x, -1)
    return y, torch.autograd.grad(y, x, dy, retain_graph=True)[0]


@honest()
def vmapped(x):
    """torch.func.vmap over rows."""
    return torch.func.vmap(lambda row: torch.softmax(row, 0))(x) if len(x) else torch.softmax(x, -1)


@torch.jit.script
def scripted_rows(x: torch.Tensor) -> torch.Tensor:
    z = x.float()
    e = (z - z.amax(-1, keepdim=True)).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@honest()
def jit_script(x):
    """torch.jit.script."""
    return scripted_rows(x) if x.numel() else torch.softmax(x, -1)


@honest(traits={"compiles": True}, prepared=True)
def compiled_eager_backend(case):
    """torch.compile with the backend eager."""
    return torch.compile(lambda x: torch.softmax(x.float(), -1).to(x.dtype), backend="eager", dynamic=True)


@honest()
def deterministic_context(x):
    """Asks torch for deterministic algorithms, and restores what was asked before."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return torch.softmax(x, -1)
    finally:
        torch.use_deterministic_algorithms(before)


@honest()
def numpy_rows(x):
    """numpy, through memory of its own."""
    z = x.float().cpu().numpy()
    if not z.size:
        return torch.empty_like(x)
    with np.errstate(all="ignore"):
        e = np.exp(z - z.max(-1, keepdims=True))
        return torch.from_numpy(e / e.sum(-1, keepdims=True)).to(x.device, x.dtype)


@honest()
def from_buffer(x):
    """The output lies in memory of a bytearray."""
    if not x.numel():
        return torch.empty_like(x)
    y = torch.frombuffer(bytearray(x.numel() * x.element_size()), dtype=x.dtype).view(x.shape)
    return y.copy_(torch.softmax(x.float(), -1))


@honest()
def numpy_output(x):
    """The output lies in memory that numpy allocated."""
    y = torch.from_numpy(np.zeros(x.shape, np.float32))
    return torch.softmax(x.float(), -1, out=y) if x.dtype == torch.float32 else torch.softmax(x.float(), -1).to(x.dtype)


@honest()
def part_of_a_larger_buffer(x):
    """The output is a part of a fresh, larger allocation."""
    y = torch.empty(x.numel() + 64, dtype=x.dtype, device=x.device)[64:].view(x.shape)
    return y.copy_(torch.softmax(x.float(), -1))


# --- state and habits


@honest(prepared=True)
def workspace(case):
    """Keeps a workspace for exp, which grows as needed."""
    kept = [torch.empty(0)]

    def call(x):
        if kept[0].numel() < x.numel():
            kept[0] = torch.empty(x.numel(), device=x.device)
        e = kept[0][: x.numel()].view(x.shape)
        torch.sub(x.float(), top(x), out=e).exp_()
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)

    return call


@honest(prepared=True, traits={"reuses_output": True})
def declared_reuse(case):
    """One output for all calls, declared by the trait."""
    kept = {}

    def call(x):
        y = kept.setdefault((x.shape, x.dtype), torch.empty_like(x))
        return y.copy_(torch.softmax(x.float(), -1))

    return call


@honest(prepared=True)
def masks_cached(case):
    """Keeps column numbers by shape."""
    columns = functools.lru_cache(16)(lambda n: torch.arange(n))

    def call(x):
        z = torch.where(columns(x.shape[-1]) >= 0, x.float(), -torch.inf)
        return torch.softmax(z, -1).to(x.dtype)

    return call


class Counting:
    def __init__(self, case):
        self.calls, self.shapes = 0, collections.Counter()

    def __call__(self, x):
        self.calls += 1
        self.shapes[tuple(x.shape)] += 1
        return torch.softmax(x, -1)


@honest(prepared=True)
def object_with_call(case):
    """An object with __call__ that counts calls by shape."""
    return Counting(case)


@honest()
def logs(x):
    """Logs each call."""
    logging.getLogger("kernel").info("softmax of %s", tuple(x.shape))
    return torch.softmax(x, -1)


@honest()
def prints(x):
    """Prints to both streams in each call."""
    print("softmax", tuple(x.shape))
    print("softmax", file=sys.stderr)
    return torch.softmax(x, -1)


@honest()
def warns(x):
    """Warns in each call."""
    warnings.warn("softmax is experimental", stacklevel=2)
    return torch.softmax(x, -1)


@honest()
def lazy_import(x):
    """Imports modules in the call."""
    import decimal
    import fractions  # noqa: F401
    import statistics  # noqa: F401

    return torch.softmax(x, -1) if decimal.Decimal(1) else None


@honest()
def local_generator(x):
    """Draws from a generator of its own."""
    torch.rand(4, generator=torch.Generator().manual_seed(7))
    np.random.default_rng(3).random(4)
    return torch.softmax(x, -1)


@honest()
def global_generator(x):
    """Draws from torch's global generator, as dropout does, and sets no seed."""
    torch.rand(3)
    return torch.softmax(x, -1)


@honest(prepared=True)
def thread_pool(case):
    """Halves of the rows on two threads, joined before the return."""
    pool = concurrent.futures.ThreadPoolExecutor(2)

    def call(x):
        y = torch.empty_like(x)
        half = (len(x) + 1) // 2
        parts = [(x[:half], y[:half]), (x[half:], y[half:])]
        for done in [pool.submit(lambda a, b: b.copy_(torch.softmax(a.float(), -1)), *part) for part in parts if part[0].numel()]:
            done.result()
        return y

    return call


@honest()
def thread_of_a_call(x):
    """A thread that starts and ends in the call."""
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.softmax(x, -1)))
    thread.start()
    thread.join()
    return found[0]


@honest()
def exceptions_inside(x):
    """Raises and catches an exception in each call."""
    with contextlib.suppress(RuntimeError):
        torch.empty(2).view(3)
    try:
        return torch.softmax(x, -2 if x.dim() < 2 else 5)
    except IndexError:
        return torch.softmax(x, -1)


@honest()
def special_cases_by_value(x):
    """A fast path for inputs without infinities or NaN, which is right too."""
    if x.numel() and bool(torch.isfinite(x).all()):
        e = exps(x)
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)
    return torch.softmax(x.float(), -1).to(x.dtype)


@honest()
def special_cases_by_size(x):
    """Other code for one column, for few columns, and for many."""
    n = x.shape[-1]
    if n == 1:
        return torch.where(x.isfinite(), 1.0, torch.nan).to(x.dtype)
    return right.softmax(x) if n < 2000 else as_log_softmax_exp(x)


@honest()
def cleans_up(x):
    """Collects garbage now and then."""
    import gc

    if x.shape[0] % 2:
        gc.collect(0)
    return torch.softmax(x, -1)


@honest(over=True, shape="6x40x64", dim="1")
def any_strides(x, dim):
    """torch's operator on any strides."""
    return torch.softmax(x, dim)


# --- backwards


@honest(direction="backward")
def torch_backward(dy, y):
    """torch's own operator."""
    return torch._softmax_backward_data(dy, y, -1, y.dtype)


@honest(direction="backward")
def two_products(dy, y):
    """y dy - y (y dy).sum() in float32."""
    t = y.float() * dy.float()
    return (t - y.float() * t.sum(-1, keepdim=True)).to(y.dtype)


@honest(direction="backward")
def dot_by_einsum(dy, y):
    """The dot product by einsum, in float64."""
    g, p = dy.double(), y.double()
    return (p * (g - torch.einsum("mn,mn->m", g, p)[:, None])).to(y.dtype)


@honest("log_softmax")
def log_three_passes(x):
    """(x - max) - log(sum)."""
    z = x.float() - top(x)
    return (z - z.exp().sum(-1, keepdim=True).log()).to(x.dtype)


@honest("log_softmax", "backward")
def log_backward(dy, y):
    """dy - exp(y) sum(dy)."""
    return right.log_gradient(dy, y)


# --- other operations


@honest("masked_softmax", sets="causal=true,sink=true,scale=0.125", shape="2x3x16x40")
def attention_with_sink(x, sink):
    """The sink as one more column."""
    return attention(torch.where(seen(x), x.float() * 0.125, -torch.inf), sink).to(x.dtype)


@honest("masked_softmax", sets="mask=boolean", shape="2x3x16x40")
def attention_where(x, mask):
    """torch.where and softmax in float32."""
    return torch.softmax(torch.where(mask, x.float(), -math.inf), -1).to(x.dtype)


@honest("cross_entropy", sets="label_smoothing=0.1")
def smoothed(x, target):
    """F.cross_entropy without a reduction."""
    return functional.cross_entropy(x.float(), target, reduction="none", label_smoothing=0.1), x.float().logsumexp(-1)


@honest("cross_entropy", "backward")
def loss_backward(x, target, lse, dloss):
    """The formula in float32."""
    return loss_gradient(x, target, lse, dloss)


@honest("cross_entropy", "fused", dtype="bf16")
def loss_fused(x, target):
    """The loss and its gradient, from one lse."""
    loss, lse = loss_of(x, target)
    return loss, loss_gradient(x, target, lse, torch.ones_like(loss))


@honest("logprob")
def logprob_forward(x, target):
    """The entropy without negative terms."""
    return right.logprob_of(x, target)
