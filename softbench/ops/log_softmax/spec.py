"""Log-softmax over the last axis as an operation: its tensors, passes and bytes."""

from __future__ import annotations

from softbench.ops.rowwise import spec

OPERATION = spec.operation("log_softmax", "x - log(sum(exp(x))) of each row, and its gradient")
