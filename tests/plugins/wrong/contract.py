"""Right values, wrong contract: each of these must be rejected for what it returns or does, not for its numbers."""

import torch


class Broken:
    """A softmax that breaks the contract in one way."""

    def __init__(self, name, function):
        self.name, self.function = name, function

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        return self.function


class Wrapped(torch.Tensor):
    pass


def in_place(x):
    y = torch.softmax(x, dim=-1)
    x.copy_(y)
    return y


kept: dict[int, torch.Tensor] = {}


def by_address(x):
    if x.data_ptr() not in kept:
        kept[x.data_ptr()] = torch.softmax(x, dim=-1)
    return kept[x.data_ptr()]


backends = [
    Broken("returns-none", lambda x: None),
    Broken("returns-float64", lambda x: torch.softmax(x.double(), dim=-1)),
    Broken("returns-a-row-less", lambda x: torch.softmax(x, dim=-1)[1:]),
    Broken("returns-a-subclass", lambda x: torch.softmax(x, dim=-1).as_subclass(Wrapped)),
    Broken("returns-its-input", lambda x: x.copy_(torch.softmax(x, dim=-1))),
    Broken("changes-its-input", in_place),
    Broken("keeps-its-output", by_address),
]
