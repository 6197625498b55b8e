"""Right ways to compute log_softmax, rms_norm and softmax with parameters, one backend for each name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "support"))
import log_softmaxes
import rms_norms
import scaled
from ways import CaseWay, backends, same

LOG_SOFTMAX = backends(
    "right",
    "log_softmax",
    {
        "forward": same(log_softmaxes.RIGHT_FORWARD),
        "backward": same(log_softmaxes.RIGHT_BACKWARD),
        "both": same(log_softmaxes.RIGHT_BOTH),
    },
)
RMS_NORM = backends("right-rms", "rms_norm", {"forward": same(rms_norms.RIGHT), "backward": same(rms_norms.RIGHT_BACKWARD)})
SCALED = backends("right-scaled", "softmax(scale,out_dtype)", dict.fromkeys(("forward", "backward", "both"), scaled.HONEST), CaseWay)
backends = [*LOG_SOFTMAX, *RMS_NORM, *SCALED]
