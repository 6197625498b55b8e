"""The backend `quack`: softmax, cross entropy and RMS norms of Dao-AILab's quack, in CuTe DSL. Source: the project's public functions."""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch

from softbench.backends.calls import Tensors, by_autograd, by_direction, parameters
from softbench.backends.third_party import ThirdParty
from softbench.core.case import DTYPES, Case, Direction
from softbench.core.text import one_line
from softbench.plugins.backend import Call

TILE_BYTES = 256 * 16  # 256 threads load 16 bytes each: shared memory is allocated in such steps
WARPS = 8
CHUNK = 4096  # rows of a chunk of logits, quack's default
KERNELS = {"quack.softmax": ("Softmax", "SoftmaxBackward"), "quack.cross_entropy": ("CrossEntropy", "CrossEntropyBackward")}


class Quack(ThirdParty):
    """Dao-AILab's quack: CuTe DSL, a row in the shared memory of up to 16 CTAs, compiled for each N."""

    name, package, module = "quack", "quack-kernels", "quack.softmax"
    install = "pip install quack-kernels (for CUDA 13: 'quack-kernels[cu13]')"
    operations = (
        "softmax",
        "cross_entropy(ignore_index)",
        "rms_norm(eps)",
        "add_rms_norm(eps,saved)",
        "linear_cross_entropy(hidden,ignore_index)",
    )
    only_nvidia = True
    advice = "for few, aligned N on Hopper or newer, if a build for each N is acceptable"

    def supports(self, case: Case) -> str | None:
        if case.operation == "rms_norm" and case.direction is not Direction.FORWARD:
            return "its backward computes the gradient of the weight too: --direction forward"
        if case.operation == "add_rms_norm" and case.direction is not Direction.FORWARD and not parameters(case)["saved"]:
            return "its backward takes saved statistics"
        if case.operation == "linear_cross_entropy":
            sizes = case.M, case.N, parameters(case)["hidden"]
            return "M, N and hidden must be multiples of 8" if any(size % 8 for size in sizes) else _missing_products()
        vector = 16 // DTYPES[case.dtype]
        if case.N % vector and case.operation == "softmax":
            return f"it reads rows in 16-byte vectors: N must be a multiple of {vector} in {case.dtype}"
        if (most := self._most_columns(case)) < case.N:
            return f"a row must fit the shared memory of one cluster of CTAs: N is at most {most} here"
        return None

    def _most_columns(self, case: Case) -> int:
        """The longest row that the largest cluster can store (`_set_cluster_n` in quack).

        Each CTA stores its part of x, or of softmax's dy and y, and the exchange buffer. quack chooses a smaller cluster only for rows that
        fit it.
        """
        card: Any = torch.cuda.get_device_properties(torch.cuda.current_device())  # torch's type stub misses a property
        cluster = 1 if card.major < 9 else 8 if card.major == 12 else 16
        exchange = 8 * (WARPS * cluster + 1)
        tensors = 1 if case.direction is Direction.FORWARD or case.operation != "softmax" else 2
        tiles = (card.shared_memory_per_block_optin - exchange) // (tensors * TILE_BYTES)
        most: int = cluster * tiles * TILE_BYTES // DTYPES[case.dtype]
        return most

    def compilations(self) -> int:
        """The number of times that quack's kernels called their compiler. A kernel from quack's cache on disk does not count."""
        found = 0
        for module, kernels in KERNELS.items():
            with suppress(KeyError, AttributeError):  # it is not imported, or is another version
                found += sum(getattr(sys.modules[module], kernel).compile.cache_info().misses for kernel in kernels)
        return found

    def prepare(self, case: Case) -> Call:
        if make := MAKERS.get(case.operation):
            return make(case)
        quack = self._module()
        return by_direction(case, quack.softmax if case.direction is Direction.BOTH else quack.softmax_fwd, quack.softmax_bwd)

    def user_call(self, case: Case) -> Call | None:
        """Its differentiable functions."""
        if case.direction is not Direction.FORWARD or case.operation not in ("softmax", "cross_entropy"):
            return None
        if case.operation == "softmax":
            call: Call = self._module().softmax
            return call
        of_loss = importlib.import_module("quack.cross_entropy").cross_entropy
        return partial(of_loss, ignore_index=parameters(case)["ignore_index"], reduction="none")


def _cross_entropy(case: Case) -> Call:
    """quack's forward with lse, its backward, or its forward with `return_dx`, each one kernel."""
    quack: Any = importlib.import_module("quack.cross_entropy")
    ignore = {"ignore_index": parameters(case)["ignore_index"]}

    def forward(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        loss, lse = quack.cross_entropy_fwd(x, target, return_lse=True, **ignore)
        return loss, lse

    def fused(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        loss, dx = quack.cross_entropy_fwd(x, target, return_dx=True, **ignore)
        return loss, dx

    def backward(x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
        dx: torch.Tensor = quack.cross_entropy_bwd(x, target, dloss, lse, **ignore)
        return dx

    calls: dict[Direction, Call] = {Direction.FORWARD: forward, Direction.BACKWARD: backward, Direction.FUSED: fused}
    return calls[case.direction]


@cache
def _missing_products() -> str | None:
    """Why quack's matrix products cannot be imported; None if they can. quack 0.6.5 takes a CuTe DSL from site-packages only."""
    try:
        importlib.import_module("quack.linear_cross_entropy")
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}", 100)
        return f"quack.linear_cross_entropy cannot be imported ({reason}); not from PYTHONPATH or by -e: {backend.install}"
    return None


def _linear_cross_entropy(case: Case) -> Call:
    """quack's chunked function and its autograd, which rounds dw to the weight's dtype.

    A chunk of as many rows as columns is refused by quack 0.6.5, also the default one of 4096 rows where hidden is 4096. It gets half.
    """
    quack: Any = importlib.import_module("quack.linear_cross_entropy")
    given = parameters(case)
    refused = given["hidden"] in (min(CHUNK, case.M), case.M % CHUNK) and given["hidden"] % 256 == 0
    options = {"ignore_index": given["ignore_index"], "chunk_size": given["hidden"] // 2 if refused else CHUNK}

    def forward(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = quack.chunked_linear_cross_entropy(x, w, target, **options)
        return loss

    return forward if case.direction is Direction.FORWARD else partial(by_autograd, forward)


def _rms_norm(case: Case) -> Call:
    """quack's forward, one kernel, which stores no rstd here."""
    quack: Any = importlib.import_module("quack.rmsnorm")
    eps = parameters(case)["eps"]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = quack.rmsnorm_fwd(x, w, eps=eps)[0]
        return y

    return forward


def _add_rms_norm(case: Case) -> Call:
    """quack's RMSNorm with a residual, and its backward with the gradient of the sum."""
    quack: Any = importlib.import_module("quack.rmsnorm")
    given = parameters(case)

    def forward(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Tensors:
        y, s, rstd = quack.rmsnorm_fwd(x, w, residual=residual, eps=given["eps"], store_rstd=given["saved"])
        return (y, s, rstd) if given["saved"] else (y, s)

    def backward(dy: torch.Tensor, ds: torch.Tensor, s: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Tensors:
        dx, dw, *_ = quack.rmsnorm_bwd(s, w, dy, rstd, dresidual_out=ds, has_residual=True)
        return dx, dw

    return forward if case.direction is Direction.FORWARD else backward


MAKERS = {
    **{"cross_entropy": _cross_entropy, "linear_cross_entropy": _linear_cross_entropy},
    **{"rms_norm": _rms_norm, "add_rms_norm": _add_rms_norm},
}
"""What makes the calls of an operation other than softmax."""
backend = Quack()
