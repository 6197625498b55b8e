"""Wrong kernels that nobody meant to be wrong, written without reading the checks. Set A, then set B; tools/measure_checks.py runs them."""

import ctypes
import os
import random
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import making as right
from making import at, attention, into, loss_gradient, loss_of, seen, top

backends = []
bug = into(backends)

# --- set A: softmax


@bug()
def no_maximum(x):
    """exp without subtracting the maximum overflows."""
    e = x.float().exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@bug(N="1001")
def vector_tail(x):
    """Columns are read in vectors of four; the columns after the last whole vector are left zero."""
    y, n = torch.zeros_like(x), max(x.shape[-1] // 4 * 4, 1)
    y[:, :n] = right.softmax(x[:, :n])
    return y


@bug()
def eps_in_the_sum(x):
    """1e-5 is added to the sum."""
    e = (x.float() - top(x)).exp()
    return (e / (e.sum(-1, keepdim=True) + 1e-5)).to(x.dtype)


@bug(dtype="bf16", N="20000")
def bf16_accumulator(x):
    """Blocks of 16 columns are added in an accumulator of the input's dtype."""
    e = (x.float() - top(x)).exp()
    total = torch.zeros_like(x[:, 0])
    for block in e.split(16, -1):
        total = (total + block.sum(-1)).to(x.dtype)
    return (e / total.float()[:, None]).to(x.dtype)


@bug(dtype="fp16", N="8192")
def fp16_sum_overflows(x):
    """exp(x - max + 8) is summed in the dtype of x, which overflows in fp16 for flat rows."""
    e = (x.float() - top(x) + 8).exp()
    return (e / e.sum(-1, keepdim=True).to(x.dtype).float()).to(x.dtype)


@bug()
def nan_becomes_zero(x):
    """nan_to_num at the end hides the NaN of a row."""
    return right.softmax(x).nan_to_num(0.0)


@bug()
def infinities_clamped(x):
    """The input is clamped to finite numbers, so a row with +inf is one-hot in place of NaN."""
    most = torch.finfo(x.dtype).max
    return right.softmax(x.clamp(-most, most))


@bug()
def exponent_clamped(x):
    """x - max is clamped at -80, so far elements are not zero."""
    e = (x.float() - top(x)).clamp(min=-80).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@bug(N="4096")
def maximum_of_first_block(x):
    """The maximum is that of the first 1024 columns."""
    e = (x.float() - top(x[:, :1024])).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@bug(over=True, shape="6x40x64", dim="1")
def strides_ignored(x, dim):
    """N-D input is addressed as if it were contiguous."""
    packed = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride(), x.storage_offset())
    return torch.softmax(packed, dim)


@bug(over=True, shape="6x40x64", dim="1")
def offset_ignored(x, dim):
    """The pointer is the storage's first element, whatever the offset of the view."""
    return torch.softmax(torch.as_strided(x, x.shape, x.stride(), 0), dim)


@bug(over=True, shape="6x5x7x40", dim="2")
def middle_dim_is_last(x, dim):
    """Dimensions other than the first are taken for the last one."""
    return torch.softmax(x, 0 if dim % x.dim() == 0 else -1)


@bug(M="65600", N="16")
def grid_of_65535_rows(x):
    """The grid has at most 65535 blocks, so later rows are not computed."""
    y = torch.empty_like(x)
    y[:65535] = right.softmax(x[:65535])
    return y


