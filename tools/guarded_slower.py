"""The kernel of `guarded.py` after a bad change: a sleeping kernel makes some cases 10 % slower."""

from softbench.backends.injected_slowdown import inject
from softbench.core.case import Case

SLOWER = ("forward-fp32-4096x4096", "forward-bf16-4096x4096", "backward-bf16-4096x4096", "forward-fp32-1048576x32")
"""Cases of 57 us and more, where the launch of the sleeping kernel takes at most 4 %."""

plain, slow = inject("torch", (0.0, 0.10))


class Changed:
    """torch's softmax with an injected slowdown of 10 % in some cases."""

    name = "guarded"

    def available(self):
        return None

    def supports(self, case: Case):
        return None

    def prepare(self, case: Case):
        return (slow if case.key in SLOWER else plain).prepare(case)


backend = Changed()
