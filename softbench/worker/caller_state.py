"""What a call must leave as it was, besides values: the memory of its inputs, and settings of torch that its caller uses."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CallerState:
    """The state before a call."""

    given: tuple[torch.Tensor, ...]
    places: tuple[object, ...]
    settings: dict[str, object]

    def changed(self) -> str:
        """A message about the first difference now, or an empty text."""
        if _places(self.given) != self.places:
            return "moved its input to other memory"
        now = _settings()
        return next((f"changed {name}, which its caller uses" for name, value in self.settings.items() if now[name] != value), "")


def of(given: tuple[torch.Tensor, ...]) -> CallerState:
    """The state of the inputs and of this thread, after settings that an earlier call changed were put right.

    Random numbers are drawn first, so that a call that sets a seed is noticed each time.
    """
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.rand(1, device=given[0].device)
    torch.rand(1)
    random.random()
    return CallerState(given, _places(given), _settings())


def _places(given: tuple[torch.Tensor, ...]) -> tuple[object, ...]:
    return tuple((tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.requires_grad) for tensor in given)


def _settings() -> dict[str, object]:
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "autograd's mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "torch's default generator": torch.get_rng_state().numpy().tobytes(),
        "the GPU's default generator": torch.cuda.get_rng_state().numpy().tobytes() if on_gpu else b"",
        "the current stream": torch.cuda.current_stream() if on_gpu else None,
        "Python's random generator": random.getstate(),
    }