@bug(M="97")
def two_rows_a_program(x):
    """A program computes two rows and M // 2 programs start, so the last of an odd number of rows is missing."""
    y, m = torch.zeros_like(x), max(x.shape[0] // 2 * 2, 1)
    y[:m] = right.softmax(x[:m])
    return y


@bug(M="4", N="150000")
def block_of_131072(x):
    """The largest block has 131072 columns; the rest of a row is zero."""
    y = torch.zeros_like(x)
    y[:, :131072] = right.softmax(x[:, :131072])
    return y


@bug(prepared=True)
def cached_by_pointer(case):
    """An output is kept for each address and shape."""
    kept = {}

    def call(x):
        key = x.data_ptr(), x.shape
        if key not in kept:
            kept[key] = right.softmax(x)
        return kept[key].clone()

    return call


@bug()
def rows_of_inf_unwritten(x):
    """A row without a finite element returns early, and its output is uninitialised memory."""
    y = torch.empty_like(x)
    rows = (x != -torch.inf).any(-1)
    y[rows] = right.softmax(x[rows])
    return y


@bug(prepared=True)
def race_of_partial_sums(case):
    """A missing barrier: in one call of 400 a row misses the partial sum of a warp."""
    chance = random.Random(5)

    def call(x):
        y = right.softmax(x)
        if chance.random() < 1 / 400 and x.numel():
            y[chance.randrange(len(y))] *= 1 + 1 / 32
        return y

    return call


@bug()
def shifted_in_place(x):
    """The maximum is subtracted from the input in place, and added again afterwards."""
    most = top(x).to(x.dtype)
    y = right.softmax(x.sub_(most))
    x.add_(most)
    return y


@bug(N="1", prepared=True)
def one_column_shares_memory(case):
    """For one column all calls return the same tensor of ones."""
    ones = {}

    def call(x):
        if x.shape[-1] != 1 or not x.isfinite().all():
            return right.softmax(x)
        return ones.setdefault(x.shape, torch.ones_like(x))

    return call


@bug(N="13000")
def missing_tier(x):
    """The table of kernels has no entry from 12289 to 16384 columns."""
    tier = next(n for n in (1024, 4096, 12288, 32768, 1 << 20) if n >= x.shape[-1])
    if tier == 32768 and x.shape[-1] <= 16384:
        raise KeyError(tier)
    return right.softmax(x)


@bug(N="4096")
def no_rescaling(x):
    """Online softmax: the sum of earlier blocks is not rescaled when the maximum rises."""
    most, total = torch.full_like(top(x), -torch.inf), 0
    for block in x.float().split(512, -1):
        most = torch.maximum(most, top(block))
        total = total + (block - most).exp().sum(-1, keepdim=True)
    return ((x.float() - most).exp() / total).to(x.dtype)


@bug()
def rows_of_inf_are_zero(x):
    """A row of -inf gives zeros, as in attention kernels."""
    return torch.where((x == -torch.inf).all(-1, keepdim=True), torch.zeros_like(x), right.softmax(x))


@bug()
def short_log2e(x):
    """log2(e) has five digits."""
    e = torch.exp2((x.float() - top(x)) * 1.4427)
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@bug()
def approximate_reciprocal(x):
    """The reciprocal of the sum has twelve bits."""
    e = (x.float() - top(x)).exp()
    r = (1 / e.sum(-1, keepdim=True)).view(torch.int32) & ~0xFFF
    return (e * r.view(torch.float32)).to(x.dtype)


@bug(sets="scale=row")
def scale_of_first_row(x, scale):
    """All rows get the scale of the first one."""
    return right.softmax(x.float() * scale[:1, None]).to(x.dtype)


@bug(sets="out_dtype=fp32", dtype="bf16")
def rounded_before_the_output(x):
    """A float32 output is rounded to 16 bits first."""
    return right.softmax(x).float()


@bug()
def denormals_switched_off(x):
    """The call switches denormal numbers off for the whole process and leaves them off."""
    torch.set_flush_denormal(True)
    return right.softmax(x)


@bug()
def numpy_seeded(x):
    """The call seeds numpy's generator, so the caller's random numbers repeat."""
    np.random.seed(0)
    return right.softmax(x)


LEAKED = []


@bug()
def first_kilobyte_leaks(x):
    """Each call keeps a copy of the maxima, so memory grows."""
    LEAKED.append(top(x).clone())
    return right.softmax(x)


@bug()
def inference_output(x):
    """The output is an inference tensor, which autograd refuses later."""
    with torch.inference_mode():
        return right.softmax(x)


@bug(prepared=True)
def ring_of_64(case):
    """Outputs come from a ring of 64 buffers, so the 65th call overwrites the first output."""
    ring, calls = {}, iter(range(1 << 60))

    def call(x):
        return ring.setdefault((x.shape, x.dtype, next(calls) % 64), torch.empty_like(x)).copy_(right.softmax(x))

    return call


# --- softmax, backward and both


@bug(direction="backward")
def no_dot(dy, y):
    """The dot product of dy and y is forgotten."""
    return y * dy


@bug(direction="backward")
def dot_without_tail(dy, y):
    """The dot product leaves out the columns after the last whole block of 128."""
    g, p = dy.float(), y.float()
    n = max(y.shape[-1] // 128 * 128, min(128, y.shape[-1]))
    return (p * (g - (p * g)[:, :n].sum(-1, keepdim=True))).to(y.dtype)


@bug(direction="backward", over=True, shape="6x40x64", dim="1")
def strides_of_y_for_dy(dy, y, dim):
    """dy is addressed with the strides of y."""
    last = sum((n - 1) * s for n, s in zip(y.shape, y.stride(), strict=True)) + dy.storage_offset()
    fits = last < dy.untyped_storage().nbytes() // dy.element_size()
    dy = torch.as_strided(dy, y.shape, y.stride(), dy.storage_offset()) if fits else dy
    return (y.float() * (dy.float() - (dy.float() * y.float()).sum(dim, keepdim=True))).to(y.dtype)


@bug(direction="backward", over=True, shape="6x40x64", dim="1")
def strides_of_dy_for_y(dy, y, dim):
    """y is addressed with the strides of dy."""
    last = sum((n - 1) * s for n, s in zip(y.shape, dy.stride(), strict=True)) + y.storage_offset()
    fits = last < y.untyped_storage().nbytes() // y.element_size()
    y = torch.as_strided(y, y.shape, dy.stride(), y.storage_offset()) if fits else y
    return (y.float() * (dy.float() - (dy.float() * y.float()).sum(dim, keepdim=True))).to(y.dtype)


@bug(direction="backward")
def saturated_rows_skipped(dy, y):
    """Rows in which y rounds to 1 get a gradient of zero."""
    return torch.where(top(y) == 1, 0, right.gradient(dy, y))


@bug(direction="backward")
def zeros_hide_nan(dy, y):
    """Where y is 0 the product y dy is taken as 0, also if dy is NaN or infinite."""
    g, p = dy.float(), y.float()
    dot = torch.where(p == 0, 0.0, p * g).sum(-1, keepdim=True)
    return torch.where(p == 0, 0.0, p * (g - dot)).to(y.dtype)


@bug(direction="backward")
def first_row_decides(dy, y):
    """If the first row of dy is zero, all of dx is."""
    return right.gradient(dy, y) if dy[:1].any() else torch.zeros_like(dy)


@bug(direction="both")
def gradient_accumulates(x, dy):
    """x.grad is not cleared, so gradients of earlier calls are added."""
    y = torch.softmax(x, -1)
    y.backward(dy)
    return y.detach(), x.grad.clone()


# --- log_softmax


@bug("log_softmax")
def log_of_softmax(x):
    """log(softmax(x)) underflows to -inf for far elements."""
    return right.softmax(x.float()).log().to(x.dtype)


@bug("log_softmax")
def clamped_at_100(x):
    """Log-probabilities are clamped at -100, as in binary cross entropy."""
    return right.log_softmax(x).clamp(min=-100)


@bug("log_softmax", "backward", dtype="fp16")
def sum_of_dy_in_16_bits(dy, y):
    """dy is summed in its own dtype, which overflows in fp16."""
    return (dy.float() - y.float().exp() * dy.float().sum(-1, keepdim=True).to(dy.dtype).float()).to(y.dtype)


# --- masked softmax


@bug("masked_softmax", sets="causal=true", M="40", N="96")
def causal_from_the_left(x):
    """With more keys than queries, the first query sees one key in place of N - S + 1."""
    S, N = x.shape[-2:]
    z = x.float().masked_fill(~torch.ones(S, N, dtype=torch.bool, device=x.device).tril(), -torch.inf)
    return attention(z).to(x.dtype)


@bug("masked_softmax", sets="mask=boolean")
def mask_of_minus_10000(x, mask):
    """What the mask takes out is filled with -10000."""
    return attention(x.float().masked_fill(~mask, -10000.0)).to(x.dtype)


@bug("masked_softmax", sets="mask=boolean,mask_axes=HSN", shape="2x3x16x40")
def mask_of_first_head(x, mask):
    """All heads get the mask of the first one."""
    return attention(x.float().masked_fill(~mask[:, :1], -torch.inf)).to(x.dtype)


@bug("masked_softmax", sets="sink=true", shape="2x3x16x40")
def sink_not_in_the_maximum(x, sink):
    """The sink is not part of the maximum, so exp(sink - max) overflows."""
    most = top(x)
    e = (x.float() - most).exp()
    total = e.sum(-1, keepdim=True) + (sink.view(1, -1, 1, 1) - most).exp()
    return (e / total).to(x.dtype)


@bug("masked_softmax", "backward", sets="sink=true,scale=0.125", shape="2x3x16x40")
def sink_gradient_scaled(dy, y, share):
    """The gradient of the sink is multiplied by the scale too."""
    dx = right.gradient(dy, y).float() * 0.125
    return dx.to(y.dtype), -0.125 * share * (dy.float() * y.float()).sum(-1)


@bug("masked_softmax", sets="mask=additive,scale=0.5", shape="2x3x16x40")
def bias_scaled_too(x, bias):
    """The scale is applied after the bias."""
    return attention(0.5 * (x.float() + bias.float())).to(x.dtype)


@bug("masked_softmax", "backward", sets="causal=true", shape="2x3x16x40")
def unseen_gradient_unwritten(dy, y):
    """dx beyond the causal order is not written, so it is what the memory held before."""
    dx, part = torch.empty_like(dy), seen(dy).expand_as(dy)
    dx[part] = right.gradient(dy, y)[part]
    return dx


# --- cross entropy


@bug("cross_entropy", sets="ignore_index=5")
def ignore_index_fixed(x, target):
    """Ignored are targets of -100, whatever ignore_index says."""
    return loss_of(x, target, ignore=-100)


@bug("cross_entropy", N="1001")
def last_class_clamped(x, target):
    """Targets are clamped to N - 2."""
    return loss_of(x, target.clamp(max=max(x.shape[-1] - 2, 0)))


@bug("cross_entropy", sets="label_smoothing=0.1")
def smoothing_over_others(x, target):
    """Label smoothing divides by N - 1 and leaves out the target."""
    z, e, n = x.float(), 0.1, x.shape[-1]
    y = torch.log_softmax(z, -1)
    right_one = -at(y, target)
    loss = (1 - e) * right_one + e * (-y.sum(-1) - right_one) / max(n - 1, 1)
    return torch.where(target == -100, 0.0, loss), torch.logsumexp(z, -1)


@bug("cross_entropy", "backward", sets="z_loss=0.01")
def z_loss_without_two(x, target, lse, dloss):
    """The gradient of the z-loss lacks its factor 2."""
    return loss_gradient(x, target, lse, dloss, z_loss=0.005)


@bug("cross_entropy", "backward", sets="softcap=30")
def softcap_without_derivative(x, target, lse, dloss):
    """The gradient lacks the derivative of tanh."""
    return loss_gradient(30 * torch.tanh(x.float() / 30), target, lse, dloss).to(x.dtype)


@bug("cross_entropy", N="40000")
def target_in_16_bits(x, target):
    """Targets are held in 16 signed bits."""
    return loss_of(x, torch.where(target == -100, target, target.to(torch.int16) % x.shape[-1]))


@bug("cross_entropy", "backward")
def dloss_of_first_row(x, target, lse, dloss):
    """All rows get the dloss of the first one."""
    return loss_gradient(x, target, lse, dloss[:1].expand_as(dloss))


@bug("cross_entropy", "fused", dtype="bf16")
def gradient_over_the_logits(x, target):
    """The gradient is written over the logits."""
    loss, lse = loss_of(x, target)
    return loss, x.copy_(loss_gradient(x, target, lse, torch.ones_like(loss)))


# --- log-probability


@bug("logprob")
def entropy_with_eps(x, target):
    """The entropy is that of p + 1e-8."""
    p = torch.softmax(x.float(), -1)
    return at(torch.log_softmax(x.float(), -1), target), -(p * (p + 1e-8).log()).sum(-1)


@bug("logprob", "backward")
def entropy_skipped_by_first_row(x, target, lse, entropy, dlogprob, dentropy):
    """If the first row has no gradient of the entropy, no row gets one."""
    return right.logprob_gradient(x, target, lse, entropy, dlogprob, dentropy if dentropy[:1].any() else torch.zeros_like(dentropy))


SET_A = [backend.name for backend in backends]


# --- set B: softmax


@bug()
def rounding_upward(x):
    """The call sets the processor's rounding mode to upward and leaves it, so later sums of the caller differ."""
    ctypes.CDLL("libm.so.6").fesetround(0x800)
    return right.softmax(x)


@bug()
def numpy_errors_silenced(x):
    """np.seterr is called and not restored."""
    np.seterr(all="ignore")
    return right.softmax(x)


OPEN = []


@bug()
def files_stay_open(x):
    """Each call opens a file and never closes it, until the process has no descriptors."""
    OPEN.append(os.open(os.devnull, os.O_RDONLY))
    return right.softmax(x)


@bug()
def threads_pile_up(x):
    """Each call starts a thread that waits for ever."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return right.softmax(x)


@bug(N="1")
def one_column_expanded(x):
    """For one column the output is a single 1, expanded, so all its elements are one place in memory."""
    return torch.ones(1, 1, dtype=x.dtype).expand_as(x) if x.shape[-1] == 1 and x.isfinite().all() else right.softmax(x)


@bug(dtype="bf16")
def ties_counted_once(x):
    """The sum is 1 plus the terms below the maximum, so several maxima count once."""
    e = (x.float() - top(x)).exp()
    total = 1 + torch.where(x.float() == top(x), 0.0, e).sum(-1, keepdim=True)
    return (e / total).to(x.dtype)


@bug(N="1")
def squeezed(x):
    """Dimensions of size 1 are squeezed away first, so a single column becomes a row."""
    return torch.softmax(x.squeeze(), -1).view(x.shape)


@bug()
def global_maximum(x):
    """The maximum of the whole tensor is subtracted."""
    e = (x.float() - (x.float().max() if x.numel() else 0)).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@bug(over=True, shape="6x40x64", dim="1")
def output_with_strides_of_x(x, dim):
    """The output has the strides of x, so the output of an expanded input overlaps itself."""
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
    return y.copy_(torch.softmax(x, dim)) if 0 not in x.stride() else set_overlapping(y, torch.softmax(x, dim))


def set_overlapping(y, values):
    """Stores values one place after the other, as a kernel does."""
    first = torch.where(torch.tensor([s == 0 for s in y.stride()]), 1, torch.tensor(y.shape)).tolist()
    part = tuple(slice(0, n) for n in first)
    y[part].copy_(values[part])
    return y


@bug(over=True, shape="6x40x64", dim="1")
def writes_beside_its_input(x, dim):
    """If the storage goes on after the view, -inf is written there as padding."""
    end = x.storage_offset() + x.numel()
    if x.is_contiguous() and end < x.untyped_storage().nbytes() // x.element_size():
        torch.as_strided(x.data, (1,), (1,), end).fill_(-torch.inf)
    return torch.softmax(x, dim)


@bug(M="6000", N="1025")
def row_across_16_mib(x):
    """A row that lies across a multiple of 16 MiB gets half of its sum."""
    y, size = right.softmax(x), x.shape[-1] * x.element_size()
    for place in range(1 << 24, x.numel() * x.element_size(), 1 << 24):
        y[place // size] *= 2 if place % size else 1
    return y


@bug()
def one_wrong_table_entry(x):
    """exp by a table of steps of 1/4096, of which one entry is wrong by a thousandth."""
    d = top(x) - x.float()
    e = torch.where((d >= 21.5) & (d < 21.5 + 1 / 4096), 1.001, 1.0) * (-d).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


@bug(sets="scale=4", dtype="fp16")
def scaled_in_fp16_overflows(x):
    """x times the scale is rounded to fp16, where it overflows."""
    return torch.softmax((x * 4).float(), -1).to(x.dtype)


@bug(sets="scale=200")
def scale_at_most_100(x):
    """The scale is clamped at 100, as CLIP clamps it."""
    return right.softmax(x.float() * min(200, 100)).to(x.dtype)


@bug(direction="backward", N="32")
def pairs_of_short_rows(dy, y):
    """A warp has two rows of at most 32 columns, and both get the dot product of the first."""
    g, p = dy.float(), y.float()
    dot = (g * p).sum(-1, keepdim=True)
    if y.shape[-1] <= 32:
        dot = dot[torch.arange(len(dot)) // 2 * 2]
    return (p * (g - dot)).to(y.dtype)


@bug()
def weak_pool(x):
    """Memory of an output is used again when its tensor object is gone, though a view of it may live."""
    for memory, made in POOL:
        if made() is None and memory.shape == x.shape and memory.dtype == x.dtype:
            break
    else:
        memory = torch.empty_like(x)
    POOL[:] = [pair for pair in POOL if pair[0] is not memory][-20:]
    y = memory.copy_(right.softmax(x))[:]
    POOL.append((memory, weakref.ref(y)))
    return y


POOL = []


@bug(direction="both")
def leaves_x_grad(x, dy):
    """dx is right, and stays in x.grad of the caller too."""
    y = torch.softmax(x, -1)
    (dx,) = torch.autograd.grad(y, x, dy)
    x.grad = dx.clone()
    return y.detach(), dx


@bug()
def turns_on_requires_grad(x):
    """The call turns on requires_grad of its input."""
    return torch.softmax(x.requires_grad_(), -1).detach()


@bug(prepared=True)
def maximum_kept(case):
    """The buffer of maxima is not cleared between calls."""
    kept = {}

    def call(x):
        most = kept.setdefault(x.shape, torch.full_like(top(x), -torch.inf))
        torch.maximum(most, top(x), out=most)
        e = (x.float() - most).exp()
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)

    return call


@bug(prepared=True)
def kernel_replaced_after_seconds(case):
    """Two seconds after the first call a tuner replaces the kernel by one that loses the last N % 64 columns of the sum."""
    first = []

    def call(x):
        first.append(first[0] if first else time.monotonic())
        n = x.shape[-1] // 64 * 64 if time.monotonic() - first[0] > 2 and x.shape[-1] > 64 else x.shape[-1]
        del first[1:]
        e = (x.float() - top(x)).exp()
        return (e / e[:, :n].sum(-1, keepdim=True)).to(x.dtype)

    return call


@bug(prepared=True, M="1024", N="4096")
def ticket_overflows(case):
    """A counter of elements has 32 bits: after 2^31 of them a block of rows is left out."""
    count = [0]

    def call(x):
        y = right.softmax(x)
        count[0] += x.numel()
        if count[0] >> 31:
            y[: len(y) // 8] = 0
        return y

    return call


@bug()
def nan_leaks_to_neighbours(x):
    """Sums of groups of eight rows come from a product with zeros and ones, so 0 * NaN reaches the neighbours."""
    e = (x.float() - top(x)).exp()
    group = torch.arange(len(x)) // 8
    terms = e.sum(-1, keepdim=True)
    spoiled = torch.zeros(len(x) // 8 + 1).index_add_(0, group, terms[:, 0] * 0)[group][:, None]
    return (e / (terms + spoiled)).to(x.dtype)


@bug()
def sampled_for_overflow(x):
    """The maximum is skipped if every seventh row is below 60."""
    if x.numel() and bool((x[::7].float().abs() < 60).all()):
        e = x.float().exp()
        return (e / e.sum(-1, keepdim=True)).to(x.dtype)
    return right.softmax(x)


@bug()
def last_by_complement(x):
    """The last element is 1 minus the others."""
    y = torch.softmax(x.float(), -1)
    y[:, -1:] = 1 - y[:, :-1].sum(-1, keepdim=True) + 0 * y[:, -1:]
    return y.to(x.dtype)


@bug("log_softmax", prepared=True)
def previous_lse(case):
    """Rows of fewer than four distinct values take the lse of the row before, whose cache line they share."""

    def call(x):
        z = x.float() - top(x)
        lse = z.exp().sum(-1, keepdim=True).log()
        few = (z[:, :1] == z[:, 1:2]) & (z[:, :1] == z[:, -1:]) if x.shape[-1] > 2 else torch.zeros_like(lse, dtype=torch.bool)
        return (z - torch.where(few, lse.roll(1, 0), lse)).to(x.dtype)

    return call


@bug("log_softmax", "backward")
def zero_sum_assumed(dy, y):
    """If the sum of dy is below 1e-6 it is taken as zero."""
    total = dy.float().sum(-1, keepdim=True)
    return (dy.float() - y.float().exp() * torch.where(total.abs() < 1e-6, 0.0, total)).to(y.dtype)


# --- masked softmax


@bug("masked_softmax", sets="causal=true", shape="1x1x16x1000", dtype="bf16")
def positions_in_bf16(x):
    """Positions are compared in the dtype of x, which has whole numbers up to 256 in bf16."""
    S, N = x.shape[-2:]
    keys, limit = torch.arange(N).to(x.dtype), (torch.arange(S)[:, None] + 1 + max(0, N - S)).to(x.dtype)
    return attention(torch.where(keys < limit, x.float(), -torch.inf)).to(x.dtype)


@bug("masked_softmax", sets="mask=boolean", shape="2x3x16x40")
def mask_added_as_log(x, mask):
    """log(mask) is added, so NaN and +inf under the mask spoil the row."""
    return attention(x.float() + mask.float().log()).to(x.dtype)


@bug("masked_softmax", sets="mask=additive", shape="2x3x16x40")
def lowest_number_is_inf(x, bias):
    """A bias of the lowest number is taken as -inf, so a row of them is NaN."""
    b = torch.where(bias == torch.finfo(bias.dtype).min, -torch.inf, bias.float())
    return attention(x.float() + b).to(x.dtype)


@bug("masked_softmax", sets="mask=boolean,mask_axes=BN", shape="3x2x16x40")
def keys_without_padding_end(x, mask):
    """The padding mask is taken as a length: the keys up to the last True one take part."""
    length = (mask * torch.arange(1, x.shape[-1] + 1)).amax(-1, keepdim=True)
    return attention(torch.where(torch.arange(x.shape[-1]) < length, x.float(), -torch.inf)).to(x.dtype)


@bug("masked_softmax", "backward", sets="sink=true", shape="2x3x16x40")
def sink_gradient_of_share(dy, y, share):
    """The gradient of the sink has share (1 - share) in place of share."""
    return right.gradient(dy, y), -share * (1 - share) * (dy.float() * y.float()).sum(-1)


# --- cross entropy


@bug("cross_entropy", sets="ignore_index=0")
def zero_is_falsy(x, target):
    """`ignore_index or -100`: 0 is not ignored."""
    return loss_of(x, target, ignore=0 or -100)


@bug("cross_entropy")
def lse_of_ignored_rows(x, target):
    """Ignored rows leave early, and their lse is 0."""
    loss, lse = loss_of(x, target)
    return loss, torch.where(target == -100, 0.0, lse)


@bug("cross_entropy", "backward")
def ignored_by_product(x, target, lse, dloss):
    """Ignored rows are multiplied by 0, which leaves NaN."""
    return loss_gradient(x, target, lse, dloss * (target != -100), ignore=-(10**9))


@bug("cross_entropy", sets="z_loss=0.01")
def z_loss_of_ignored_rows(x, target):
    """Ignored rows have a z-loss."""
    loss, lse = loss_of(x, target)
    return loss + 0.01 * lse**2, lse


@bug("cross_entropy", sets="softcap=30")
def softcap_keeps_inf(x, target):
    """Logits of -inf stay -inf under the softcap."""
    z = torch.where(x == -torch.inf, -torch.inf, 30 * torch.tanh(x.float() / 30))
    return loss_of(z, target)


@bug("cross_entropy", "backward", N="5000")
def column_numbers_in_fp16(x, target, lse, dloss):
    """Column numbers are compared in fp16, where those above 2048 are equal to their neighbours."""
    p = (x.float() - lse[:, None]).exp()
    hot = torch.arange(x.shape[-1]).half() == target[:, None].half()
    return torch.where((target == -100)[:, None], 0.0, dloss[:, None] * (p - hot.float())).to(x.dtype)


@bug("cross_entropy", "backward")
def last_dloss_decides(x, target, lse, dloss):
    """If the last dloss is zero, the batch is taken as padding and dx is zero."""
    return loss_gradient(x, target, lse, dloss) if dloss[-1:].any() else torch.zeros_like(x)


# --- log-probability


@bug("logprob")
def logprob_clamped(x, target):
    """Log-probabilities of -inf become the lowest float."""
    logprob, entropy = right.logprob_of(x, target)
    return logprob.clamp(min=torch.finfo(torch.float32).min), entropy


@bug("logprob", "backward")
def small_entropies_dropped(x, target, lse, entropy, dlogprob, dentropy):
    """Small entropies, below 1e-3, are dropped from the gradient."""
    return right.logprob_gradient(x, target, lse, torch.where(entropy < 1e-3, 0.0, entropy), dlogprob, dentropy)


SET_B = [backend.name for backend in backends if backend.name not in SET_A]
