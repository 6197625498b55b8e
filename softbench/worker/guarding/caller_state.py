"""What a call must leave as it was, besides values: the memory of its inputs, and settings of torch that its caller uses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class CallerState:
    """The state before a call."""

    given: tuple[torch.Tensor, ...]
    places: tuple[object, ...]
    settings: dict[str, object]
    generators: dict[str, object]

    def changed(self, again: Callable[[], object]) -> str:
        """A message about the first difference now, or an empty text.

        A call may draw random numbers, for example to sum in varying order, but must not set a seed. After a seed the state is always the
        same. So if a generator has changed, `again` calls once more, after other numbers were drawn.
        """
        if _places(self.given) != self.places:
            return "moved its input to other memory"
        now, generators = _settings(), _generators()
        if name := next((name for name, value in self.settings.items() if now[name] != value), ""):
            return f"changed {name}, which its caller uses"
        drawn = [name for name, value in self.generators.items() if generators[name] != value]
        if not drawn:
            return ""
        _draw(self.given)
        again()
        then = _generators()
        return next((f"set the seed of {name}, which its caller uses" for name in drawn if then[name] == generators[name]), "")


def of(given: tuple[torch.Tensor, ...]) -> CallerState:
    """The state of the inputs and of this thread, after settings that an earlier call changed were put right."""
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    _draw(given)  # a call that sets the seed of the call before is noticed too
    return CallerState(given, _places(given), _settings(), _generators())


def _draw(given: tuple[torch.Tensor, ...]) -> None:
    torch.rand(1, device=given[0].device)
    torch.rand(1)
    random.random()


def _places(given: tuple[torch.Tensor, ...]) -> tuple[object, ...]:
    return tuple((tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.requires_grad) for tensor in given)


def _settings() -> dict[str, object]:
    return {
        "autograd's mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "the current stream": torch.cuda.current_stream() if _on_gpu() else None,
    }


def _generators() -> dict[str, object]:
    return {
        "torch's default generator": torch.get_rng_state().numpy().tobytes(),
        "the GPU's default generator": torch.cuda.get_rng_state().numpy().tobytes() if _on_gpu() else b"",
        "Python's random generator": random.getstate(),
    }


def _on_gpu() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()
