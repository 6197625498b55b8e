"""What a plugin left active in its process that sees or changes the work of others: modes and hooks of torch, traces, finders."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterable

import torch
from torch.nn.modules import module as modules

from softbench.worker.guarding import audit

GLOBAL_HOOKS = {name: value for name, value in vars(modules).items() if name.startswith("_global_") and isinstance(value, dict)}
"""Hooks of all modules, by name."""
_stacks = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_autocast, _inference, _anomaly = torch.is_autocast_enabled, torch.is_inference_mode_enabled, torch.is_anomaly_enabled
_saved = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_is_tracing: None)
_trace, _profile = sys.gettrace, sys.getprofile


def mode() -> str:
    """A message if a torch mode is active, or an empty text. It would see how outputs are copied."""
    return "left a torch mode active, which changes the work of others in its process" if any(stack() for stack in _stacks) else ""


def states() -> dict[str, object]:
    """The states, by what they are called in a message: `left a trace function active`."""
    monitoring = getattr(sys, "monitoring", None)
    return {
        "a trace function": (_trace(), threading._trace_hook),  # type: ignore[attr-defined]
        "a profile function": (_profile(), threading._profile_hook),
        "a tool of sys.monitoring": tuple(map(monitoring.get_tool, range(6))) if monitoring else (),
        "a torch function mode, such as a default device,": _stacks[0](),
        "a torch dispatch mode": _stacks[1](),
        "autocast": (_autocast("cpu"), _autocast("cuda")),
        "inference mode": _inference(),
        "autograd's anomaly mode": _anomaly(),
        "hooks for saved tensors": _saved(True) is not None,
        "a hook of all modules": tuple(map(len, GLOBAL_HOOKS.values())),
        "a callback of the garbage collector": _own(gc.callbacks),
        "a finder of imports": _own(getattr(finder, "find_spec", None) for finder in sys.meta_path),
    }


def _own(functions: Iterable[object]) -> list[int]:
    """The functions that belong to no library: libraries of Python add such, too."""
    codes = (getattr(function, "__code__", None) for function in functions)
    return [id(code) for code in codes if code is not None and not audit.of_library(code)]


def watch() -> Callable[[], str]:
    """A function that tells what is active beyond what is now, as `left autocast active, which changes others' calls`."""
    before = states()

    def active() -> str:
        now = states()
        name = next((name for name, value in before.items() if now[name] != value), "")
        return f"left {name} active, which changes the work of others in its process" if name else ""

    return active
