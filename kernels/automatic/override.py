"""`use` and `enable`: torch's own softmax and log_softmax run our kernels where these are right and faster.

The override is registered on PyTorch's dispatcher for CUDA, below autograd and autocast. So all of PyTorch's formulas stay: gradients of
any order, forward mode, vmap, casts, tensor subclasses such as DTensor. Callers in C++, such as `cross_entropy` and autograd, get it too.

The rule (`Override.fits`) keeps torch's kernel unless torch takes longer on the device than our call takes on the host. Then a call is
faster, whatever limits the program. All limits are in `FORWARD` and `BACKWARD`, with their source.

A filter in C++ (`filter.cpp`) applies the rule, so that a call that keeps torch's kernel costs no Python. Our CUDA kernels are launched in
C++ too (`operators.cpp`), so that our calls take about as much host time as torch's. Python launches what C++ does not: other layouts, a
first workspace and Triton's kernels. It also has the first call of a device and dtype, which chooses the kernels. Where there is no g++,
`kernel` applies the rule.

Host time of softmax on a tensor of 8 elements, on a CPU with torch 2.13, in microseconds:

                                                      in total   more
torch                                                      1.1
filter in C++                                              1.2    0.1
functions of torch replaced in Python                      1.4    0.3
Python kernel that calls torch's by `get_kernel`           3.1    2.0

Functions replaced in Python would miss callers in C++, and would need formulas of their own. `torch._native` of PyTorch 2.13 takes the last
way.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..common import extension
from ..common.rows import DTYPES, Launch, LaunchColumns, apply_to_columns, apply_to_rows
from .choice import FORGETS, is_last, is_short, which

KEY = "CUDA"
"""The dispatch key of the overrides. Tests on the CPU replace it."""
MEASURED = ((9, 0),)
"""The compute capabilities on which the limits were measured. Other devices keep torch's kernels."""
NEVER = 2**62
KEPT = 4096
"""Removed kernels that are kept. While a call in another thread runs one, blocks may remove a thousand more on a busy machine."""


class Least(NamedTuple):
    """Our kernel runs from this size on."""

    elements: int
    columns: int = NEVER
    """For rows of so many columns, any number of elements."""
    others: int = NEVER
    """From so many elements on along another dimension than the last."""


WIDE, HALF, BRAIN = DTYPES
FORWARD: Mapping[torch.dtype, Least] = dict.fromkeys(DTYPES, Least(2**24, 125_000, 2**22))
BACKWARD: Mapping[torch.dtype, Least] = {
    WIDE: Least(2**22, others=2**22),
    HALF: Least(2**23, others=2**22),
    BRAIN: Least(2**23, others=2**22),
}
"""The sizes from which torch's kernel takes at least 25 us on an H200, and ours less.

Source: the columns device_us and host_us of results/h200/frontier.csv. Launched by Python, our calls take 12 to 25 us on the host in nine
of ten cells. In all cells from these sizes on, our kernels take .01 to .98 of torch's time. Torch gives a row to one CTA, so a row of
125000 columns takes 32 us, however few the rows. That was not measured for gradients. Along another dimension than the last, torch takes
2.3 to 150 times as long as a copy.
"""


