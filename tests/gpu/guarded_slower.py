"""The kernel of `guarded.py` after a bad change: 10 % slower in some cases, by a sleeping kernel after each launch."""

from softbench.backends.injected_slowdown import inject
from softbench.core.case import Case

SLOWER = ("forward-fp32-4096x4096", "forward-bf16-4096x4096", "backward-bf16-4096x4096", "forward-fp32-1048576x32")
"""Of some 57 us and more: a launch of its own is a share of 4 % there."""

plain, slow = inject("torch", (0.0, 0.10))


class Changed:
    """torch's softmax, with 10 % planted in some cases."""

    name = "guarded"

    def available(self):
        return None

    def supports(self, case: Case):
        return None

    def prepare(self, case: Case):
        return (slow if case.key in SLOWER else plain).prepare(case)


backend = Changed()
