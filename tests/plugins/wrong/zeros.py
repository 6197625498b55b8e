"""Returns zeros: fast, of the right shape, and wrong."""

import torch


class Zeros:
    """All zeros."""

    name = "zeros"

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        return lambda *tensors: torch.zeros_like(tensors[-1])


backend = Zeros()
