"""Bugs that values alone do not show, by class: each is a right function of its operation but for one thing.

`of(op)` gives those of an operation. `rule` is a part of the reason; without one the values are wrong.
"""

import functools
import gc
import os
import random
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softbench import Direction
from softbench.ops.registry import numerics
from softbench.worker.checking.any_dim import rows_of
from softbench.worker.checking.output_checks import forms

F, B, BOTH = Direction.FORWARD, Direction.BACKWARD, Direction.BOTH


def right(case):
    """A right callable of any operation, in float64."""

    def call(*given):
        if not given[0].numel() and len(forms(case)) == 1:
            return torch.empty_like(given[0])
        rows = [tensor.double() if tensor.is_floating_point() else tensor for tensor in rows_of(case, given, slice(None))]
        outs = numerics(case.op).reference(case.of_rows(case.M), *rows)
        outs = tuple(out.to(form.dtype).reshape(form.shape) for out, form in zip(outs, forms(case), strict=True))
        return outs if len(outs) > 1 else outs[0]

    return call


def first_of(out):
    return out[0] if isinstance(out, tuple) else out


def damaged(out, rows=slice(None)):
    """The output with errors of a tenth in these rows."""
    one = first_of(out)
    if one.numel():
        one.detach()[rows] *= 1.1
    return out


# What a call leaves behind
def effect(act, at=None):
    """Right, with a side effect: of every call, or of the call of this number alone."""

    def make(call, case):
        calls = [0]

        def with_effect(*given):
            out = call(*given)
            calls[0] += 1
            if at is None or calls[0] == at:
                act(given, out, calls[0])
            return out

        return with_effect

    return make


def output(change):
    """Right values in an odd tensor."""
    return lambda call, case: lambda *given: change(call(*given), case)


def inference(out, case):
    with torch.inference_mode():
        return tuple(one.clone() for one in out) if isinstance(out, tuple) else out.clone()


def from_call(number):
    """Wrong from this call on, whatever its inputs are."""

    def make(call, case):
        calls = [0]

        def late(*given):
            calls[0] += 1
            out = call(*given)
            return damaged(out, slice(0, 1)) if calls[0] >= number else out

        return late

    return make


KEPT: list[Any] = []
BY_CALL: dict[Any, Any] = {}
ONE = 1


def threaded(given, out, number):
    KEPT.append(done := threading.Event())
    threading.Thread(target=done.wait, daemon=True).start()


# Shortcuts and limits
def if_row(row, seems, then=None):
    """Wrong in the other rows if one row of an input seems special."""

    def make(call, case):
        def shortcut(*given):
            out = call(*given)
            if case.M > 2 and case.N > 1 and seems(rows_of(case, given, slice(None)), row if row >= 0 else case.M - 1, case):
                others = torch.arange(case.M) != (row if row >= 0 else case.M - 1)
                one = first_of(out).detach()
                flat = one.view(case.M, -1)
                flat[others] = 0 if then is None else then
            return out

        return shortcut

    return make


def zero_in(place):
    return lambda rows, row, case: bool((rows[place][row] == 0).all())


def all_like_first(place):
    return lambda rows, row, case: len(rows[place]) > 2 and bool((rows[place] == rows[place][:1]).all())


def wrong_where(rows_of_wrong, when=lambda case: True):
    """Zero in the rows that a function of the inputs' rows chooses."""

    def make(call, case):
        def limited(*given):
            out = call(*given)
            if case.M and case.N and when(case):
                bad = rows_of_wrong(rows_of(case, given, slice(None)), case)
                first_of(out).detach().view(case.M, -1)[bad] = 0
            return out

        return limited

    return make


def odd(case):
    return case.M % 2 == 1


def high(limit):
    return lambda rows, case: rows[0].amax(-1).nan_to_num(0, 0, 0) > limit


def led_by_inf(rows, case, beyond=20011):
    lead = min(case.N - 1, beyond)
    return rows[0][:, :lead].isneginf().all(-1) & ~rows[0].isneginf().all(-1) if beyond < case.N else torch.zeros(case.M, dtype=bool)


def masked_row(rows, case):
    return rows[0].isneginf().any(-1) & ~rows[0].isneginf().all(-1)


def has_nan(rows, case):
    return rows[0].isnan().any(-1)


