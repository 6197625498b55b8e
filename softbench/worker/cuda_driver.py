"""Functions of CUDA's driver, through ctypes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch


@cache
def _driver() -> Any:
    if torch.version.hip is not None:
        raise RuntimeError("this needs CUDA's driver, which ROCm does not have; use --device cpu")
    torch.cuda.synchronize()  # the driver's functions need torch's context
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"CUDA's driver was not found: {error}") from None


def call_driver(name: str, *arguments: object) -> None:
    """Call a function of the driver. Raises RuntimeError with the driver's name of the error."""
    if code := getattr(_driver(), name)(*arguments):
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'an unknown error').decode()}")


@cache
def kernel(ptx: bytes, name: bytes) -> ctypes.c_void_p:
    """A kernel of this text, which the driver compiles for the GPU. Raises RuntimeError if it cannot."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call_driver("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx))
    call_driver("cuModuleGetFunction", ctypes.byref(function), module, name)
    return function


def launch_one_thread(function: ctypes.c_void_p, *arguments: ctypes._SimpleCData[Any]) -> None:
    """Launch a kernel of one thread on torch's current stream."""
    pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call_driver("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)
