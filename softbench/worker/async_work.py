"""The async-work watch: detects work that is not finished when a call returns.

Signs of such work: a thread is left running, or the output still changes. `softbench.worker.side_streams` detects work that changes no
output of the call.
"""

from __future__ import annotations

import _thread
import time
from typing import Any

import torch

from softbench.core.text import count
from softbench.worker.output_checks import same

SETTLE_SECONDS = 0.03
"""Time for a remaining thread to write. It is short compared with a build."""


class AsyncWorkWatch:
    """Watches one call: was its work finished when it returned?"""

    def __init__(self, device: str) -> None:
        self.device = device
        self.threads = _thread._count()
        self.lingers = False
        """Set by `unfinished`: a thread was left running, but the output stayed the same. A compiler's own thread does so too."""

    def left(self) -> str:
        """A message about Python threads that the call started and left running, or an empty text. Earlier threads do not count."""
        more = _thread._count() - self.threads
        return f"left {count(more, 'thread')} running when it returned: its work may not be done" if more > 0 else ""

    def unfinished(self, results: Any) -> str:
        """A message if the output changes after the call, or if a thread is left; else an empty text. Use it right after the call.

        It compares two readings of the output. On a GPU the first is ordered on the caller's stream; the second waits for the device.
        """
        all_results = results if isinstance(results, tuple | list) else (results,)
        outputs = [
            out for out in all_results if type(out) is torch.Tensor and out.layout is torch.strided and out.device.type == self.device
        ]
        left = self.left()
        at_once = [out.detach().clone() for out in outputs]
        if _thread._count():
            time.sleep(SETTLE_SECONDS)
        if self.device == "cuda":
            torch.cuda.synchronize()
        changed = not all(same(out.detach(), early) for early, out in zip(at_once, outputs, strict=True))
        self.lingers = left != "" and not changed
        return "wrote its output after its call had returned: on another thread or stream, or later" if changed and not left else left
