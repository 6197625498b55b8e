"""What a call must leave as it was, besides values: the memory of its inputs, and the state of the process that its caller uses.

A first call may load libraries, which set filters of warnings or variables of the environment. It must keep the settings of LASTING, with
which the caller computes. Before a later call is compared, the others are put back to what they were before the first call, and the garbage
collector is switched over. So a call that sets what an earlier call has set, or what is usual, is noticed too.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import decimal
import gc
import locale
import logging
import os
import random
import resource
import signal
import socket
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils import deterministic

SMALLEST = sys.float_info.min
SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
COLLECT_OTHERWISE = 11
"""Added to the first threshold of the garbage collector, so that a call which sets a usual one is noticed."""

INDUCTORS_RECURSION = 2000
"""What Inductor raises the limit of recursion to whenever it compiles, also in a later call (torch/_inductor/compile_fx.py)."""
RECURSE_OTHERWISE = 11
"""Added to a limit that Inductor leaves as it is, so that a call which sets a usual one is noticed."""

BACKENDS = [
    getattr(torch._C, f"_get_{name}_enabled", None)
    for name in ("mkldnn", "nnpack", "flash_sdp", "math_sdp", "mem_efficient_sdp", "cudnn_sdp", "overrideable_sdp")
]
"""Functions of torch that tell whether a backend is enabled; None where a version has no such function."""
OF_COMPILERS = (b"TORCHINDUCTOR_", b"_TORCHINDUCTOR_", b"TRITON_")
"""Variables that torch.compile sets when it compiles."""

State = dict[str, Any]
_before_first_call: State = {}


@dataclass(frozen=True, slots=True)
class Setting:
    """A part of the process's state."""

    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None
    """Sets it to a value that `read` gave; None if it is compared only."""
    lasting: bool = False
    """True if a first call must keep it, too."""


def _environment() -> dict[bytes, bytes]:
    raw = vars(os.environ)["_data"]  # to decode all of it takes 0.2 ms
    return {name: value for name, value in raw.items() if not name.startswith(OF_COMPILERS)}


def _write_environment(values: Mapping[bytes, bytes]) -> None:
    for name in set(_environment()) - set(values):
        del os.environb[name]
    os.environb.update(values)


def _write_signals(handlers: tuple[Any, ...]) -> None:
    for number, handler in zip(SIGNALS, handlers, strict=True):
        if handler is not None and _signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def _umask() -> int:
    present = os.umask(0o077)
    os.umask(present)
    return present


def _matmul() -> tuple[object, ...]:
    with suppress(RuntimeError):  # a plugin may use torch's older and newer names of these, which excludes reading them
        flags = torch.backends.cuda.matmul
        cudnn = torch.backends.cudnn
        return (
            *(torch.get_float32_matmul_precision(), flags.allow_tf32, flags.allow_fp16_reduced_precision_reduction),
            *(flags.allow_bf16_reduced_precision_reduction, cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        )
    return ()


def _backends() -> tuple[object, ...]:
    return *(one() for one in BACKENDS if one), torch.autograd.is_multithreading_enabled(), deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def _process() -> tuple[object, ...]:
    timers = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
    limits = (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)
    return os.nice(0), *map(resource.getrlimit, limits), *(signal.getitimer(one)[0] > 0 for one in timers)


def _write_limits(value: tuple[int, int, int]) -> None:
    sys.setrecursionlimit(value[0])
    threading.stack_size(value[1])
    sys.set_int_max_str_digits(value[2])


SETTINGS: dict[str, Setting] = {
    "autograd's mode": Setting(
        lambda: (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        lambda value: torch.set_grad_enabled(value[0]),
        lasting=True,
    ),
    "torch's default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype, lasting=True),
    "torch's default device": Setting(torch.get_default_device, lasting=True),
    "torch's number of threads": Setting(torch.get_num_threads, lasting=True),
    "torch's deterministic mode": Setting(
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()), lasting=True
    ),
    "torch's precision of matrix products or cuDNN's flags": Setting(_matmul, lasting=True),
    "torch's autocast": Setting(lambda: tuple(map(torch.is_autocast_enabled, ("cpu", "cuda"))), lasting=True),
    "the current stream": Setting(lambda: torch.cuda.current_stream() if _on_gpu() else None, lasting=True),
    "the processor's mode for subnormal numbers": Setting(lambda: SMALLEST / 2 == 0, torch.set_flush_denormal, lasting=True),
    "the garbage collector's state": Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable(), lasting=True),
    "the garbage collector's thresholds": Setting(gc.get_threshold, lambda value: gc.set_threshold(*value), lasting=True),
    "the working directory": Setting(os.getcwd, os.chdir, lasting=True),
    "the mask of new files": Setting(_umask, os.umask, lasting=True),
    "the processors of its thread": Setting(lambda: os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else (), lasting=True),
    "the locale": Setting(lambda: locale.setlocale(locale.LC_ALL), lasting=True),
    "Python's limits": Setting(
        lambda: (sys.getrecursionlimit(), threading.stack_size(), sys.get_int_max_str_digits()),
        _write_limits,
    ),
    "Python's switch interval": Setting(sys.getswitchinterval, sys.setswitchinterval),
    "Python's hooks or flags": Setting(
        lambda: (
            *(sys.excepthook, threading.excepthook, warnings.showwarning, sys.displayhook, sys.stdout, sys.stderr),
            *(sys.getdlopenflags(), gc.get_debug(), numpy.geterrcall()),
        )
    ),
    "the handlers of signals": Setting(lambda: tuple(map(_signal.getsignal, SIGNALS)), _write_signals),  # signal's makes enums of it
    "the filters of warnings": Setting(
        lambda: list(warnings.filters),
        lambda value: warnings.filters.__setitem__(slice(None), value),  # type: ignore[index]
    ),
    "the environment": Setting(_environment, _write_environment),
    "the root logger": Setting(lambda: (logging.root.level, logging.root.disabled, logging.root.manager.disable)),
    "the precision of decimal": Setting(lambda: (decimal.getcontext().prec, decimal.getcontext().rounding), lasting=True),
    "the default timeout of sockets": Setting(socket.getdefaulttimeout, socket.setdefaulttimeout, lasting=True),
    "the process's priority, limits or timers": Setting(_process, lasting=True),
    "the tracing of memory": Setting(tracemalloc.is_tracing, lasting=True),
    "torch's backends for the CPU or attention": Setting(_backends, lasting=True),
    "numpy's handling of errors": Setting(numpy.geterr, lambda value: numpy.seterr(**value)),
    "the options of printing": Setting(lambda: (repr(torch._tensor_str.PRINT_OPTS), repr(numpy.get_printoptions())), lasting=True),
}
"""By name, all settings that are compared."""
LASTING = {name: setting for name, setting in SETTINGS.items() if setting.lasting}


