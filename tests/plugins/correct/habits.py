"""Honest softmaxes with unusual habits: where their outputs lie in memory, sums in varying order, threads that stay, a wait for the GPU."""

import concurrent.futures
import random
import threading
import time

import torch

from softbench import Direction


def forward(x):
    return torch.softmax(x.detach(), dim=-1)


def backward(dy, y):
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - (dy32 * y32).sum(-1, keepdim=True))).to(y.dtype)


def both(x, dy):
    y = forward(x)
    return y, backward(dy, y)


class Honest:
    """A correct softmax; `forward` and `both` may be replaced."""

    def __init__(self, name, forward=forward, backward=backward, both=both):
        self.name, self.functions = name, {Direction.FORWARD: forward, Direction.BACKWARD: backward, Direction.BOTH: both}

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        return self.functions[case.direction]

    def over_dim(self, direction):
        def over(*given):
            *tensors, dim = given
            return self.functions[direction](*(tensor.movedim(dim, -1) for tensor in tensors)).movedim(-1, dim)

        return over


def halves(x, dy):
    """y and dx are the halves of one allocation."""
    out = torch.empty((2, *x.shape), dtype=x.dtype, device=x.device)
    y, dx = both(x, dy)
    return out[0].copy_(y), out[1].copy_(dx)


def rows_in_turn(x, dy):
    """Each row of y is followed by its row of dx."""
    out = torch.empty((x.shape[0], 2, x.shape[1]), dtype=x.dtype, device=x.device)
    y, dx = both(x, dy)
    return out[:, 0].copy_(y), out[:, 1].copy_(dx)


class Arena:
    """Takes the outputs of several calls from one allocation. It never gives a part of it twice."""

    SLICES = 4

    def __init__(self):
        self.left = []

    def __call__(self, x):
        y = forward(x)
        if not self.left or self.left[-1].shape != y.shape or self.left[-1].dtype != y.dtype:
            self.left = list(torch.empty((self.SLICES, *y.shape), dtype=y.dtype, device=y.device).unbind())
        return self.left.pop().copy_(y)


def varying_order(x):
    """Adds each row's terms in another order at each call, as atomic additions do."""
    if not x.numel():
        return torch.empty_like(x)
    wide = x.float()
    e = torch.exp(wide - wide.amax(-1, keepdim=True))
    parts = list(e.tensor_split(min(64, x.shape[-1]), dim=-1))
    random.shuffle(parts)
    total = sum(part.sum(-1, keepdim=True) for part in parts)
    return (e / total).to(x.dtype)


class Metrics:
    """A library that counts its calls on a thread, which never ends."""

    def __init__(self):
        self.calls = self.seen = 0
        self.thread = None

    def __call__(self, x):
        self.calls += 1
        if self.thread is None:
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()
        return forward(x)

    def watch(self):
        while True:
            time.sleep(0.001)
            self.seen = self.calls


class PoolJoinedLater:
    """Each call takes a pool of threads, waits for its results, and leaves the pool to be joined by the next call."""

    def __init__(self):
        self.pool = None

    def __call__(self, x):
        if self.pool is not None:
            self.pool.shutdown(wait=True)
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        wide = x.detach()
        parts = list(self.pool.map(forward, wide.chunk(2) if wide.dim() > 1 and len(wide) > 1 else (wide,)))
        return torch.cat(parts)


def logs_on_a_thread(x):
    """The thread outlives the call, and does not touch the output."""
    y = forward(x)
    threading.Thread(target=time.sleep, args=(0.01,), daemon=True).start()
    return y


def waits_for_its_maximum(x):
    """The host reads a number, as a call does that chooses between two kernels by its input."""
    largest = float(x.detach().amax()) if x.numel() else 0.0
    return forward(x) if largest < 1e30 else torch.softmax(x.detach(), -1)


backends = [
    Honest("halves-of-one-allocation", both=halves),
    Honest("rows-of-outputs-in-turn", both=rows_in_turn),
    Honest("arena", forward=Arena()),
    Honest("sums-in-varying-order", forward=varying_order),
    Honest("metrics-on-a-thread", forward=Metrics()),
    Honest("pool-joined-later", forward=PoolJoinedLater()),
    Honest("logs-on-a-thread", forward=logs_on_a_thread),
    Honest("waits-for-its-maximum", forward=waits_for_its_maximum),
]