def last_if(rows_bad):
    def function(rows, case):
        bad = rows_bad(rows, case)
        keep = torch.zeros_like(bad)
        keep[-1] = True
        return bad & keep

    return function


# Layouts: functions of dim for the rows of strided tensors
def softmax(x, dim):
    return torch.softmax(x, dim)


def gradient(dy, y, dim):
    dy, y, dtype = dy.float(), y.float(), y.dtype
    return (y * (dy - (dy * y).sum(dim, keepdim=True))).to(dtype)


def packed(tensor, offset=True):
    """Reads a tensor as if it was contiguous."""
    strides = torch.empty(tensor.shape, device="meta").stride()
    start = tensor.storage_offset() if offset else 0
    if start + tensor.numel() > tensor.untyped_storage().nbytes() // tensor.element_size():
        return tensor
    return tensor.as_strided(tensor.shape, strides, start)


def from_start(tensor):
    return tensor.as_strided(tensor.shape, tensor.stride(), 0)


def packed_inner(tensor, dim):
    """Only the stride of dim is read; the axes behind it are taken to be packed."""
    dim %= max(1, tensor.dim())
    if dim == tensor.dim() - 1 or tensor.dim() < 2:
        return tensor
    strides = list(tensor.stride())
    size = 1
    for axis in range(tensor.dim() - 1, dim, -1):
        strides[axis] = size
        size *= tensor.shape[axis]
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    if tensor.storage_offset() + reach >= tensor.untyped_storage().nbytes() // tensor.element_size():
        return tensor
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def by_strides_of(tensor, other):
    reach = tensor.storage_offset() + sum((n - 1) * s for n, s in zip(tensor.shape, other.stride(), strict=True))
    return tensor.as_strided(tensor.shape, other.stride()) if reach * tensor.element_size() < tensor.untyped_storage().nbytes() else tensor


def sliced_only(tensor, read):
    """Only tensors of three axes and more that are sliced are read wrongly."""
    return read(tensor) if tensor.dim() > 2 and not tensor.is_contiguous() and 0 not in tensor.stride() else tensor


@dataclass
class Bug:
    kind: str
    name: str
    op: str
    direction: Direction
    wrap: Any = None
    along: Any = None
    rule: str = ""

    @property
    def operations(self):
        return (self.op.split("(")[0] + ("(sink,mask,causal)" if self.op.startswith("masked") else ""),)

    def available(self):
        return None

    def supports(self, case):
        return None if case.direction is self.direction else f"{self.direction} only"

    def prepare(self, case):
        fast = {(SM, F): lambda x: torch.softmax(x, -1), (SM, B): lambda dy, y: gradient(dy, y, -1)}
        call = fast.get((self.op, self.direction)) or right(case)
        return self.wrap(call, case) if self.wrap else call

    def over_dim(self, direction):
        return self.along or (softmax if direction is F else gradient)


