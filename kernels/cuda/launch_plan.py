"""The launch plan that the C functions of softmax.cu take."""

from __future__ import annotations

import ctypes

TIERS = ("sub_warp", "staged", "block", "cluster", "split", "generic", "cluster_bulk", "split_bulk", "warp")
"""The names of the tiers, by their number in `Plan.tier`."""


class Plan(ctypes.Structure):
    """How a launch is done: SoftbenchPlan of launch_plan.cuh, which describes the fields.

    The heuristics fill in `Plan(-1)`. A launch carries out any other plan, or refuses it.
    """

    _fields_ = [
        (name, ctypes.c_int)
        for name in ("tier", "vectors", "threads", "per_row", "tier_option", "base_alignment", "max_polls", "stagger_cycles")
    ]
