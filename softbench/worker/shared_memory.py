"""Memory that two processes map: a memory file on the CPU, an allocation of CUDA's virtual memory management on a GPU.

The process that creates a block owns it. Another process maps it by a file descriptor. CUDA frees an allocation after the last process
has unmapped it ("Virtual Memory Management" in the CUDA C++ Programming Guide), so new memory is never what another process still maps.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Protocol

import torch

ALIGNMENT = 512
"""Bytes: each tensor in a block begins at a multiple."""
SEAL_FUTURE_WRITE = 0x10
"""F_SEAL_FUTURE_WRITE of linux/fcntl.h: mappings that exist stay writable, new ones are not."""
DEVICE, PINNED, POSIX_DESCRIPTOR, READ_WRITE = 1, 1, 1, 3
"""Values of the enumerations CUmemLocationType, CUmemAllocationType, CUmemAllocationHandleType and CUmemAccess_flags."""


class Block(Protocol):
    """A mapped block."""

    descriptor: int
    bytes: torch.Tensor
    """The block's bytes, on its device."""

    def close(self) -> None:
        """Unmap the block and close the descriptor. No tensor in it may be used afterwards."""
        ...


def create(size: int, device: str, *, read_only: bool = False) -> Block:
    """A new block of at least `size` bytes.

    Args:
        size: bytes.
        device: `cpu` or `cuda`.
        read_only: other processes cannot write to it. On a GPU the driver has no such right, so they can.

    Raises:
        OSError, MemoryError, RuntimeError: there is too little memory, or the device cannot share it.
    """
    if device == "cuda":
        return _CudaBlock(size, None)
    descriptor = os.memfd_create("softbench", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    block = _FileBlock(descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE)
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | (SEAL_FUTURE_WRITE if read_only else 0)  # a smaller file would crash its reader
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    return block


def attach(descriptor: int, size: int, device: str, *, read_only: bool = False) -> Block:
    """Map a block that another process created; raises as `create`."""
    if device == "cuda":
        return _CudaBlock(size, descriptor)
    return _FileBlock(descriptor, size, mmap.PROT_READ | (0 if read_only else mmap.PROT_WRITE))


def aligned(size: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def typed(block: torch.Tensor, place: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The tensor at a byte of a block."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return block[place : place + size].view(dtype).view(tuple(shape))


class _FileBlock:
    """A mapped memory file."""

    def __init__(self, descriptor: int, size: int, rights: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=rights)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that a tensor could be written to, although its memory cannot
            self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def close(self) -> None:
        self.bytes = torch.empty(0, dtype=torch.uint8)
        with suppress(BufferError):  # a tensor still refers to it; it is unmapped with the last one
            self._map.close()
        os.close(self.descriptor)


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


@cache
def _driver() -> Any:
    if torch.version.hip is not None:
        raise RuntimeError("the judge shares memory through CUDA's driver, which ROCm does not have; use --device cpu")
    torch.cuda.synchronize()  # the calls below need torch's context
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    """Call the driver; raises RuntimeError for an error."""
    if code := getattr(_driver(), name)(*arguments):
        text = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{name}: {(text.value or b'an unknown error').decode()}")


class _Memory:
    """Device memory as torch takes it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


class _CudaBlock:
    """A mapped allocation of the current GPU."""

    def __init__(self, size: int, descriptor: int | None) -> None:
        location = _Location(DEVICE, torch.cuda.current_device())
        properties, granularity = _Properties(PINNED, POSIX_DESCRIPTOR, location), ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(properties), 0)
        self._size = ctypes.c_size_t(-(-size // granularity.value) * granularity.value)
        self._handle, self._address = ctypes.c_uint64(), ctypes.c_uint64()
        if descriptor is None:
            exported = ctypes.c_int()
            _call("cuMemCreate", ctypes.byref(self._handle), self._size, ctypes.byref(properties), ctypes.c_uint64(0))
            _call("cuMemExportToShareableHandle", ctypes.byref(exported), self._handle, POSIX_DESCRIPTOR, ctypes.c_uint64(0))
            descriptor = exported.value
        else:
            _call("cuMemImportFromShareableHandle", ctypes.byref(self._handle), ctypes.c_void_p(descriptor), POSIX_DESCRIPTOR)
        self.descriptor = descriptor
        zero, access = ctypes.c_uint64(0), _Access(location, READ_WRITE)
        _call("cuMemAddressReserve", ctypes.byref(self._address), self._size, ctypes.c_size_t(0), zero, zero)
        _call("cuMemMap", self._address, self._size, ctypes.c_size_t(0), self._handle, zero)
        _call("cuMemSetAccess", self._address, self._size, ctypes.byref(access), ctypes.c_size_t(1))
        self.bytes = torch.as_tensor(_Memory(self._address.value, size), device="cuda")

    def close(self) -> None:
        torch.cuda.synchronize()
        self.bytes = torch.empty(0, dtype=torch.uint8)
        _call("cuMemUnmap", self._address, self._size)
        _call("cuMemAddressFree", self._address, self._size)
        _call("cuMemRelease", self._handle)
        os.close(self.descriptor)