@dataclass(frozen=True, slots=True)
class CallerState:
    """The state before a call."""

    given: tuple[torch.Tensor, ...]
    places: tuple[object, ...]
    settings: State
    generators: State
    present: State
    """The settings that were changed for the call, as they were before."""

    def __del__(self) -> None:
        """The call raised, so nobody asked what it changed."""
        self._put_back()

    def _put_back(self) -> None:
        _write(self.present)
        self.present.clear()

    def changed(self, again: Callable[[], object] = lambda: None) -> str:
        """A message about the first difference now, or an empty text.

        A call may draw random numbers, for example to sum in varying order, but must not set a seed. After a seed the state is always the
        same. So if a generator has changed, `again` calls once more, after other numbers were drawn.
        """
        now = _read(self.settings)
        self._put_back()
        if _places(self.given) != self.places:
            return "moved its input to other memory"
        if any(tensor.grad is not None for tensor in self.given if tensor.is_leaf):
            return "left a gradient in the .grad of its input; use torch.autograd.grad, or clear it"
        if name := next((name for name, value in self.settings.items() if now[name] != value), ""):
            return f"changed {name}, which its caller uses"
        if not self.generators:
            return ""
        generators = _generators()
        drawn = [name for name, value in self.generators.items() if generators[name] != value]
        if not drawn:
            return ""
        _draw(self.given)
        again()
        then = _generators()
        return next((f"set the seed of {name}, which its caller uses" for name in drawn if then[name] == generators[name]), "")


def of(given: tuple[torch.Tensor, ...]) -> CallerState:
    """The state of the inputs and of this process, after settings that an earlier call changed were put right."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    _draw(given)  # a call that sets the seed of the call before is noticed too
    present = _read(SETTINGS)
    first, *others = present["the garbage collector's thresholds"]
    recursion, *limits = (present | _before_first_call)["Python's limits"]
    wanted = {name: value for name, value in _before_first_call.items() if value != present[name]} | {
        "the garbage collector's state": not present["the garbage collector's state"],
        "the garbage collector's thresholds": (first + COLLECT_OTHERWISE, *others),
        "Python's limits": (max(recursion, INDUCTORS_RECURSION) + RECURSE_OTHERWISE, *limits),
    }
    _write(wanted)
    return CallerState(given, _places(given), present | wanted, _generators(), {name: present[name] for name in wanted})


def of_first(given: tuple[torch.Tensor, ...]) -> CallerState:
    """The state before a call that may be the first one on its shape: what such a call must keep."""
    if not _before_first_call:
        _before_first_call.update(
            {name: setting.read() for name, setting in SETTINGS.items() if setting.write is not None and not setting.lasting}
        )
    return CallerState(given, _places(given), _read(LASTING), {}, {})


def _read(names: Mapping[str, object]) -> State:
    return {name: SETTINGS[name].read() for name in names}


def _write(values: State) -> None:
    for name, value in values.items():
        if write := SETTINGS[name].write:
            write(value)


def _draw(given: tuple[torch.Tensor, ...]) -> None:
    torch.rand(1, device=given[0].device)
    torch.rand(1)
    random.random()
    numpy.random.random()


def _places(given: tuple[torch.Tensor, ...]) -> tuple[object, ...]:
    return tuple((tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.requires_grad) for tensor in given)


def _generators() -> State:
    legacy = numpy.random.get_state(legacy=False)["state"]
    return {
        "torch's default generator": torch.get_rng_state().numpy().tobytes(),
        "the GPU's default generator": torch.cuda.get_rng_state().numpy().tobytes() if _on_gpu() else b"",
        "Python's random generator": random.getstate(),
        "numpy's random generator": (legacy["key"].tobytes(), legacy["pos"]),
    }


def _on_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()
