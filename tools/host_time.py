#!/usr/bin/env python3
"""Prints what a call of softbench.kernels takes on the host, beside torch's: microseconds, for 64 x 1024.

Each figure is the least of several loops of calls that do not wait for the device. Both columns are of one process, in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional

from softbench import kernels

MODES = ("no_grad", "recorded", "with backward")
Call = Callable[[], object]


def functions(M: int, N: int, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor, Callable[..., object], Callable[..., object]]]:
    """Name, input, torch's call and ours of it. Each call returns a tensor, of which the gradient starts."""
    x = torch.randn(M, N, device="cuda", dtype=dtype, requires_grad=True)
    target = torch.randint(N, (M,), device="cuda")
    scores = torch.randn(1, 4, M // 4, N, device="cuda", dtype=dtype, requires_grad=True)
    hidden = torch.ones(M // 4, N, device="cuda", dtype=torch.bool).triu(1 + max(0, N - M // 4))
    yield "softmax", x, lambda: torch.softmax(x, -1), lambda: kernels.softmax(x, -1)
    yield "log_softmax", x, lambda: torch.log_softmax(x, -1), lambda: kernels.log_softmax(x, -1)
    yield "cross_entropy", x, lambda: functional.cross_entropy(x, target), lambda: kernels.cross_entropy(x, target)
    column = target[:, None]
    yield (
        *("logprob", x, lambda: torch.log_softmax(x, -1).gather(1, column)),
        lambda: kernels.logprob(x, target)[0],
    )
    yield (
        *("masked_softmax", scores, lambda: torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)),
        lambda: kernels.masked_softmax(scores, causal=True),
    )


def modes(call: Callable[..., torch.Tensor], x: torch.Tensor) -> Iterator[Call]:
    """The call without autograd, recorded, and with its backward."""

    dy = torch.ones_like(call())

    def both() -> None:
        torch.autograd.backward(call(), dy)
        x.grad = None

    yield call
    yield call
    yield both


def microseconds(call: Call, calls: int) -> float:
    """Of one call, in a loop that does not wait for the device."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(calls):
        call()
    taken = time.perf_counter() - began
    torch.cuda.synchronize()
    return 1e6 * taken / calls


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="64x1024")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--loops", type=int, default=5)
    given = parser.parse_args()
    M, N = map(int, given.shape.split("x"))
    print(f"{'':18}{'':16}{'torch':>8}{'ours':>8}{'ratio':>8}")
    for name, x, *calls in functions(M, N, getattr(torch, given.dtype)):
        pairs = zip(*(modes(call, x) for call in calls), strict=True)
        for mode, pair in zip(MODES, pairs, strict=True):
            with torch.set_grad_enabled(mode != "no_grad"):
                for call in pair:
                    microseconds(call, 50)
                times = [[microseconds(call, given.calls // given.loops) for call in pair] for _ in range(given.loops)]
            torchs, ours = map(min, zip(*times, strict=True))
            print(f"{name:18}{mode:16}{torchs:8.1f}{ours:8.1f}{ours / torchs:7.2f}x", flush=True)


if __name__ == "__main__":
    main()
