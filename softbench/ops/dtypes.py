"""The torch dtype of each name in `softbench.ops.operation.ELEMENT_BYTES`."""

from __future__ import annotations

import torch

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
TENSOR_DTYPES = DTYPES | {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool}
