"""Decides whether the profile of a timed cell takes away its result."""

from __future__ import annotations

from statistics import median

from softbench.core.case import Case
from softbench.core.outcome import Failed, Profile, Status
from softbench.core.text import size
from softbench.ops.registry import operation
from softbench.plan.plan import Plan
from softbench.results import labels


def failed(profile: Profile, before: str, unordered: str, case: Case, plan: Plan) -> Failed | None:
    """How the cell ends, or None if its result stands.

    Args:
        profile: the last profile.
        before: work of an earlier trace that is not ordered with the caller's stream, in words; empty if the last trace is the first.
        unordered: such work of the last trace.
        case: the case.
        plan: the run's plan, whose facts are the datasheet's bandwidth and the size of L2.
    """
    if before and unordered:
        return Failed(Status.WRONG, "time", unordered)
    if before and not profile.device_us:
        return Failed(Status.UNVERIFIED, "time", f"{before}; a second trace failed: {profile.note}")
    peak, l2_bytes = plan.facts.get("peak_gbps"), plan.facts.get("gpu_l2_bytes")
    if not profile.device_us or not isinstance(peak, float) or not isinstance(l2_bytes, int):
        return None
    us = median(profile.device_us)
    if not labels.implausible(case, us, peak, l2_bytes, plan.l2):
        return None
    moved = size(operation(case.op).bytes_moved(case))
    return Failed(Status.UNVERIFIED, "time", f"the profiler saw kernels of {us:.1f} us, too short to move {moved} at {peak:.0f} GB/s")
