"""Wrong ways to compute operations other than plain softmax, one backend each; `standardize` is that of docs/operations.md.

One of them is right until its calls seem unchecked.
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "support"))
import cross_entropies
import layer_norms
import log_softmaxes
import logprobs
import masked_softmaxes
import rms_norms
import scaled
from ways import CaseWay, Way, backends, of_cases, same


def first_buffer():
    """Zeros for other memory than that of its first call. A run checks one set of inputs, and then times two."""
    places = []

    def call(x):
        places.append(x.data_ptr())
        return torch.log_softmax(x, -1) if x.data_ptr() == places[0] else torch.zeros_like(x)

    return call


LOG_SOFTMAX = [
    Way("wrong-first-buffer", "log_softmax", {"forward": first_buffer}),
    *backends(
        "wrong",
        "log_softmax",
        {
            "forward": log_softmaxes.WRONG_FORWARD,
            "backward": same(log_softmaxes.WRONG_BACKWARD),
            "both": same(log_softmaxes.WRONG_BOTH),
        },
    ),
]
LAYER_NORM = backends("wrong-layer", "standardize", {"forward": layer_norms.WRONG, "backward": same(layer_norms.WRONG_BACKWARD)})
RMS_NORM = backends("wrong-rms", "rms_norm", {"forward": rms_norms.WRONG, "backward": same(rms_norms.WRONG_BACKWARD)})
SCALED = backends("wrong-scaled", "softmax(scale,out_dtype)", {"forward": scaled.WRONG_FORWARD, "backward": scaled.WRONG_BACKWARD}, CaseWay)
CROSS_ENTROPY = of_cases("wrong-ce", "cross_entropy", cross_entropies.WRONG)
LOGPROB = backends("wrong-logprob", "logprob", {"forward": same(logprobs.WRONG), "backward": same(logprobs.WRONG_BACKWARD)})
MASKED_SOFTMAX = backends(
    "wrong-masked",
    masked_softmaxes.OPERATION,
    {
        "forward": {name: make for name, (_, make) in masked_softmaxes.WRONG.items()},
        "backward": {name: make for name, (_, make) in masked_softmaxes.WRONG_BACKWARD.items()},
    },
    CaseWay,
)
backends = [*LOG_SOFTMAX, *LAYER_NORM, *RMS_NORM, *SCALED, *CROSS_ENTROPY, *LOGPROB, *MASKED_SOFTMAX]
