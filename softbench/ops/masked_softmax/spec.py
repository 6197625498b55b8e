"""Masked softmax as an operation: its tensors, passes, parameters and bytes."""

from __future__ import annotations

from types import MappingProxyType

from softbench.core.case import Direction
from softbench.ops.operation import SEEN, Operation, Pass, Preset, Share, TensorSpec
from softbench.ops.parameters import Parameter, Setting

NONE, ADDITIVE, BOOLEAN = "none", "additive", "boolean"
SCALE = Parameter("scale", "number", 1.0, "the factor of x, before the mask is added", least=1e-4, most=1e4)
MASK = Parameter(
    "mask",
    "choice",
    NONE,
    "additive: a bias in the dtype of x is added. boolean: only elements where a bool is True take part",
    choices=(NONE, ADDITIVE, BOOLEAN),
)
MASK_AXES = Parameter(
    "mask_axes",
    "choice",
    "BSN",
    "the axes of bias or mask; it has size 1 along the others, which share it",
    choices=("BHSN", "BSN", "HSN", "SN", "BN"),
)
CAUSAL = Parameter("causal", "bool", False, "a query sees no later key: query s sees its first s + 1 + max(0, N - S)")
SINK = Parameter("sink", "bool", False, "a logit of each head joins the sum and has no output, as in gpt-oss")

SCORES, OF_MASK = TensorSpec(("M", "N")), (MASK_AXES.name,)
OF_SINK: Setting = (SINK.name, True)
IF_CAUSAL: Setting = (CAUSAL.name, True)
MODELS = MappingProxyType(
    {
        "vit": Preset(("64x12x197x197", "256x16x257x257"), "ViT-B/16 (64 images) and ViT-L/14 (256 images), 224 pixels"),
        "bert": Preset(("32x12x128x128", "32x12x512x512", "32x16x512x512"), "BERT-base and BERT-large, 32 texts"),
        "gpt2": Preset(("8x12x1024x1024", "4x25x1024x1024"), "GPT-2 (8 texts) and GPT-2 XL (4 texts)"),
        "llama": Preset(("1x32x2048x2048", "1x32x4096x4096", "1x32x8192x8192"), "Llama 2 7B and Llama 3 8B, one text"),
        "gpt-oss": Preset(("1x64x2048x2048", "1x64x4096x4096", "1x64x8192x8192"), "gpt-oss-20b and gpt-oss-120b, one text"),
        "openfold": Preset(("128x8x256x256", "256x4x256x256", "384x4x384x384"), "AlphaFold 2: MSA rows (8 heads) and triangles (4 heads)"),
        "long": Preset(("1x8x16384x16384", "1x1x16384x16384"), "16384 keys, 8 heads of Llama 3.1 8B on one of 4 GPUs, and one head"),
    }
)
"""Heads are those of the models' published configurations."""
OPERATION = Operation(
    name="masked_softmax",
    summary="softmax(scale * x) of attention scores with mask, causal order and sink, and its gradient",
    scores=True,
    causal=IF_CAUSAL,
    tensors=MappingProxyType(
        {
            "x": SCORES,
            "bias": TensorSpec(OF_MASK, when=(MASK.name, ADDITIVE)),
            "mask": TensorSpec(OF_MASK, "bool", (MASK.name, BOOLEAN)),
            "sink": TensorSpec(("H",), "fp32", OF_SINK),
            "y": TensorSpec(("M", "N"), only_seen=True),
            "dy": SCORES,
            "sink_share": TensorSpec(("B", "H", "S"), "fp32", OF_SINK),
            "dx": SCORES,
            "dsink": TensorSpec(("B", "H", "S"), "fp32", OF_SINK),
        }
    ),
    passes=MappingProxyType(
        {
            Direction.FORWARD: Pass(
                inputs=("x", "bias", "mask", "sink"),
                outputs=("y",),
                reads=("x", "bias", "mask", "sink"),
                shares=tuple(Share(name, SEEN, IF_CAUSAL) for name in ("x", "bias", "mask")),
            ),
            Direction.BACKWARD: Pass(
                inputs=("dy", "y", "sink_share"),
                outputs=("dx", "dsink"),
                reads=("dy", "y", "sink_share"),
                shares=tuple(Share(name, SEEN, IF_CAUSAL) for name in ("dy", "y")),
            ),
        }
    ),
    parameters=(SCALE, MASK, MASK_AXES, CAUSAL, SINK),
    presets=MODELS,
)
