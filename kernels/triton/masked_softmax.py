"""masked_softmax(x): softmax of attention scores with scale, bias or mask, causal order and sink, differentiable in x and sink.

`scores.py` has the kernels. What needs neither mask, order nor sink is softmax with a scale, so `dispatch.py` launches it: any number of
columns, rows of any alignment. `softbench.kernels.common.masked_softmax.MaskedSoftmax` has the arguments.
"""

from __future__ import annotations

from ..common.masked_softmax import MaskedSoftmax
from .dispatch import softmax
from .scores import MAX_COLUMNS, launch_backward, launch_forward

masked_softmax = MaskedSoftmax(softmax, launch_forward, launch_backward, MAX_COLUMNS)
