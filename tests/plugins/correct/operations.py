"""Right ways to compute operations other than plain softmax, one backend each; `standardize` is that of docs/operations.md."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "support"))
import cross_entropies
import layer_norms
import log_softmaxes
import logprobs
import masked_softmaxes
import rms_norms
import scaled
from ways import CaseWay, backends, of_cases, same

LOG_SOFTMAX = backends(
    "right",
    "log_softmax",
    {
        "forward": same(log_softmaxes.RIGHT_FORWARD),
        "backward": same(log_softmaxes.RIGHT_BACKWARD),
        "both": same(log_softmaxes.RIGHT_BOTH),
    },
)
LAYER_NORM = backends("right-layer", "standardize", {"forward": same(layer_norms.RIGHT), "backward": same(layer_norms.RIGHT_BACKWARD)})
RMS_NORM = backends("right-rms", "rms_norm", {"forward": same(rms_norms.RIGHT), "backward": same(rms_norms.RIGHT_BACKWARD)})
SCALED = backends("right-scaled", "softmax(scale,out_dtype)", dict.fromkeys(("forward", "backward", "both"), scaled.HONEST), CaseWay)
CROSS_ENTROPY = of_cases("right-ce", "cross_entropy", cross_entropies.RIGHT)
LOGPROB = backends("right-logprob", "logprob", {"forward": same(logprobs.RIGHT), "backward": same(logprobs.RIGHT_BACKWARD)})
MASKED_SOFTMAX = backends(
    "right-masked", masked_softmaxes.OPERATION, dict.fromkeys(("forward", "backward"), masked_softmaxes.RIGHT), CaseWay
)
backends = [*LOG_SOFTMAX, *LAYER_NORM, *RMS_NORM, *SCALED, *CROSS_ENTROPY, *LOGPROB, *MASKED_SOFTMAX]
