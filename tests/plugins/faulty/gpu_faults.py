"""Backends that fail as only a GPU lets them."""

import torch


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


backends = [Faulty("poisons", out_of_range), Faulty("spins", spin), Faulty("out-of-memory", allocate)]
