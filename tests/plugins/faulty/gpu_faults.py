"""Backends that fail as only a GPU lets them."""

import ctypes

import torch
import triton
import triton.language as tl


class Faulty:
    """A backend that fails in one way."""

    def __init__(self, name, call):
        self.name, self.call = name, call

    def available(self):
        return None if torch.cuda.is_available() else "no GPU"

    def supports(self, case):
        return None

    def prepare(self, case):
        return self.call


def out_of_range(x):
    """A device-side assert: the CUDA context is lost."""
    return x[:, torch.full((1,), x.shape[1] + 10**6, device=x.device)]


def spin(x):
    """A kernel that runs for minutes: the process cannot be asked, only killed."""
    torch.cuda._sleep(2 * 10**11)
    return torch.softmax(x, dim=-1)


def allocate(x):
    """Asks for ten times what the card has."""
    torch.empty(10 * torch.cuda.get_device_properties(x.device).total_memory, dtype=torch.uint8, device=x.device)


@triton.jit
def store_far_away(pointer, far):
    tl.store(pointer + far, 1.0)


def illegal_address(x):
    """A store where no memory is: the CUDA context is lost."""
    store_far_away[(1,)](x, 1 << 40)
    return torch.softmax(x, dim=-1)


def crash(x):
    ctypes.string_at(0)


def at(columns, fault):
    """Honest but on rows of these lengths."""
    return lambda x: fault(x) if x.shape[1] in columns else torch.softmax(x, dim=-1)


COLUMNS = {"crashes": (128, 640), "hangs": (192, 704), "writes-far-away": (256, 768), "asserts": (320, 832), "takes-all-memory": (384, 896)}
FAULTS = {"crashes": crash, "hangs": spin, "writes-far-away": illegal_address, "asserts": out_of_range, "takes-all-memory": allocate}
mixed = [Faulty(name, at(COLUMNS[name], fault)) for name, fault in FAULTS.items()]

backends = [*mixed, Faulty("poisons", out_of_range), Faulty("spins", spin), Faulty("out-of-memory", allocate)]
