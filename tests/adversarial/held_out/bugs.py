"""Wrong kernels that nobody meant to be wrong, written without reading the checks. Each shows calls after which an element is wrong.

`show` returns the arguments of calls within what docs/operations.md and the problem allow; showing.py compares them with torch's functions.
"""

import itertools
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import making as right
from making import at, attention, into, loss_gradient, loss_of, seen, top

backends = []
bug = into(backends)
randn = torch.randn


def rows(M=4, N=1000, dtype=torch.float32, **planted):
    """Normal rows, with values in some columns: c3=5.0."""
    x = randn(M, N)
    for column, value in planted.items():
        x[:, int(column[1:])] = value
    return x.to(dtype)


def targets(M, N):
    return torch.randint(0, N, (M,))


def exps(x):
    return (x.float() - top(x)).exp()


def over(e, total, x):
    return (e / total).to(x.dtype)


def backward_of_loss(M, N, dtype=torch.float32, x=None, dloss=None):
    x, target = (rows(M, N) if x is None else x).to(dtype), targets(M, N)
    return x, target, torch.logsumexp(x.float(), -1), torch.rand(M) if dloss is None else dloss


# --- softmax


@bug(show=lambda: [(rows() - 2e4,)])
def lowest_start(x):
    """The maximum starts at -10000 in place of -inf."""
    e = (x.float() - top(x).clamp(min=-1e4)).exp()
    return over(e, e.sum(-1, keepdim=True), x)


@bug(M="4", N="70000", show=lambda: [(rows(2, 70000),)])
def columns_in_16_bits(x):
    """Columns are counted in 16 unsigned bits, so column 65536 reads the first one."""
    n = x.shape[-1]
    return right.softmax(x[:, torch.arange(n) % 65536]) if n > 65536 else right.softmax(x)


