"""Right kernels that are written in unusual ways: none may be refused."""

import asyncio
import contextvars
import ctypes
import decimal
import functools
import gc
import hashlib
import inspect
import mmap
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent))
import making as right
from making import into, seen, top

backends = []
honest = into(backends)


def exps(x):
    return (x.float() - top(x)).exp()


# --- orders of computation


@honest()
def pieces_merged(x):
    """Maximum and sum of five pieces, merged in a tree."""
    if x.shape[-1] < 5:
        return right.softmax(x)
    safe = lambda m: torch.where(m == -torch.inf, 0, m)  # noqa: E731
    parts = [(top(piece), (piece.float() - safe(top(piece))).exp().sum(-1, keepdim=True)) for piece in x.chunk(5, -1)]
    while len(parts) > 1:
        (m, s), (n, t), *rest = parts
        both = torch.maximum(m, n)
        parts = [*rest, (both, s * (m - safe(both)).exp() + t * (n - safe(both)).exp())]
    return ((x.float() - parts[0][0]).exp() / parts[0][1]).to(x.dtype)


@honest()
def smallest_first(x):
    """Columns are sorted, summed from the smallest and scattered back."""
    values, order = x.float().sort(-1)
    e = (values - top(x)).exp()
    return torch.empty_like(e).scatter_(-1, order, e / e.sum(-1, keepdim=True)).to(x.dtype)