STATE = "its caller uses"
EFFECTS = {
    "gc-off": lambda *_: gc.disable(),
    "gc-on": lambda *_: gc.enable(),
    "gc-threshold": lambda *_: gc.set_threshold(5000),
    "numpy-seed": lambda *_: np.random.seed(0),
    "python-seed": lambda *_: random.seed(0),
    "torch-seed": lambda *_: torch.manual_seed(3),
    "matmul-precision": lambda *_: torch.set_float32_matmul_precision("high"),
    "tf32": lambda *_: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
    "cudnn-benchmark": lambda *_: setattr(torch.backends.cudnn, "benchmark", True),
    "flush-denormal": lambda *_: torch.set_flush_denormal(True),
    "warnings": lambda *_: warnings.filterwarnings("ignore"),
    "simplefilter": lambda *_: warnings.simplefilter("ignore"),
    "environment": lambda *_: os.environ.__setitem__("OMP_NUM_THREADS", "77"),
    "environment-removed": lambda *_: os.environ.pop("HOME", None),
    "default-dtype": lambda *_: torch.set_default_dtype(torch.float64),
    "default-device": lambda *_: torch.set_default_device("meta"),
    "threads": lambda *_: torch.set_num_threads(1 + torch.get_num_threads()),
    "deterministic": lambda *_: torch.use_deterministic_algorithms(True, warn_only=True),
    "directory": lambda *_: os.chdir("/"),
    "signal": lambda *_: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "recursion": lambda *_: sys.setrecursionlimit(5000),
    "umask": lambda *_: os.umask(0),
    "numpy-errors": lambda *_: np.seterr(all="ignore"),
    "grad-off": lambda *_: torch.set_grad_enabled(False),
    "print-options": lambda *_: torch.set_printoptions(precision=2),
    "autocast": lambda *_: torch.set_autocast_enabled("cpu", True),
    "anomaly": lambda *_: torch.autograd.set_detect_anomaly(True),
    "switch-interval": lambda *_: sys.setswitchinterval(0.5),
}
LEAK = "of every call"
LEAKS = {
    "outputs": lambda given, out, number: KEPT.append(first_of(out)),
    "copies-of-outputs": lambda given, out, number: KEPT.append(first_of(out).detach().clone()),
    "a-number": lambda given, out, number: KEPT.append(float(number) + 0.5),
    "the-same-object": lambda given, out, number: KEPT.append(ONE),
    "by-call": lambda given, out, number: BY_CALL.__setitem__(number, None),
    "a-scalar-tensor": lambda given, out, number: KEPT.append(torch.zeros(())),
    "shapes": lambda given, out, number: KEPT.append((tuple(given[0].shape), number)),
    "bytes": lambda given, out, number: KEPT.append(bytes(100_000)),
    "arrays": lambda given, out, number: KEPT.append(np.zeros(10)),
    "threads": threaded,
    "files": lambda given, out, number: KEPT.append(Path(os.devnull).open()),  # noqa: SIM115
    "cycles": lambda given, out, number: KEPT.append([KEPT]),
}
CE, LP, MS, RN, SM, LS = "cross_entropy", "logprob", "masked_softmax(sink=true)", "rms_norm", "softmax", "log_softmax"
MB = "masked_softmax(mask=boolean)"
LAYOUTS_F = {
    "sliced-as-packed": lambda x, dim: softmax(sliced_only(x, packed), dim),
    "sliced-inner-as-packed": lambda x, dim: softmax(sliced_only(x, lambda t: packed_inner(t, dim)), dim),
    "sliced-from-start": lambda x, dim: softmax(sliced_only(x, from_start), dim),
    "dim-from-three": lambda x, dim: softmax(x, dim % 3 if x.dim() > 3 else dim),
    "negative-dim": lambda x, dim: softmax(x, -dim - 1 if x.dim() > 3 and dim < 0 else dim),
    "reversed-order": lambda x, dim: softmax(packed(x) if x.dim() > 2 and list(x.stride()) == sorted(x.stride()) else x, dim),
    "steps-in-columns": lambda x, dim: softmax(packed(x) if x.dim() > 2 and x.stride(dim) > 1 and min(x.stride()) > 1 else x, dim),
    "four-axes": lambda x, dim: softmax(packed_inner(x, dim) if x.dim() == 4 else x, dim),
    "expanded-inner": lambda x, dim: softmax(packed(x) if x.dim() == 3 and 0 in x.stride() else x, dim),
}
LAYOUTS_B = {
    "dy-as-packed": lambda dy, y, dim: gradient(packed(dy), y, dim),
    "y-as-packed": lambda dy, y, dim: gradient(dy, packed(y), dim),
    "dy-by-strides-of-y": lambda dy, y, dim: gradient(by_strides_of(dy, y), y, dim),
    "y-by-strides-of-dy": lambda dy, y, dim: gradient(dy, by_strides_of(y, dy), dim),
    "dy-from-start": lambda dy, y, dim: gradient(from_start(dy), y, dim),
    "y-from-start": lambda dy, y, dim: gradient(dy, from_start(y), dim),
    "sliced-dy-as-packed": lambda dy, y, dim: gradient(sliced_only(dy, packed), y, dim),
    "sliced-y-as-packed": lambda dy, y, dim: gradient(dy, sliced_only(y, packed), dim),
    "sliced-y-inner": lambda dy, y, dim: gradient(dy, sliced_only(y, lambda t: packed_inner(t, dim)), dim),
    "row-stride-of-dy": lambda dy, y, dim: gradient(packed(dy) if dy.dim() == 2 and dy.stride(-1) == 1 else dy, y, dim),
    "row-stride-of-y": lambda dy, y, dim: gradient(dy, packed(y) if y.dim() == 2 and y.stride(-1) == 1 else y, dim),
    "columns-of-dy": lambda dy, y, dim: gradient(packed(dy) if dy.dim() == 2 and dy.stride(-1) > 1 else dy, y, dim),
    "columns-of-y": lambda dy, y, dim: gradient(dy, packed(y) if y.dim() == 2 and y.stride(-1) > 1 else y, dim),
    "dy-expanded": lambda dy, y, dim: gradient(packed(dy) if 0 in dy.stride() and dy.dim() > 2 else dy, y, dim),
    "y-expanded": lambda dy, y, dim: gradient(dy, packed(y) if 0 in y.stride() else y, dim),
    "dim-0": lambda dy, y, dim: gradient(packed(dy) if dim == 0 and dy.dim() > 1 else dy, y, dim),
    "both-permuted": lambda dy, y, dim: gradient(
        packed(dy) if dy.stride() != y.stride() and dy.dim() > 2 and not y.is_contiguous() else dy, y, dim
    ),
}
ROW_SHORTCUTS = [
    (SM, B, "dy", zero_in(0)),
    (LS, B, "dy", zero_in(0)),
    (RN, B, "dy", zero_in(0)),
    (SM, B, "y", zero_in(1)),
    (SM, F, "x", zero_in(0)),
    (RN, F, "x", zero_in(0)),
    (CE, B, "dloss", zero_in(3)),
    (LP, B, "dlogprob", zero_in(4)),
    (LP, B, "dentropy", zero_in(5)),
    (CE, F, "target-0", zero_in(1)),
    (LP, F, "target-0", zero_in(1)),
    (CE, Direction.FUSED, "ignored", lambda rows, row, case: rows[1][row] == -100),
    (CE, B, "ignored", lambda rows, row, case: rows[1][row] == -100),
    (CE, F, "last-target", lambda rows, row, case: rows[1][row] == case.N - 1),
    (SM, F, "nan", lambda rows, row, case: rows[0][row].isnan().any()),
    (SM, F, "inf", lambda rows, row, case: rows[0][row].isneginf().any()),
    (SM, F, "all-inf", lambda rows, row, case: rows[0][row].isneginf().all()),
    (LS, F, "constant", lambda rows, row, case: (rows[0][row] == rows[0][row][0]).all()),
    (SM, F, "rising", lambda rows, row, case: (rows[0][row].diff() >= 0).all() and rows[0][row][-1] > rows[0][row][0]),
    (SM, B, "dy-ones", lambda rows, row, case: (rows[0][row] == 1).all()),
    (SM, B, "dy-first-element", lambda rows, row, case: rows[0][row][0] == 0),
    (SM, BOTH, "x-first-element", lambda rows, row, case: rows[0][row][0] == -torch.inf),
    (SM, BOTH, "dy", zero_in(1)),
    (MB, F, "no-key", lambda rows, row, case: not rows[1][row].any()),
]
backends = [
    *(Bug("state", f"state-{name}", SM, F, effect(act), rule=STATE) for name, act in EFFECTS.items()),
    *(
        Bug("state, of a first call", f"first-{name}", SM, F, effect(EFFECTS[name], 1), rule=STATE)
        for name in ("gc-off", "matmul-precision", "default-dtype", "threads", "directory", "flush-denormal", "deterministic", "grad-off")
    ),
    Bug("state", "state-other-op-numpy-seed", CE, F, effect(EFFECTS["numpy-seed"]), rule=STATE),
    Bug("state", "state-long-rows", SM, F, lambda c, case: effect(EFFECTS["gc-off"])(c, case) if case.N > 5000 else c, rule=STATE),
    *(Bug("leak", f"leak-{name}", SM, F, effect(act), rule=LEAK) for name, act in LEAKS.items()),
    Bug("leak", "leak-ce-number", CE, B, effect(LEAKS["a-number"]), rule=LEAK),
    Bug("output", "inference", SM, F, output(inference), rule="inference"),
    Bug("output", "inference-of-two", CE, F, output(inference), rule="inference"),
    Bug("output", "requires-grad", SM, F, output(lambda out, case: out.requires_grad_()), rule="gradient"),
    Bug("output", "history", SM, F, output(lambda out, case: out * torch.ones((), requires_grad=True)), rule="gradient"),
    Bug("output", "gradient-requires-grad", SM, B, output(lambda out, case: out.requires_grad_()), rule="gradient"),
    Bug("output", "shared-storage", CE, F, output(lambda out, case: (out[0], out[0])), rule="share"),
    Bug("output", "list", CE, F, output(lambda out, case: {"loss": out[0], "lse": out[1]}), rule="must return"),
    *(Bug("late call", f"from-call-{n}", SM, F, from_call(n)) for n in (1500, 5001, 10001)),
    Bug("late call", "backward-from-call-5001", SM, B, from_call(5001)),
    Bug("late call", "rms-from-call-5001", RN, F, from_call(5001)),
    *(Bug("layout", f"layout-{name}", SM, F, along=along) for name, along in LAYOUTS_F.items()),
    *(Bug("layout", f"layout-{name}", SM, B, along=along) for name, along in LAYOUTS_B.items()),
    *(
        Bug("a row", f"{where}-{op}-{direction}-{name}", op.split("_t")[0], direction, if_row(row, seems))
        for op, direction, name, seems in ROW_SHORTCUTS
        for where, row in (("first", 0), ("last", -1))
    ),
    Bug("a row", "all-rows-alike-target", CE, F, if_row(0, all_like_first(1), 0.0)),
    Bug("a row", "all-rows-alike-dy", SM, B, if_row(0, all_like_first(0))),
    Bug("a row", "all-rows-alike-x", SM, F, if_row(0, all_like_first(0))),
    Bug("odd M", "odd-masked", SM, F, wrong_where(masked_row, odd)),
    Bug("odd M", "odd-last-masked", SM, F, wrong_where(last_if(masked_row), odd)),
    Bug("odd M", "odd-last-nan", LS, F, wrong_where(last_if(has_nan), odd)),
    Bug("odd M", "odd-massive", CE, F, wrong_where(last_if(high(250)), odd)),
    Bug("odd M", "two-rows-masked", SM, F, wrong_where(masked_row, lambda case: case.M == 2)),
    Bug("odd M", "one-row-masked", SM, F, wrong_where(masked_row, lambda case: case.M == 1)),
    Bug("odd M", "three-rows-massive", SM, F, wrong_where(high(250), lambda case: case.M == 3)),
    Bug("odd M", "many-rows-masked", SM, F, wrong_where(masked_row, lambda case: case.M > 65535)),
    Bug(
        "odd M", "backward-many-rows-zero", SM, B, wrong_where(lambda r, c: (r[0] != 0).sum(-1) == 1, lambda case: case.M > 65535), rule=""
    ),
    *(Bug("large", f"massive-{op}-{n}", op, F, wrong_where(high(n))) for op in (SM, LS, CE, RN) for n in (900, 5000, 20000)),
    *(Bug("large", f"sink-{n}", MS, F, wrong_where(lambda rows, case, n=n: rows[1].abs() > n)) for n in (250, 900, 3000)),
    *(
        Bug("-inf first", f"leading-inf-{op}-{n}", op, F, wrong_where(functools.partial(led_by_inf, beyond=n)))
        for op in (SM, LS, CE)
        for n in (4096, 20011, 32768, 60000)
    ),
    Bug("-inf first", "leading-inf-both", SM, BOTH, wrong_where(functools.partial(led_by_inf, beyond=4096))),
    *(
        Bug(
            "N",
            f"N-mod-{k}-is-{r}",
            SM,
            F,
            wrong_where(lambda rows, case: slice(0, 1), lambda case, k=k, r=r: case.N % k == r and case.N > 4),
        )
        for k, r in ((4, 3), (4, 2), (8, 4), (8, 5), (8, 6), (16, 12), (16, 14), (16, 9))
    ),
    *(
        Bug(
            "M",
            f"M-mod-{k}-is-{r}",
            SM,
            F,
            wrong_where(lambda rows, case: slice(0, 1), lambda case, k=k, r=r: case.M % k == r and case.M > 4),
        )
        for k, r in ((4, 2), (4, 3), (8, 6), (8, 7), (32, 0), (64, 0), (128, 0))
    ),
]
