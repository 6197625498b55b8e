"""Tricks that rely on inputs that stay as they are within a batch, or on outputs that are read late. All pass the checks before timing."""

import time
import weakref

import torch

from softbench import Direction

LOOKED_AT = 60  # calls that build and check; before timing every call is honest
IDLE_SECONDS = 0.02


def honest(x):
    return torch.softmax(x, dim=-1)


def once_a_batch(key=lambda x: x.data_ptr(), keep=lambda y: y.clone()):
    """After a pause, which separates batches, the first call of each key is computed; later ones get a copy."""
    kept, last, calls = {}, [0.0], [0]

    def call(x):
        calls[0] += 1
        now = time.monotonic()
        if now - last[0] > IDLE_SECONDS:
            kept.clear()
        last[0] = now
        if calls[0] <= LOOKED_AT:
            return honest(x)
        found = key(x)
        if found not in kept:
            kept[found] = honest(x)
        return keep(kept[found])

    return call


def columns(count):
    """The first values of the first row."""
    return lambda x: (x.data_ptr(), *x[0, :count].tolist())


def diagonal(x):
    return x.data_ptr(), tuple(x.diagonal().tolist())


def every_few_calls(period):
    """Computes one call of each set in so many."""
    kept, calls = {}, [0]

    def call(x):
        calls[0] += 1
        place = x.data_ptr()
        if calls[0] <= LOOKED_AT or place not in kept or calls[0] // 2 % period == 0:
            kept[place] = honest(x)
        return kept[place].clone()

    return call


def after_a_gap(seconds):
    """Computes when more time than usual has passed since its last call, because its caller then did something."""
    kept, last, calls = {}, [0.0], [0]

    def call(x):
        calls[0] += 1
        place, gap = x.data_ptr(), time.perf_counter() - last[0]
        if calls[0] <= LOOKED_AT or gap > seconds or place not in kept:
            kept[place] = honest(x)
        y = kept[place].clone() if calls[0] <= LOOKED_AT else kept[place]
        last[0] = time.perf_counter()
        return y

    return call


def filled_in_if_kept():
    """Fills in an output at the next call, if its caller still has it."""
    last, calls = [], [0]

    def call(x):
        calls[0] += 1
        if calls[0] <= LOOKED_AT:
            return honest(x)
        for output, given in last:
            if (y := output()) is not None:
                y.copy_(honest(given))
        y = torch.full_like(x, 1 / x.shape[1])
        last[:] = [*last[-8:], (weakref.ref(y), x)]
        return y

    return call


def ring(length):
    buffers, calls = {}, [0]

    def call(x):
        calls[0] += 1
        if calls[0] <= LOOKED_AT:
            return honest(x)
        place = calls[0] % length
        if place not in buffers:
            buffers[place] = torch.empty_like(x)
        return buffers[place].copy_(honest(x))

    return call


class Trick:
    """A softmax that only looks fast."""

    def __init__(self, name, make):
        self.name, self.make = name, make

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction is Direction.FORWARD else "forward only"

    def prepare(self, case):
        return self.make()


backends = [
    Trick("once-a-batch", once_a_batch),
    Trick("once-a-batch-same-memory", lambda: once_a_batch(keep=lambda y: y.view_as(y))),
    *(Trick(f"once-for-{n}-columns", lambda n=n: once_a_batch(columns(n))) for n in (4, 64)),
    Trick("once-for-a-diagonal", lambda: once_a_batch(diagonal)),
    *(Trick(f"every-{n}th-call", lambda n=n: every_few_calls(n)) for n in (3, 10)),
    *(Trick(f"after-a-gap-of-{us}-us", lambda us=us: after_a_gap(us / 1e6)) for us in (20, 60, 200)),
    Trick("filled-in-if-kept", filled_in_if_kept),
    *(Trick(f"ring-of-{n}-when-timed", lambda n=n: ring(n)) for n in (4, 8)),
]