@honest()
def halves_recursively(x):
    """A pairwise sum by recursion."""

    def total(e):
        n = e.shape[-1]
        return e.sum(-1, keepdim=True) if n < 9 else total(e[:, : n // 2]) + total(e[:, n // 2 :])

    e = exps(x)
    return (e / total(e)).to(x.dtype)


@honest()
def pieces_of_chance(x):
    """Python's random numbers choose the size of the pieces of the sum, so the last bits differ between calls."""
    e = exps(x)
    return (e / sum(piece.sum(-1, keepdim=True) for piece in e.split(random.randint(50, 200), -1))).to(x.dtype)


@honest()
def long_doubles(x):
    """numpy's longdouble."""
    z = x.double().numpy().astype(np.longdouble)
    with np.errstate(all="ignore"):
        e = np.exp(z - z.max(-1, keepdims=True, initial=-np.inf))
        return torch.from_numpy((e / e.sum(-1, keepdims=True)).astype(np.float64)).to(x.dtype)


@honest()
def columns_first(x):
    """Works on a column-major copy."""
    z = x.float().T.contiguous()
    e = (z - z.amax(0)).exp() if z.shape[0] else z
    return (e / e.sum(0)).T.contiguous().to(x.dtype)


@honest()
def two_numbers_for_the_sum(x):
    """The sum is held as a float and its rest."""
    e = exps(x)
    high = e.sum(-1, keepdim=True)
    low = (e.double().sum(-1, keepdim=True) - high.double()).float()
    return (e / high * (1 - low / high)).to(x.dtype)


# --- memory


@honest(prepared=True)
def arena_of_sixteen(case):
    """Sixteen outputs lie one after the other in one fresh allocation."""
    left = []

    def softmax(x):
        if not left or left[0].shape != x.shape or left[0].dtype != x.dtype:
            left[:] = torch.empty((16, *x.shape), dtype=x.dtype).unbind(0)
        y = left.pop()
        return torch.softmax(x.float(), -1, out=y) if x.dtype == torch.float32 else y.copy_(right.softmax(x))

    return softmax


@honest(prepared=True)
def pool_by_use_count(case):
    """A caching allocator: the memory of an output is used again when no tensor has it any more."""
    pool = []

    def softmax(x):
        size = x.numel() * x.element_size()
        for storage in pool:
            if storage.nbytes() == size and torch._C._storage_Use_Count(storage._cdata) <= 1:
                break
        else:
            storage = torch.empty(x.shape, dtype=x.dtype).untyped_storage()
            pool.append(storage)
            del pool[:-32]
        y = torch.empty(0, dtype=x.dtype).set_(storage, 0, x.shape)
        return y.copy_(right.softmax(x))

    return softmax


@honest()
def rows_with_a_pitch(x):
    """Rows of the output lie at multiples of 64 elements, as cudaMallocPitch has them."""
    y = x.new_empty(x.shape[0], (x.shape[-1] + 63) // 64 * 64)[:, : x.shape[-1]]
    return y.copy_(right.softmax(x))


@honest()
def scratch_in_a_map(x):
    """Terms lie in an anonymous memory map of the call."""
    with mmap.mmap(-1, max(4, x.numel() * 4)) as memory:
        e = torch.frombuffer(memory, dtype=torch.float32)[: x.numel()].view(x.shape)
        e.copy_(exps(x))
        y = (e / e.sum(-1, keepdim=True)).to(x.dtype)
        del e
    return y


@honest(prepared=True)
def last_output_kept(case):
    """The last output and a weak reference to the last input are kept for a debugger."""
    last = [None, None]

    def softmax(x):
        last[:] = right.softmax(x), weakref.ref(x)
        return last[0]

    return softmax


@honest(prepared=True)
def live_outputs_counted(case):
    """A finalizer of each output counts the outputs that live."""
    live = [0]

    def gone():
        live[0] -= 1

    def softmax(x):
        y = right.softmax(x)
        live[0] += 1
        weakref.finalize(y, gone)
        return y

    return softmax


@honest()
def lse_beside_the_output(x):
    """The log of the sum is an attribute of the output, for a backward."""
    lse = torch.logsumexp(x.float(), -1, keepdim=True)
    y = right.softmax(x)
    y.saved_lse = lse
    return y


# --- the process


def compiled():
    """A C kernel of its own, compiled once into a folder of the user."""
    text = """#include <math.h>
void softmax(const float* x, float* y, long M, long N) {
  for (long r = 0; r < M; r++, x += N, y += N) {
    float m = -INFINITY; double s = 0;
    for (long i = 0; i < N; i++) { if (x[i] > m) m = x[i]; }
    for (long i = 0; i < N; i++) { y[i] = expf(x[i] - m); s += y[i]; }
    for (long i = 0; i < N; i++) y[i] = y[i] / s;
  }
}"""
    folder = Path(tempfile.gettempdir(), f"softmax-{os.getuid()}-{hashlib.sha256(text.encode()).hexdigest()[:12]}")
    folder.mkdir(exist_ok=True)
    library = folder / f"softmax-{os.getpid()}.so"
    (folder / f"{os.getpid()}.c").write_text(text)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, folder / f"{os.getpid()}.c", "-lm"], check=True)
    return ctypes.CDLL(str(library)).softmax


@honest(prepared=True, traits={"compiles": True})
def c_kernel(case):
    """A C kernel that the first call compiles."""
    kernel = functools.cache(compiled)

    def softmax(x):
        z, y = x.float().contiguous(), torch.empty(x.shape)
        address = ctypes.c_void_p
        kernel()(address(z.data_ptr()), address(y.data_ptr()), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
        return y.to(x.dtype)

    return softmax


@honest(prepared=True)
def tunes_itself(case):
    """The first calls of a shape time three variants by the clock, and the fastest stays."""
    variants = (right.softmax, lambda x: (exps(x) / exps(x).sum(-1, keepdim=True)).to(x.dtype), columns_first)
    times = {}

    def softmax(x):
        seen_times = times.setdefault(x.shape, [])
        variant = variants[len(seen_times)] if len(seen_times) < 3 else variants[seen_times.index(min(seen_times))]
        start = time.perf_counter()
        y = variant(x)
        if len(seen_times) < 3:
            seen_times.append(time.perf_counter() - start)
        return y

    return softmax


@honest(prepared=True)
def tunes_again(case):
    """Every 50th call tries the other variant, and the clock chooses."""
    state = {"calls": 0, "best": 0, "times": [1.0, 1.0]}

    def softmax(x):
        state["calls"] += 1
        index = state["best"] ^ (state["calls"] % 50 == 0)
        start = time.perf_counter()
        y = right.softmax(x) if index else (exps(x) / exps(x).sum(-1, keepdim=True)).to(x.dtype)
        state["times"][index] = time.perf_counter() - start
        state["best"] = int(state["times"][1] < state["times"][0])
        return y

    return softmax


def timed(function):
    spent = []

    @functools.wraps(function)
    def wrapper(*given):
        start = time.perf_counter_ns()
        try:
            return function(*given)
        finally:
            spent.append(time.perf_counter_ns() - start)
            del spent[:-1000]

    return wrapper


@honest()
@timed
def timed_by_a_decorator(x):
    """A decorator keeps the times of the last thousand calls."""
    return right.softmax(x)


@honest()
def profiled(x):
    """A range of torch's profiler with the name of the caller."""
    frame = inspect.currentframe().f_back
    with torch.profiler.record_function(f"softmax from {frame.f_code.co_name}:{frame.f_lineno}"):
        return right.softmax(x)


@honest()
def collection_paused(x):
    """Garbage collection is off during the call."""
    was = gc.isenabled()
    gc.disable()
    try:
        return right.softmax(x)
    finally:
        if was:
            gc.enable()


@honest()
def threads_for_a_while(x):
    """One thread of torch during the call, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return right.softmax(x)
    finally:
        torch.set_num_threads(before)


@honest()
def contexts_of_python(x):
    """Contexts of decimal, numpy's errors and contextvars, all left at the end."""
    variable = contextvars.ContextVar("rows")
    with decimal.localcontext() as context, np.errstate(divide="raise"):
        context.prec = 50
        token = variable.set(x.shape[0])
        y = right.softmax(x)
        variable.reset(token)
    return y


@honest()
def event_loop(x):
    """A coroutine on an event loop of the call."""

    async def work():
        await asyncio.sleep(0)
        return right.softmax(x)

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


@honest(prepared=True)
def coroutine_style(case):
    """A generator that gets inputs by send."""

    def worker():
        y = None
        while True:
            x = yield y
            y = None if x is None else right.softmax(x)

    running = worker()
    next(running)
    return lambda x: running.send(x)


@honest(prepared=True)
def per_thread_state(case):
    """A table in thread-local memory, made by the first call under a lock."""
    local, lock = threading.local(), threading.Lock()

    def softmax(x):
        with lock:
            if not hasattr(local, "ones"):
                local.ones = {}
        ones = local.ones.setdefault(x.shape[-1], torch.ones(x.shape[-1], 1))
        e = exps(x)
        return (e / (e @ ones)).to(x.dtype)

    return softmax


@honest()
def inference_inside(x):
    """Inference mode inside, and a normal tensor as result."""
    y = torch.empty_like(x)
    with torch.inference_mode():
        y.copy_(right.softmax(x))
    return y


@honest()
def log_file_of_a_call(x):
    """A temporary file is written and closed in each call."""
    with tempfile.TemporaryFile("w") as file:
        file.write(f"{x.shape}\n")
    return right.softmax(x)


@honest(prepared=True)
def traced(case):
    """torch.jit.trace of an example, used for all shapes."""
    kernel = torch.jit.trace(lambda x: torch.softmax(x, -1), torch.randn(3, 5), check_trace=False)
    return lambda x: kernel(x)


# --- other passes


@honest(direction="backward")
def jacobian_of_short_rows(dy, y):
    """Rows of at most 64 columns by their Jacobian, if dy is finite."""
    if y.shape[-1] > 64 or not dy.isfinite().all():
        return right.gradient(dy, y)
    p = y.double()
    jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    return (jacobian @ dy.double()[:, :, None])[..., 0].to(y.dtype)


@honest("log_softmax", "backward", N="40000", M="8")
def log_backward_in_pieces(dy, y):
    """The sum of dy in pieces, and dx by expm1."""
    total = sum(piece.double().sum(-1, keepdim=True) for piece in dy.split(1000, -1)) if dy.shape[-1] else dy.sum(-1, keepdim=True)
    return ((dy.double() - total) - total * torch.expm1(y.double())).to(y.dtype)


@honest("masked_softmax", sets="causal=true", shape="1x2x40x16")
def seen_keys_only(x):
    """Each query's keys are a slice of their own."""
    y, keep = torch.zeros_like(x), seen(x).sum(-1).tolist()
    for s, n in enumerate(keep):
        y[..., s, :n] = torch.softmax(x[..., s, :n].float(), -1).to(x.dtype)
    return y


@honest("masked_softmax", sets="mask=boolean,sink=true", shape="2x3x16x40")
def sink_at_the_end(x, mask, sink):
    """The whole sum as a logarithm in float64, to which logaddexp adds the sink."""
    z = x.double().masked_fill(~mask, -torch.inf)
    lse = torch.logsumexp(z, -1, keepdim=True)
    s = sink.double().view(1, -1, 1, 1)
    return (z - torch.logaddexp(lse, s)).exp().masked_fill(lse == torch.inf, torch.nan).to(x.dtype)


@honest("cross_entropy", sets="label_smoothing=0.1", N="3000")
def loss_in_pieces(x, target):
    """The vocabulary is read in pieces of 1000 classes, online."""
    z = x.double()
    lse, total = torch.full(x.shape[:1], -torch.inf, dtype=torch.float64), torch.zeros(x.shape[0], dtype=torch.float64)
    for piece in z.split(1000, -1):
        lse = torch.logaddexp(lse, torch.logsumexp(piece, -1))
        total = total + piece.sum(-1)
    loss = 0.9 * (lse - right.at(z, target)) + 0.1 * (lse - total / max(1, x.shape[-1]))
    return torch.where(target == -100, 0.0, loss).float(), lse.float()


@honest("cross_entropy", "fused")
def loss_by_autograd(x, target):
    """torch's loss, and its gradient by autograd.grad."""
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        loss = functional.cross_entropy(z.float(), target, reduction="none")
        (dx,) = torch.autograd.grad(loss.sum(), z)
    return loss.detach(), dx


@honest("logprob")
def categorical(x, target):
    """torch.distributions.Categorical, in float64."""
    distribution = torch.distributions.Categorical(logits=x.double(), validate_args=False)
    return distribution.log_prob(target).float(), distribution.entropy().float()


@honest("rms_norm", dtype="bf16")
def norm_of_llama(x, w):
    """As LlamaRMSNorm: rounded to the dtype of x before the weight."""
    z = x.float()
    return w * (z * torch.rsqrt(z.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@honest("rms_norm", dtype="fp16")
def norm_of_scaled_rows(x, w):
    """Rows are divided by their largest element first."""
    z = x.float()
    most = z.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    most = torch.where(most.isfinite(), most, 1)
    u = z / most
    return (u * torch.rsqrt(u.square().mean(-1, keepdim=True) + 1e-6 / most.square()) * w.float()).to(x.dtype)


@honest("rms_norm", "backward")
def norm_backward_by_autograd(dy, x, w, rstd):
    """Autograd of F.rms_norm in float64, whose weight has no gradient."""
    with torch.enable_grad():
        z = x.double().requires_grad_()
        (dx,) = torch.autograd.grad(functional.rms_norm(z, w.shape, w.double(), 1e-6), z, dy.double())
    return dx.to(x.dtype)


# --- problems


@honest("ragged_mean", N="200")
def mean_by_prefix_sums(x, lengths):
    """Prefix sums in float64."""
    sums = functional.pad(x.double().cumsum(1), (1, 0))
    return (sums.gather(1, lengths[:, None])[:, 0] / lengths.clamp(min=1)).to(x.dtype)


@honest("router", M="512", N="16")
def sorted_experts(x):
    """A stable sort in place of topk."""
    values, experts = x.sort(dim=-1, descending=True, stable=True)
    return torch.sigmoid(torch.stack([values[:, 0] - values[:, 1], values[:, 1] - values[:, 0]], 1)), experts[:, :2].contiguous()


@honest("token_shift", M="64", N="300")
def by_convolution(x, w):
    """conv1d with padding on both sides, cut off."""
    return functional.conv1d(x[:, None], w.view(1, 1, 3), padding=2)[:, 0, : x.shape[1]].contiguous()


@honest("momentum_step", M="64", N="256")
def step_by_foreach(p, momentum, grad):
    """torch's foreach operators, in place."""
    torch._foreach_mul_([momentum], 0.9)
    torch._foreach_add_([momentum], [grad])
    torch._foreach_add_([p], [momentum], alpha=-0.1)
    return p


@honest("sum_of_tokens", M="200", N="64")
def tokens_by_product(x, ids, out):
    """A product with the matrix of ids, into the destination."""
    torch.mm((ids == torch.arange(x.shape[0])[:, None]).to(x.dtype), x, out=out)


@honest("product", M="64", N="48")
def product_in_double(a, b):
    """The product in float64."""
    return (a.double() @ b.double()).to(a.dtype)


@honest("running_sum", M="64", N="1000")
def sums_by_doubling(x):
    """A scan by doubling (Hillis and Steele)."""
    step = 1
    while step < x.shape[1]:
        x = torch.cat([x[:, :step], x[:, step:] + x[:, :-step]], 1)
        step *= 2
    return x
