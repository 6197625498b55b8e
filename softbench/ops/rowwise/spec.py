"""The tensors and passes of an operation over rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from softbench.core.case import Direction
from softbench.ops.operation import Operation, Pass, Preset, TensorSpec
from softbench.ops.parameters import Parameter

ROWS = TensorSpec(("M", "N"))
PRESETS = MappingProxyType(
    {
        "vocabularies": Preset(
            tuple(f"{M}x{N}" for M in (1, 64, 4096) for N in (32000, 50257, 128256, 151936, 201088, 262144)),
            "logits of Llama 2, GPT-2, Llama 3, Qwen 3, gpt-oss and Gemma 3, for 1, 64 and 4096 tokens",
        ),
        "attention": Preset(
            ("64x12x197x197", "32x12x512x512", "8x12x1024x1024", "1x32x4096x4096"),
            "scores of ViT-B/16 (64 images), BERT-base (32 texts), GPT-2 (8) and Llama 2 7B (1), a head and a query in each row",
        ),
    }
)
"""The vocabularies and the heads are those of the models' published configurations."""


def operation(
    name: str,
    summary: str,
    *,
    result: TensorSpec = ROWS,
    others: Mapping[str, TensorSpec] = MappingProxyType({}),
    parameters: tuple[Parameter, ...] = (),
) -> Operation:
    """An operation that makes y of x, and dx of dy and y; these tensors are (M, N), or rows along any dimension.

    `result` is the form of y and dy. `others` are inputs of every pass, behind x, dy and y.
    """
    more = tuple(others)
    return Operation(
        name=name,
        summary=summary,
        any_dim=True,
        presets=PRESETS,
        tensors=MappingProxyType({"x": ROWS, "y": result, "dy": result, "dx": ROWS, **others}),
        passes=MappingProxyType(
            {
                Direction.FORWARD: Pass(inputs=("x", *more), outputs=("y",), reads=("x", *more)),
                Direction.BACKWARD: Pass(inputs=("dy", "y", *more), outputs=("dx",), reads=("dy", "y", *more)),
                Direction.BOTH: Pass(inputs=("x", "dy", *more), outputs=("y", "dx"), reads=("x", "dy", "y", *more)),
            }
        ),
        parameters=parameters,
    )