@dataclass
class Override:
    """One operator of torch with our kernel."""

    operator: str
    """The operator's name in `aten`. Its arguments are tensors of one shape, `dim`, and one more."""
    tensors: int
    least: Mapping[torch.dtype, Least]
    launchers: Callable[[str], Launch]
    """Our launcher of these kernels, `cuda` or `triton`."""
    columns: Callable[[str], LaunchColumns]
    """The same, along another dimension than the last."""
    function: str
    """The function whose kernels these are, as in `choice.py`."""
    torchs: Any = None
    """torch's kernel, while the override is registered."""
    launches: dict[tuple[torch.device, torch.dtype, bool, bool], Callable[..., Any] | None] = field(default_factory=dict)
    """Our launchers, also by whether `dim` is the last or short; None for torch's kernel."""
    devices: Sequence[int] = ()
    invariant: bool = False
    """Whether each call runs our launcher of the module `invariant`, whatever its size."""

    @property
    def ours(self) -> str:
        """The operator of softbench that has our kernel under the schema of torch's operator. Filters call it."""
        return f"override_{self.operator.lstrip('_')}"

    def install(self, library: ctypes.PyDLL, slot: int) -> None:
        """Registers a filter of filter.cpp over torch's kernel. It calls `run`, unless C++ launches the CUDA kernels of `function`.

        Raises:
            RuntimeError: torch refused the registration.
        """
        sizes = ((ctypes.c_int64 * len(DTYPES))(*each) for each in zip(*(self.least[dtype] for dtype in DTYPES), strict=True))
        names = (text.encode() for text in (f"aten::{self.operator}", f"softbench::{self.ours}", KEY))
        numbers = extension.FUNCTIONS.index(self.function), self.tensors - 1, sum(1 << index for index in self.devices)
        if library.softbench_install(slot, *names, *numbers, *sizes):
            raise RuntimeError(f"no filter for aten::{self.operator}: {library.softbench_filter_error().decode()}")

    def fits(self, x: Tensor, dim: int) -> bool:
        """The rule: whether our kernel runs. `x` is the last tensor among the arguments. filter.cpp has the same rule."""
        least = self.least.get(x.dtype)
        if least is None or x.dim() == 0:
            return False
        elements = x.numel()
        if self.invariant:
            return elements > 0 and -x.dim() <= dim < x.dim() and max(0, x.get_device()) in self.devices
        if not is_last(x, dim):
            if elements < least.others or not -x.dim() <= dim < x.dim():
                return False
        elif elements < least.elements and (elements == 0 or x.shape[-1] < least.columns):
            return False
        return max(0, x.get_device()) in self.devices

    def kernel(self, keys: torch._C.DispatchKeySet, *given: Any) -> Tensor:
        """The operator where no filter decides."""
        x, dim = given[self.tensors - 1 : self.tensors + 1]
        return self.run(keys, *given) if self.fits(x, dim) else self.torchs.call_boxed(keys, *given)

    def run(self, keys: torch._C.DispatchKeySet, *given: Any) -> Tensor:
        """The operator by our kernel, where the rule holds."""
        tensors, dim, last = given[: self.tensors], given[self.tensors], given[-1]
        x = tensors[-1]
        last_dim = is_last(x, dim)
        key = (x.device, x.dtype, last_dim, not last_dim and is_short(x, dim))
        try:
            launch = self.launches[key]
        except KeyError:
            launch = self.decide(x, dim)
        first = tensors[0]
        result: Tensor | None = None
        if launch is not None and first.dtype == x.dtype and first.shape == x.shape and first.device == x.device:
            dtype = last if isinstance(last, torch.dtype) else torch.float32 if last else x.dtype
            if last_dim or self.invariant:
                result = apply_to_rows(launch, tensors, dim % x.dim(), None if dtype == x.dtype else dtype)
            else:
                result = apply_to_columns(launch, tensors, dim % x.dim(), dtype)
        if result is None:
            result = self.torchs.call_boxed(keys, *given)
        return result

    def decide(self, x: Tensor, dim: int) -> Callable[..., Any] | None:
        """Our launcher for the device and dtype of x, and `dim`; None for torch's kernel."""
        last, found = is_last(x, dim), None
        chosen = which(x, -1 if self.invariant else dim, function=self.function).kernels
        if chosen != "torch":
            by = self.launchers if last or self.invariant else self.columns
            found = by(f"{chosen}.invariant" if self.invariant else chosen)
        self.launches[x.device, x.dtype, last, not last and is_short(x, dim)] = found
        return found


def _launcher(name: str) -> Callable[[str], Callable[..., Any]]:
    """The launcher of this name by its kernels, which are imported when they run."""

    def found(kernels: str) -> Callable[..., Any]:
        module = {"cuda": "cuda.launch", "triton": "triton.dispatch"}.get(kernels, kernels)
        launch: Callable[..., Any] = getattr(importlib.import_module(f"..{module}", __package__), name)
        return launch

    return found


COLUMNS, LOG_COLUMNS = _launcher("launch_columns"), _launcher("launch_log_columns")
OVERRIDES = (
    Override("_softmax", 1, FORWARD, _launcher("launch_forward"), COLUMNS, "softmax"),
    Override("_log_softmax", 1, FORWARD, _launcher("launch_log_forward"), LOG_COLUMNS, "log_softmax"),
    Override("_softmax_backward_data", 2, BACKWARD, _launcher("launch_backward"), COLUMNS, "softmax"),
    Override("_log_softmax_backward_data", 2, BACKWARD, _launcher("launch_log_backward"), LOG_COLUMNS, "log_softmax"),
)
"""The operators of rows that `use` overrides."""
FORGETS += [one.launches.clear for one in OVERRIDES]