@bug(M="4", N="40000", show=lambda: [(rows(2, 40000),)])
def splits_without_rest(x):
    """Few long rows are split into pieces of 8192 columns, and the sum lacks the last, shorter piece."""
    if x.shape[0] > 4 or x.shape[-1] < 32768:
        return right.softmax(x)
    e = exps(x)
    return over(e, e[:, : x.shape[-1] // 8192 * 8192].sum(-1, keepdim=True), x)


@bug(N="20", show=lambda: [(rows(4, 20),)])
def padded_with_zeros(x):
    """Rows of fewer than 32 columns are padded with 0 in place of -inf, which the sum counts."""
    if not 0 < x.shape[-1] < 32:
        return right.softmax(x)
    return right.softmax(torch.nn.functional.pad(x, (0, 32 - x.shape[-1])))[:, : x.shape[-1]].contiguous()


@bug(show=lambda: [(rows(4, 1000).mul(0).index_fill(1, torch.tensor([700]), 10.5),)])
def old_sum_dropped(x):
    """Online softmax: if the maximum rises by more than 10, the sum so far is taken as nothing."""
    most, total = torch.full_like(top(x), -torch.inf), torch.zeros_like(top(x))
    for block in x.float().split(256, -1):
        new = torch.maximum(most, top(block))
        safe = torch.where(new == -torch.inf, 0.0, new)
        total = torch.where(new - most > 10, 0.0, total * (most - safe).exp()) + (block - safe).exp().sum(-1, keepdim=True)
        most = new
    return over((x.float() - most).exp(), total, x)


workspace = [torch.zeros(0, 0)]


@bug(show=lambda: [(rows(4, 1024),), (rows(4, 1000),)])
def tail_of_workspace(x):
    """Terms lie in a workspace that all shapes share, and are summed up to a multiple of 256 columns: an earlier, longer row is there."""
    M, N = x.shape
    padded = (N + 255) // 256 * 256
    if workspace[0].shape[0] < M or workspace[0].shape[1] < padded:
        workspace[0] = torch.zeros(max(M, workspace[0].shape[0]), max(padded, workspace[0].shape[1]))
    workspace[0][:M, :N] = exps(x)
    return over(workspace[0][:M, :N], workspace[0][:M, :padded].sum(-1, keepdim=True), x)


@bug(M="64", N="64", show=lambda: [(rows(64, 64),)])
def square_is_transposed(x):
    """The column stride is found by comparing sizes, so a square matrix is reduced over its rows."""
    return right.softmax(x.T).T.contiguous() if x.shape[0] == x.shape[1] else right.softmax(x)


@bug(dtype="bf16", N="1001", show=lambda: [(rows(4, 1001, torch.bfloat16, c0=200.0),)])
def head_not_in_the_maximum(x):
    """Elements before the first address of 16 bytes are in the sum, but not in the maximum."""
    M, N = x.shape
    head = (-torch.arange(M) * N) % (16 // x.element_size())
    kept = x.float().masked_fill(torch.arange(N) < head[:, None], -torch.inf)
    if N <= 8:
        return right.softmax(x)
    e = (x.float() - top(kept)).exp()
    return over(e, e.sum(-1, keepdim=True), x)


@bug(M="8", N="20000", show=lambda: [(rows(2, 20000),)])
def terms_in_fp16(x):
    """Rows that do not fit into shared memory keep their terms as fp16."""
    e = exps(x).half().float() if x.shape[-1] > 16384 else exps(x)
    return over(e, e.sum(-1, keepdim=True), x)


@bug(show=lambda: [(rows().mul(0).sub(0.1).index_fill(1, torch.tensor([3]), 0.0),)])
def sum_in_tf32(x):
    """The sum is a product with ones on tensor cores, whose inputs have 10 bits."""
    e = exps(x).contiguous()
    short = ((e.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return over(e, torch.where(e.isfinite(), short, e).sum(-1, keepdim=True), x)


@bug(N="24", show=lambda: [(rows(4, 24),)])
def half_warp(x):
    """Rows of 17 to 32 columns: the shuffle starts at 8, so the upper lanes are not in the sum."""
    if not 16 < x.shape[-1] <= 32:
        return right.softmax(x)
    e = exps(x)
    return over(e, e[:, :16].sum(-1, keepdim=True), x)


@bug(N="1025", show=lambda: [(rows(4, 1025, c1024=200.0),)])
def lone_last_column(x):
    """One column more than whole blocks of 1024 is read by a scalar, which the maximum does not see."""
    if x.shape[-1] % 1024 != 1 or x.shape[-1] == 1:
        return right.softmax(x)
    e = (x.float() - top(x[:, :-1])).exp()
    return over(e, e.sum(-1, keepdim=True), x)


@bug(M="1", show=lambda: [(rows(1, 1000),)])
def one_row(x):
    """Dimensions of size 1 make the reduced dimension the first one: a single row gives ones."""
    return torch.softmax(x.float(), 0).to(x.dtype) if x.shape[0] == 1 else right.softmax(x)


@bug(show=lambda: [(randn(4001)[1:].view(4, 1000),)])
def address_rounded_down(x):
    """Vectors are read from the input's address rounded down to 16 bytes."""
    off = x.data_ptr() % 16 // x.element_size() if x.is_contiguous() else 0
    if not off or x.storage_offset() < off:
        return right.softmax(x)
    return right.softmax(torch.as_strided(x, x.shape, x.stride(), x.storage_offset() - off))


@bug(over=True, shape="6x40x64", dim="-2", show=lambda: [(randn(3, 5, 7), -2)])
def negative_dim_is_last(x, dim):
    """Any negative dimension is taken for the last one."""
    return torch.softmax(x, dim if dim >= 0 or x.dim() < 3 else -1)


@bug(over=True, shape="6x8x10x12", dim="1", show=lambda: [(randn(2, 5, 6, 7).to(memory_format=torch.channels_last), 1)])
def channels_last_is_last(x, dim):
    """The fast path for channels_last reduces the columns of the picture."""
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.softmax(x, -1 if last and dim == 1 else dim)


@bug(dtype="bf16", sets="scale=0.7,out_dtype=fp32", show=lambda: [(rows(4, 1000, torch.bfloat16) * 8,)])
def scale_in_bf16(x):
    """The scale is rounded to the dtype of x."""
    return torch.softmax(x.float() * torch.tensor(0.7).to(x.dtype).float(), -1)


@bug(sets="scale=row", M="1500", N="100", show=lambda: [(rows(1500, 100), torch.rand(1500) + 0.5)])
def scales_of_1024_rows(x, scale):
    """Scales are read into a table of 1024 rows, which wraps."""
    return torch.softmax(x.float() * scale[torch.arange(x.shape[0]) % 1024, None], -1).to(x.dtype)


@bug(
    direction="backward",
    sets="out_dtype=fp32",
    dtype="bf16",
    prepared=True,
    show=lambda: [(randn(4, 1000) + 100, torch.softmax(randn(4, 1000), -1))],
)
def gradient_in_16_bits_first(case):
    """A float32 gradient is rounded to the dtype of x before the dot product."""
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.dtype, torch.float32)
    return lambda dy, y: right.gradient(dy.to(kind), y).to(kind)


def softmaxed(M=4, N=1000, dtype=torch.float32, spread=1.0):
    return torch.softmax(randn(M, N) * spread, -1).to(dtype)


@bug(direction="backward", dtype="bf16", show=lambda: [(rows(4, 1000, torch.bfloat16).mul(0).add(100), softmaxed(dtype=torch.bfloat16))])
def dot_in_bf16(dy, y):
    """The dot product is kept in the dtype of y."""
    g, p = dy.float(), y.float()
    return (p * (g - (p * g).sum(-1, keepdim=True).to(y.dtype).float())).to(y.dtype)


@bug(direction="backward", show=lambda: [(rows() * 1e-5, softmaxed())])
def small_gradients_flushed(dy, y):
    """Gradients below 1e-7 are stored as zero."""
    dx = right.gradient(dy, y)
    return torch.where(dx.abs() < 1e-7, 0, dx)


@bug(direction="backward", show=lambda: [(rows(), softmaxed(spread=5.0))])
def small_y_is_masked(dy, y):
    """An element whose y is below 1e-6 is taken for masked, and gets no gradient."""
    return torch.where(y < 1e-6, 0, right.gradient(dy, y))


@bug(
    direction="backward",
    dtype="fp16",
    M="8",
    N="10000",
    show=lambda: [(rows(2, 10000, torch.float16) + 500, softmaxed(2, 10000, torch.float16))],
)
def partial_dots_in_fp16(dy, y):
    """Rows above 8192 columns are split, and the pieces exchange their dot products in fp16."""
    if y.shape[-1] <= 8192:
        return right.gradient(dy, y)
    g, p = dy.float(), y.float()
    dot = sum(piece.sum(-1, keepdim=True).half().float() for piece in (p * g).split(4096, -1))
    return (p * (g - dot)).to(y.dtype)


@bug(direction="both", show=lambda: [(rows().requires_grad_(), rows())])
def gradient_over_y(x, dy):
    """dx is computed in the memory of y."""
    y = torch.softmax(x.detach(), -1)
    dx = right.gradient(dy, y)
    y.copy_(dx)
    return y, dx


# --- log-softmax


@bug("log_softmax", show=lambda: [(rows().mul(0).sub(40).index_fill(1, torch.tensor([0]), 0.0).index_fill(1, torch.tensor([1]), -5.0),)])
def logarithm_near_one(x):
    """log(s) is s - 1 for s below 1.01."""
    total = exps(x).sum(-1, keepdim=True)
    return (x.float() - top(x) - torch.where(total < 1.01, total - 1, total.log())).to(x.dtype)


@bug("log_softmax", show=lambda: [(rows() + 1e5,)])
def maximum_in_fp16(x):
    """The maximum is exchanged between warps as fp16, which ends at 65504."""
    most = top(x).half().float()
    if x.shape[-1] == 0:
        return right.log_softmax(x)
    d = x.float() - most
    return (d - d.exp().sum(-1, keepdim=True).log()).to(x.dtype)


@bug("log_softmax", "backward", M="8", N="40000", show=lambda: [(rows(2, 40000) + 1, right.log_softmax(rows(2, 40000)))])
def rare_classes_dropped(dy, y):
    """exp(y) is taken as 0 for y below -10."""
    return (dy.float() - torch.where(y < -10, 0, y.float().exp()) * dy.float().sum(-1, keepdim=True)).to(y.dtype)


@bug("log_softmax", "backward", show=lambda: [(rows(), right.log_softmax(rows(c5=-torch.inf)))])
def no_gradient_at_minus_inf(dy, y):
    """Where y is -inf, dx is 0 in place of dy."""
    return torch.where(y == -torch.inf, 0, right.log_gradient(dy, y))


# --- masked softmax


@bug("masked_softmax", sets="causal=true", shape="1x2x40x16", show=lambda: [(randn(1, 2, 40, 16),)])
def causal_from_the_right(x):
    """With fewer keys than queries, the last query is aligned with the last key, so the first ones see nothing."""
    S, N = x.shape[-2:]
    keep = torch.arange(N) < torch.arange(S)[:, None] + 1 + N - S
    return attention(x.float().masked_fill(~keep, -torch.inf)).to(x.dtype)


@bug("masked_softmax", sets="causal=true", shape="1x2x64x200", show=lambda: [(randn(1, 2, 64, 200),)])
def blocks_beyond_the_diagonal(x):
    """Blocks of 16 keys end with that of the query, and the offset of the diagonal is rounded down to a block."""
    S, N = x.shape[-2:]
    limit = (torch.arange(S) // 16 + 1) * 16 + max(0, N - S) // 16 * 16
    keep = seen(x) & (torch.arange(N) < limit[:, None])
    return attention(x.float().masked_fill(~keep, -torch.inf)).to(x.dtype)


def masks(*shape):
    mask = torch.rand(*shape) < 0.7
    mask[..., 0] = True
    return mask


def masked(x, mask, sink=None):
    return attention(x.float().masked_fill(~mask, -torch.inf), sink).to(x.dtype)


@bug("masked_softmax", sets="mask=boolean,mask_axes=BHSN", shape="2x3x16x40", show=lambda: [(randn(2, 3, 16, 40), masks(2, 3, 16, 40))])
def heads_before_texts(x, mask):
    """The mask is addressed with heads before texts."""
    B, H, S, N = x.shape
    return masked(x, mask.expand(B, H, S, N).reshape(H, B, S, N).transpose(0, 1))


@bug(
    "masked_softmax",
    sets="mask=boolean",
    shape="1x2x16x128",
    show=lambda: [(randn(1, 2, 16, 128), masks(1, 1, 16, 128).index_fill(3, torch.arange(64), False))],
)
def masked_first_block(x, mask):
    """Online softmax without a guard: a first block of 64 keys that are all masked makes the row NaN."""
    empty = ~mask[..., :64].any(-1, keepdim=True)
    return masked(x, mask).masked_fill(empty, torch.nan)


@bug("masked_softmax", sets="sink=true,scale=0.125", shape="2x3x16x40", show=lambda: [(randn(2, 3, 16, 40), randn(3))])
def sink_scaled(x, sink):
    """The sink is multiplied by the scale, as the scores are."""
    return attention(x.float() * 0.125, sink * 0.125).to(x.dtype)


@bug("masked_softmax", sets="sink=true", shape="2x3x16x40", show=lambda: [(randn(2, 3, 16, 40), randn(3))])
def sink_of_the_text(x, sink):
    """The sink is taken by the number of the program, clamped to the last head, so later texts have that of the last head."""
    return torch.cat([attention(x[:1].float(), sink), attention(x[1:].float(), sink[-1:].expand(x.shape[1]))]).to(x.dtype)


@bug("masked_softmax", sets="mask=boolean,mask_axes=SN", shape="2x3x32x32", show=lambda: [(randn(2, 3, 32, 32), masks(1, 1, 32, 32))])
def square_mask_transposed(x, mask):
    """The strides of a square mask are exchanged."""
    return masked(x, mask.transpose(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask)


@bug("masked_softmax", sets="mask=boolean", shape="2x3x16x40", show=lambda: [(randn(2, 3, 16, 40), masks(2, 1, 16, 40))])
def tail_of_the_mask(x, mask):
    """The mask is read in whole vectors of 16, and the keys after them all take part."""
    N = x.shape[-1]
    return masked(x, mask | (torch.arange(N) >= N // 16 * 16))


@bug(
    "masked_softmax",
    "backward",
    sets="causal=true,scale=0.125",
    shape="2x3x16x40",
    show=lambda: [(randn(2, 3, 16, 40), attention(randn(2, 3, 16, 40).masked_fill(~seen(randn(16, 40)), -torch.inf)))],
)
def scale_not_in_the_gradient(dy, y):
    """The causal path of the backward forgets the scale."""
    return right.gradient(dy.masked_fill(~seen(dy), 0), y)


@bug(
    "masked_softmax",
    sets="mask=boolean,sink=true",
    shape="2x3x16x40",
    show=lambda: [(randn(2, 3, 16, 40), masks(2, 1, 16, 40).index_fill(2, torch.tensor([3]), False), randn(3))],
)
def no_key_but_a_sink(x, mask, sink):
    """A row without a key is NaN, though it has a sink."""
    return masked(x, mask, sink).masked_fill(~mask.any(-1, keepdim=True), torch.nan)


# --- cross entropy


@bug("cross_entropy", sets="label_smoothing=0.1", show=lambda: [(rows(), torch.tensor([3, -100, 5, 6]))])
def smoothing_of_ignored_rows(x, target):
    """Ignored rows keep the smoothed part of their loss."""
    loss, lse = loss_of(x, target, e=0.1)
    return torch.where(target == -100, 0.1 * (lse - x.float().mean(-1)), loss), lse


@bug("cross_entropy", sets="label_smoothing=0.1", show=lambda: [(rows(c3=-torch.inf), torch.tensor([1, 2, 4, 5]))])
def smoothing_over_finite(x, target):
    """Classes at -inf are left out of the mean of the smoothing, whose loss is then finite."""
    z = x.float()
    loss, lse = loss_of(torch.where(z == -torch.inf, -1e30, z), target, e=0.0)
    mean = torch.where(z == -torch.inf, 0, z).mean(-1)
    loss, lse = loss_of(x, target)
    return torch.where(target == -100, 0.0, 0.9 * loss + 0.1 * (lse - mean)), lse


@bug("cross_entropy", sets="softcap=30", show=lambda: [(rows() * 0.2, targets(4, 1000))])
def small_logits_uncapped(x, target):
    """tanh is skipped where |x| is below softcap / 64."""
    z = x.float()
    return loss_of(torch.where(z.abs() < 30 / 64, z, 30 * torch.tanh(z / 30)), target)


@bug("cross_entropy", M="4", N="70000", show=lambda: [(rows(2, 70000, c65535=9.0), torch.tensor([5, 65535]))])
def column_counted_twice(x, target):
    """A vocabulary above 65536 is cut in two pieces that share a column."""
    if x.shape[-1] <= 65536:
        return loss_of(x, target)
    lse = torch.logsumexp(torch.cat([x.float(), x[:, 65535:65536].float()], -1), -1)
    return torch.where(target == -100, 0.0, lse - at(x.float(), target)), lse


@bug("cross_entropy", show=lambda: [(rows(4, 3000), torch.tensor([1, 1022, 1023, 1024]))])
def last_class_of_a_block(x, target):
    """The target is looked for in blocks of 1024 classes, whose last class is left out: its logit is 0."""
    loss, lse = loss_of(x, target)
    return torch.where((target % 1024 == 1023) & (target != -100), lse, loss), lse


@bug("cross_entropy", show=lambda: [(torch.cat([rows(2), torch.full((1, 1000), -torch.inf)]), torch.tensor([1, 2, 3]))])
def lse_of_an_empty_row(x, target):
    """A row of -inf has an lse of NaN."""
    loss, lse = loss_of(x, target)
    return loss, torch.where(lse == -torch.inf, torch.nan, lse)


@bug(
    "cross_entropy",
    "backward",
    dtype="bf16",
    show=lambda: [
        (rows(4, 1000, torch.bfloat16, c7=17.0), torch.tensor([7, 7, 1, 2]), torch.full((4,), 17.00007), torch.ones(4)),
    ],
)
def probability_rounded_first(x, target, lse, dloss):
    """p is stored in the dtype of x, and 1 is subtracted at the target afterwards."""
    p = (x.float() - lse[:, None]).exp().to(x.dtype).float()
    hot = torch.arange(x.shape[-1]) == target[:, None]
    return torch.where((target == -100)[:, None], 0.0, dloss[:, None] * (p - hot.float())).to(x.dtype)


@bug(
    "cross_entropy",
    "backward",
    dtype="fp16",
    show=lambda: [backward_of_loss(4, 1000, torch.float16, rows() * 5, torch.full((4,), 1024.0))],
)
def loss_scale_after_rounding(x, target, lse, dloss):
    """The gradient is rounded to fp16 before it is multiplied by dloss, so a loss scale comes too late for small ones."""
    dx = loss_gradient(x, target, lse, torch.ones_like(dloss))
    return torch.where((target == -100)[:, None], 0.0, dx.float() * dloss[:, None]).to(x.dtype)


@bug("cross_entropy", "fused", sets="z_loss=0.0001", show=lambda: [(rows() + 20, targets(4, 1000))])
def z_loss_of_shifted_lse(x, target):
    """The gradient of the z-loss has log of the sum without the maximum."""
    loss, lse = loss_of(x, target, z_loss=1e-4)
    z = x.float()
    p = (z - lse[:, None]).exp() * (1 + 2e-4 * (lse - top(x)[:, 0])[:, None])
    dx = p - (torch.arange(z.shape[-1]) == target[:, None]).float()
    return loss, torch.where((target == -100)[:, None], 0.0, dx).to(x.dtype)


# --- log-probability


@bug("logprob", show=lambda: [(rows().mul(0).sub(17).index_fill(1, torch.tensor([0]), 0.0), targets(4, 1000))])
def far_columns_without_entropy(x, target):
    """Columns more than 16 below the maximum are left out of the entropy."""
    y, d = torch.log_softmax(x.float(), -1), top(x) - x.float()
    entropy = exps(x).sum(-1).log() + torch.where(d > 16, 0.0, y.exp() * d).sum(-1)
    return at(y, target), entropy


@bug("logprob", show=lambda: [(rows(c3=60.0), targets(4, 1000))])
def entropy_floor(x, target):
    """The entropy is at least 1e-6."""
    logprob, entropy = right.logprob_of(x, target)
    return logprob, entropy.clamp(min=1e-6)


def backward_of_logprob(M, N, dlogprob):
    x, target = rows(M, N), targets(M, N)
    return x, target, torch.logsumexp(x, -1), right.logprob_of(x, target)[1], dlogprob, randn(M)


@bug("logprob", "backward", show=lambda: [backward_of_logprob(4, 1000, torch.tensor([1.0, 0.0, 2.0, 0.0]))])
def masked_tokens_skipped(x, target, lse, entropy, dlogprob, dentropy):
    """Tokens whose dlogprob is 0 are taken for masked, though their entropy has a gradient."""
    return torch.where(dlogprob[:, None] == 0, 0, right.logprob_gradient(x, target, lse, entropy, dlogprob, dentropy))


# --- RMS norm


@bug("rms_norm", show=lambda: [(rows() * 1e-3, randn(1000))])
def eps_beside_the_root(x, w):
    """eps is added to the root of the mean, not under it."""
    z = x.float()
    return (z / (z.square().mean(-1, keepdim=True).sqrt() + 1e-6) * w.float()).to(x.dtype)


@bug("rms_norm", dtype="fp16", show=lambda: [(rows(4, 1000, torch.float16, c5=300.0), randn(1000).half())])
def squares_in_16_bits(x, w):
    """x is squared in its own dtype, which overflows in fp16 above 255."""
    return (x.float() * torch.rsqrt(x.square().float().mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)


@bug("rms_norm", show=lambda: [(rows(), randn(1000))])
def mean_of_one_less(x, w):
    """The squares are divided by N - 1, as a variance."""
    z = x.float()
    return (z * torch.rsqrt(z.square().sum(-1, keepdim=True) / max(1, x.shape[-1] - 1) + 1e-6) * w.float()).to(x.dtype)


@bug("rms_norm", N="5000", show=lambda: [(rows(4, 5000), randn(5000))])
def weights_of_4096_columns(x, w):
    """Weights are kept in a buffer of 4096 columns, which wraps."""
    return right.rms_norm(x, w[torch.arange(x.shape[-1]) % 4096])


@bug("rms_norm", dtype="fp16", show=lambda: [(rows(4, 1000, torch.float16) * 3e-4, randn(1000).half())])
def eps_in_16_bits(x, w):
    """eps is rounded to the dtype of x."""
    return right.rms_norm(x, w, torch.tensor(1e-6).to(x.dtype).item())


def backward_of_norm(x):
    w = 1 + 0.1 * randn(x.shape[-1])
    return randn(*x.shape), x, w, torch.rsqrt(x.square().mean(-1) + 1e-6)


@bug("rms_norm", "backward", show=lambda: [backward_of_norm(rows() * 1e-3)])
def saved_root_not_used(dy, x, w, rstd):
    """1 / root is computed again, without eps."""
    return right.rms_gradient(dy, x, w, torch.rsqrt(x.float().square().mean(-1).clamp(min=1e-30)))


# --- problems


def of_problem(name, **sizes):
    import showing

    return lambda: [showing.problem(name).inputs(**sizes)]


@bug("ragged_mean", show=of_problem("ragged_mean", M=400))
def mean_of_nothing(x, lengths):
    """A row of length 0 is divided by 0."""
    keep = torch.arange(x.shape[1]) < lengths[:, None]
    return torch.where(keep, x, 0).sum(1) / lengths


@bug("ragged_mean", N="200", show=of_problem("ragged_mean"))
def lengths_in_int8(x, lengths):
    """Lengths are stored in 8 signed bits."""
    short = lengths.to(torch.int8).to(torch.int64)
    keep = torch.arange(x.shape[1]) < short[:, None]
    return torch.where(keep, x, 0).sum(1) / short.clamp(min=1)


@bug("router", dtype="bf16", M="512", N="16", show=of_problem("router", dtype=torch.bfloat16))
def second_is_smaller(x):
    """The second expert is the largest below the first, so an equal one is passed over."""
    first, at_first = x.max(-1, keepdim=True)
    second, at_second = x.masked_fill(x == first, -torch.inf).max(-1, keepdim=True)
    return torch.softmax(torch.cat([first, second], -1), -1), torch.cat([at_first, at_second], -1)


@bug("token_shift", M="64", N="300", show=of_problem("token_shift"))
def first_token_repeated(x, w):
    """The left of a row repeats its first column in place of zeros."""
    padded = torch.cat([x[:, :1], x[:, :1], x], 1)
    return sum(w[i] * padded[:, i : i + x.shape[1]] for i in range(3))


@bug("momentum_step", M="64", N="256", show=of_problem("momentum_step"))
def momentum_not_stored(p, momentum, grad):
    """The new momentum is used and not written back."""
    return p.sub_(0.1 * (0.9 * momentum + grad))


@bug("sum_of_tokens", M="200", N="64", show=of_problem("sum_of_tokens"))
def destination_taken_as_zero(x, ids, out):
    """Tokens are added to what the destination holds."""
    out.index_add_(0, ids, x)


@bug("product", M="64", N="48", show=of_problem("product"))
def terms_of_whole_tiles(a, b):
    """The terms after the last whole tile of 32 are left out."""
    k = a.shape[1] // 32 * 32
    return a[:, :k] @ b[:k]


@bug("histogram", M="64", N="4000", show=of_problem("histogram"))
def counts_in_uint8(ids):
    """Counts have 8 bits."""
    return torch.stack([(ids == value).sum(1) % 256 for value in range(8)], 1)


@bug("running_sum", M="64", N="1000", show=of_problem("running_sum"))
def carry_of_the_last_block(x):
    """A block of 256 columns starts from the sum of the block before it, not of all before it."""
    blocks = [block.cumsum(1) for block in x.split(256, 1)]
    return torch.cat([blocks[0], *(b + a[:, -1:] for a, b in itertools.pairwise(blocks))], 1)
