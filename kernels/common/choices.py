"""Which kernels run `cross_entropy`, `logprob` and `masked_softmax` of `softbench.kernels`, and `which` for all functions there.

The device and the dtype of the first argument decide. On a CUDA device, float32, float16 and bfloat16 are for the CUDA kernels where
`build()` has built them, else for the Triton kernels where Triton can compile. Otherwise torch computes. A class of calls is decided at its
first call.
"""

import torch
from torch import Tensor

from . import automatic
from .automatic import Choice, without_cuda, without_triton
from .rows import DTYPES

NAMES = {"cross_entropy": "logits", "logprob": "logits", "masked_softmax": "scores"}
"""The functions, and what their first argument is called."""
CONVERTED = ("masked_softmax",)
"""The functions with an argument `dtype`, to which they convert x first."""
LIBRARIES = {"masked_softmax": ("masked_softmax", "scaled_softmax")}
"""The CUDA libraries of a function; that of its name for others. Scores without mask, order and sink are rows of softmax with a scale."""
_choices: dict[tuple[str, torch.device, torch.dtype, str], Choice] = {}
automatic.FORGETS.append(_choices.clear)


def which(x: Tensor, dim: int = -1, dtype: torch.dtype | None = None, *, function: str = "softmax") -> Choice:
    """What a function of `softbench.kernels` runs for x in this process, and why. It computes nothing.

    Raises:
        ValueError: there is no such function.
    """
    names = (*automatic._FUNCTIONS, *NAMES)
    if function not in names:
        raise ValueError(f"function {function!r}: must be one of {', '.join(names)}")
    if function not in NAMES:
        return automatic.which(x, dim, dtype, function=function)
    return choice(function, x, dtype=dtype if function in CONVERTED else None)


def choice(function: str, x: Tensor, but: str = "", dtype: torch.dtype | None = None) -> Choice:
    """The decision on a class of calls. `but`: why the CUDA kernels do not take these calls; empty if they do.

    `dtype`: what x is converted to first; None for its own.
    """
    key = function, x.device, dtype or x.dtype, but
    if key not in _choices:
        _choices[key] = choose(*key)
    return _choices[key]


def choose(function: str, device: torch.device, dtype: torch.dtype, but: str = "") -> Choice:
    """The rule of this module."""
    name = NAMES[function]
    if device.type != "cuda":
        return Choice("torch", f"the {name} are on {device.type}, and our kernels run on CUDA GPUs")
    if dtype not in DTYPES:
        return Choice("torch", f"the {name} are {dtype}, and our kernels take float32, float16 and bfloat16")
    lacks_cuda = but or next(filter(None, (without_cuda(device, library) for library in LIBRARIES.get(function, (function,)))), "")
    if not lacks_cuda:
        return Choice("cuda", "the CUDA kernels are built")
    lacks_triton = "the Triton kernels contain PTX" if torch.version.hip is not None else without_triton()
    return Choice("torch", f"{lacks_cuda}; {lacks_triton}") if lacks_triton else Choice("triton", lacks_cuda)
