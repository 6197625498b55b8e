"""Bugs in what a call leaves behind or relies on, one backend each. `item` is the check case that finds it.

`rule` is a part of the reason.

`in_run`: the rule by which a run finds it before timing; empty if it does not.
"""

import mmap
import random
import weakref

import torch

from softbench import Direction

F, B, BOTH = Direction.FORWARD, Direction.BACKWARD, Direction.BOTH
KEPT = []
HELD, MANY, LATE = "outputs held over later calls", "many calls", "late calls"


def honest(x):
    return torch.softmax(x.float(), -1).to(x.dtype)


def ring(length):
    """Buffers in turn."""
    buffers, calls = {}, [0]

    def call(x):
        calls[0] += 1
        key = (x.shape, x.dtype, calls[0] % length)
        if key not in buffers:
            buffers[key] = torch.empty_like(x)
        return buffers[key].copy_(honest(x))

    return call


def leaking(x, kept=[]):  # noqa: B006
    kept.append(honest(x))
    return kept[-1]


def with_side_effect(effect):
    def call(x):
        y = honest(x)
        effect(x)
        return y

    return call


def moved(x):
    x.data = x.data.clone()


def race(period):
    """Once in so many calls the last column is not summed."""
    calls = [0]

    def call(x):
        calls[0] += 1
        if calls[0] % period or x.shape[-1] < 100:
            return honest(x)
        e = torch.exp(x.float() - x.float().amax(-1, keepdim=True))
        return (e / e[..., :-1].sum(-1, keepdim=True)).to(x.dtype)

    return call


def rows_wrap_at(limit):
    def call(x):
        y = honest(x)
        y[limit:] = y[: max(0, len(x) - limit)]
        return y

    return call


def columns_end_at(limit):
    def call(x):
        y = honest(x)
        y[:, limit:] = 0
        return y

    return call


def aligned_reads(size):
    """Loads of so many bytes drop the pointer's last bits: rows are read from before their beginning."""

    def call(x):
        back = x.data_ptr() % size // x.element_size()
        back = min(back, x.storage_offset())
        return honest(torch.as_strided(x, x.shape, x.stride(), x.storage_offset() - back))

    return call


def weak_pool(x, pool=[]):  # noqa: B006
    """Memory is used again when the tensor is gone that was returned, though a view of it may live."""
    free = (one for one, made in pool if made() is None and (one.shape, one.dtype) == (x.shape, x.dtype))
    memory = next(free, None)
    memory = torch.empty_like(x) if memory is None else memory
    pool[:] = [pair for pair in pool if pair[0] is not memory][-9:]
    y = memory.copy_(honest(x))[:]
    pool.append((memory, weakref.ref(y)))
    return y


def beside(place):
    """Writes before its rows or behind them, where the memory goes on."""

    def call(x):
        memory = torch.as_strided(x.data, (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        if len(memory) > x.numel():
            memory[place] = 0
        return honest(x)

    return call


def unwritten(x):
    """Rows of -inf are not written."""
    y, none = torch.empty_like(x), (x == -torch.inf).all(-1)
    y[~none] = honest(x[~none])
    return y


def wrong_entry(x):
    """One entry of a table of exponentials is off by a thousandth."""
    d = x.float().amax(-1, keepdim=True) - x.float()
    e = torch.where((d >= 21.5) & (d < 21.5 + 1 / 4096), 1.001, 1.0) * (-d).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def maximum_of_zero(x):
    """A maximum of 0 is taken as none."""
    high = x.float().amax(-1, keepdim=True)
    e = (x.float() - torch.where(high == 0, x[:, :1].float(), high)).exp()
    return (e / e.sum(-1, keepdim=True)).to(x.dtype)


def mapped(x):
    """Keeps a page of memory."""
    KEPT.append(mmap.mmap(-1, mmap.PAGESIZE))


class Bug:
    """A softmax with one bug."""

    def __init__(self, name, function, item, rule, *, in_run="", gpu_only=False):
        self.name, self.function, self.item, self.rule, self.in_run, self.gpu_only = name, function, item, rule, in_run, gpu_only

    direction = F

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction is F else "forward only"

    def prepare(self, case):
        return self.function


BOUND, LATER, LEAK = "should be", "its output changed during later calls", " of every call"
backends = [
    *(Bug(f"ring-of-{n}", ring(n), HELD, LATER) for n in (2, 3, 8, 32)),
    Bug("leak", leaking, LATE, LEAK),
    Bug("autograd-left-off", with_side_effect(lambda x: torch.set_grad_enabled(False)), HELD, "autograd's mode", in_run="autograd's mode"),
    Bug("generator-reseeded", with_side_effect(lambda x: torch.manual_seed(0)), HELD, "torch's default generator", in_run="generator"),
    Bug("python-random-seeded", with_side_effect(lambda x: random.seed(1)), HELD, "Python's random", in_run="Python's random"),
    Bug("input-moved", with_side_effect(moved), HELD, "moved its input", in_run="moved its input"),
    *(Bug(f"race-once-in-{n}", race(n), MANY, "once in many calls") for n in (53, 400)),
    Bug("rows-end-at-2^17", rows_wrap_at(2**17), f"structured {2**17 + 5}x9", BOUND),
    Bug("rows-in-float", rows_wrap_at(2**24), f"shape {2**24 + 3}x2", BOUND, gpu_only=True),
    *(Bug(f"columns-end-at-{n}", columns_end_at(n), f"shape 1x{2**19 + 6}", BOUND) for n in (2**19, 400_000)),
    Bug("weak-pool", weak_pool, HELD, LATER),
    *(Bug(f"writes-at-{place}", beside(place), "rows aligned to an element 12x1000", "beside its input") for place in (0, -1)),
    Bug("rows-of-inf-unwritten", unwritten, "structured 37x33", BOUND),
    Bug("wrong-entry", wrong_entry, f"shape 1x{2**19 + 6}", BOUND),
    Bug("maximum-of-zero", maximum_of_zero, "structured 37x1002", BOUND),
    Bug("pages-mapped", with_side_effect(mapped), LATE, "keeps"),
    *(Bug(f"reads-of-{n}-bytes", aligned_reads(n), "rows aligned to an element 12x1000", BOUND) for n in (8, 16)),
]
