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
from typing import Protocol

import torch

from softbench.worker.cuda_driver import call_driver

ALIGNMENT = 512
"""Bytes: each tensor in a block begins at a multiple."""
SEAL_FUTURE_WRITE = 0x10
"""F_SEAL_FUTURE_WRITE of linux/fcntl.h: mappings that exist stay writable, new ones are not."""
DEVICE, PINNED, POSIX_DESCRIPTOR, READ_WRITE = 1, 1, 1, 3
"""Values of the enumerations CUmemLocationType, CUmemAllocationType, CUmemAllocationHandleType and CUmemAccess_flags."""
NOT_SHARED = 0
"""CU_MEM_HANDLE_TYPE_NONE."""
MAP_FIXED, MAP_NORESERVE, MAP_FAILED = 0x10, 0x4000, ctypes.c_void_p(-1).value
"""Of sys/mman.h on Linux."""


class Block(Protocol):
    """A mapped block."""

    descriptor: int
    bytes: torch.Tensor
    """The block's bytes, on its device."""

    def close(self) -> None:
        """Unmap the block and close the descriptor. No tensor in it may be used afterwards."""
        ...


class Window(Protocol):
    """A range of addresses. Blocks of another process are mapped there, one after the other."""

    bytes: torch.Tensor
    """The range's bytes, on its device: those of the block that was mapped last. Before the first one they must not be used."""

    def map(self, descriptor: int, size: int) -> None:
        """Map a block that another process created, to be read only, in place of the last one. The descriptor is closed.

        Raises as `create`, or ValueError if the range is too small.
        """
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


def attach(descriptor: int, size: int, device: str) -> Block:
    """Map a block that another process created; raises as `create`."""
    if device == "cuda":
        return _CudaBlock(size, descriptor)
    return _FileBlock(descriptor, size, mmap.PROT_READ | mmap.PROT_WRITE)


def window(size: int, device: str) -> Window:
    """A range of `size` bytes without a block; raises as `create`."""
    return _CudaWindow(size) if device == "cuda" else _FileWindow(size)


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


class _FileWindow:
    """A range of this process's addresses. Before the first block it reads as zeros."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._address = _mapped(None, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1)
        self.bytes = torch.frombuffer((ctypes.c_uint8 * size).from_address(self._address), dtype=torch.uint8)

    def map(self, descriptor: int, size: int) -> None:
        _require_room(size, self._size)
        _mapped(self._address, size, mmap.MAP_SHARED | mmap.MAP_POPULATE | MAP_FIXED, descriptor)
        os.close(descriptor)


def _mapped(address: int | None, size: int, flags: int, descriptor: int) -> int:
    """The address of a new mapping that is read only. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    found: int = libc.mmap(address, size, mmap.PROT_READ, flags, descriptor, 0)
    if found == MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _require_room(size: int, room: int) -> None:
    if size > room:
        raise ValueError(f"a block of {size} bytes for a range of {room}")


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


class _Memory:
    """Device memory as torch takes it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _rounded(size: int, location: _Location) -> ctypes.c_size_t:
    """A multiple of what the driver maps at least."""
    properties, granularity = _Properties(PINNED, POSIX_DESCRIPTOR, location), ctypes.c_size_t()
    call_driver("cuMemGetAllocationGranularity", ctypes.byref(granularity), ctypes.byref(properties), 0)
    return ctypes.c_size_t(-(-size // granularity.value) * granularity.value)


def _created(size: ctypes.c_size_t, location: _Location, kind: int) -> ctypes.c_uint64:
    """A new allocation."""
    handle, properties = ctypes.c_uint64(), _Properties(PINNED, kind, location)
    call_driver("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_uint64(0))
    return handle


def _imported(descriptor: int) -> ctypes.c_uint64:
    """An allocation of another process."""
    handle = ctypes.c_uint64()
    call_driver("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(descriptor), POSIX_DESCRIPTOR)
    return handle


def _reserved(size: ctypes.c_size_t) -> ctypes.c_uint64:
    """A range of addresses."""
    address, zero = ctypes.c_uint64(), ctypes.c_uint64(0)
    call_driver("cuMemAddressReserve", ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero)
    return address


def _map_at(address: ctypes.c_uint64, size: ctypes.c_size_t, handle: ctypes.c_uint64, location: _Location) -> None:
    access = _Access(location, READ_WRITE)
    call_driver("cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
    call_driver("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))


class _CudaBlock:
    """A mapped allocation of the current GPU."""

    def __init__(self, size: int, descriptor: int | None) -> None:
        location = _Location(DEVICE, torch.cuda.current_device())
        self._size = _rounded(size, location)
        if descriptor is None:
            exported = ctypes.c_int()
            self._handle = _created(self._size, location, POSIX_DESCRIPTOR)
            call_driver("cuMemExportToShareableHandle", ctypes.byref(exported), self._handle, POSIX_DESCRIPTOR, ctypes.c_uint64(0))
            descriptor = exported.value
        else:
            self._handle = _imported(descriptor)
        self.descriptor = descriptor
        self._address = _reserved(self._size)
        _map_at(self._address, self._size, self._handle, location)
        self.bytes = torch.as_tensor(_Memory(self._address.value, size), device="cuda")

    def close(self) -> None:
        torch.cuda.synchronize()
        self.bytes = torch.empty(0, dtype=torch.uint8)
        call_driver("cuMemUnmap", self._address, self._size)
        call_driver("cuMemAddressFree", self._address, self._size)
        call_driver("cuMemRelease", self._handle)
        os.close(self.descriptor)


class _CudaWindow:
    """A range of addresses of the current GPU."""

    def __init__(self, size: int) -> None:
        self._location = _Location(DEVICE, torch.cuda.current_device())
        self._room = _rounded(size, self._location)
        self._address = _reserved(self._room)
        self._mapped = _rounded(1, self._location)
        self._handle = _created(self._mapped, self._location, NOT_SHARED)  # torch asks the driver for the device of an address
        _map_at(self._address, self._mapped, self._handle, self._location)
        self.bytes = torch.as_tensor(_Memory(self._address.value, size), device="cuda")

    def map(self, descriptor: int, size: int) -> None:
        """The GPU must not run what uses the range now. What waits in a stream may use it later."""
        rounded = _rounded(size, self._location)
        _require_room(rounded.value, self._room.value)
        handle = _imported(descriptor)
        call_driver("cuMemUnmap", self._address, self._mapped)
        _map_at(self._address, rounded, handle, self._location)
        call_driver("cuMemRelease", self._handle)
        self._handle, self._mapped = handle, rounded
        os.close(descriptor)