@contextlib.contextmanager
def use(*, invariant: bool = False) -> Iterator[None]:
    """Inside `with softbench.use():` torch's softmax and log_softmax run softbench's kernels where these are right and faster.

    The calls are those of `torch.softmax`, `torch.nn.functional.softmax`, `cross_entropy` and others, and their gradients, in all threads
    of the process. Everything is undone at the end of the last of several such blocks, also after an exception.

    - Cases: float32, float16 and bfloat16, where torch's kernel takes longer than our call takes on the host. These are tensors of 4 to 16
      million elements and more, or rows of 125000 columns. GPUs of compute capability 9.0 (H100, H200). All other calls keep torch's
      kernels.
    - Results: within the bound of docs/correctness.md, and not bit for bit those of torch.
    - invariant: in each call of these dtypes a row of the result, and of a gradient, has the same bits whatever the other rows are and how
      many. So calls of every size run our kernels, launched by Python. torch silently keeps calls on other devices and of other dtypes, and
      these may not be invariant. Blocks of both kinds cannot be in one another.
    - torch.compile: compiled code has Inductor's own kernels, inside and outside of the block. `softbench.kernels.softmax` is for compiled
      functions. Backends that run operators of aten, such as `aot_eager` and `cudagraphs`, run what is active when the operator runs.
    - CUDA graphs: a graph keeps the kernels that were active while it was captured. Call the function once before, as always.

    On a machine without such a GPU it does nothing. The first block on a machine builds an extension in C++, in half a minute, and
    says so on stderr.

    Raises:
        RuntimeError: a block of the other kind is active.
    """
    _enter(invariant)
    try:
        yield
    finally:
        _leave()


def enable(*, invariant: bool = False) -> None:
    """As `use`, for the rest of the process."""
    _enter(invariant)


_lock = threading.Lock()
_depth = 0
_undo: list[Callable[[], object]] = []
_kept: collections.deque[Any] = collections.deque(maxlen=KEPT)
"""Removed kernels in Python. A call in another thread may still run one, and torch does not keep it alive."""


def _enter(invariant: bool) -> None:
    global _depth
    with _lock:
        if _depth and OVERRIDES[0].invariant != invariant:
            raise RuntimeError(f"softbench.use: a block with invariant={not invariant} is active; leave it first")
        for override in OVERRIDES:
            override.invariant = invariant
        if not _depth and (devices := _devices()):
            try:
                _register(devices)
            except BaseException:
                _unregister()
                raise
        _depth += 1


def _leave() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if not _depth:
            _unregister()


def _devices() -> list[int]:
    """The indices of the devices on which our kernels may run."""
    if KEY != "CUDA":
        return [0]
    found = range(torch.cuda.device_count()) if torch.version.hip is None and torch.cuda.is_available() else ()  # gfx90a is 9.0 too
    return [index for index in found if torch.cuda.get_device_capability(index) in MEASURED]


def _register(devices: Sequence[int]) -> None:
    found = None if OVERRIDES[0].invariant else extension.load(build=True)  # the filter's rule has sizes
    for slot, override in enumerate(OVERRIDES):
        override.torchs = torch.library.get_kernel(f"aten::{override.operator}", KEY)
        override.devices = devices
        override.launches.clear()
        if found is None:
            _undo.append(_impl(override.operator, override.kernel, KEY))
        else:
            _define(override, KEY)
            override.install(found, slot)
            _undo.append(functools.partial(found.softbench_remove, slot))


def _unregister() -> None:
    while _undo:
        _undo.pop()()


def _impl(operator: str, kernel: Callable[..., Tensor], key: str) -> Callable[[], object]:
    """Register a kernel in Python; returns how to remove it."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        library.impl(operator, kernel, key, with_keyset=True)
    _kept.append(torch.library.get_kernel(f"aten::{operator}", key))
    return library._destroy


_library = torch.library.Library("softbench", "FRAGMENT")
_defined: set[tuple[str, str]] = set()


def _define(override: Override, key: str) -> None:
    """Define our operator and its kernel once; they stay, because a call in another thread may run them."""
    if not any(name == override.ours for name, _ in _defined):
        schema = str(getattr(torch.ops.aten, override.operator).default._schema)
        _library.define(f"{override.ours}{schema[schema.index('(') :]}")
    if (override.ours, key) not in _defined:
        _library.impl(override.ours, override.run, key, with_keyset=True)
        _defined.add((override.ours, key))
