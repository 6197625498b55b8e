"""What a profile takes away: the result of a cell whose kernels are too short for its bytes."""

from dataclasses import replace

import pytest
from pretended import make

from softbench.core.case import Case, Direction
from softbench.core.outcome import Failed, Profile, Status
from softbench.run.profile_verdict import failed

CASE = Case(65536, 4096, "bf16", Direction.FORWARD, "cuda")  # 1 GiB moved
PLAN = replace(make(), facts={"peak_gbps": 4917.0, "gpu_l2_bytes": 50 * 2**20})


@pytest.mark.parametrize(("us", "fits"), [(10.0, False), (180.0, False), (220.0, True), (900.0, True)])
def test_kernels_too_short_for_the_bytes_leave_no_result(us, fits):
    found = failed(Profile((us,)), "", "", CASE, PLAN)
    if fits:
        assert found is None
    else:
        reason = f"the profiler saw kernels of {us:.1f} us, too short to move 1 GiB at 4917 GB/s"
        assert found == Failed(Status.UNVERIFIED, "time", reason)


def test_unknown_facts_and_profiles_take_nothing_away():
    assert failed(Profile((1.0,)), "", "", CASE, replace(PLAN, facts={})) is None
    assert failed(Profile(note="no profiler"), "", "", CASE, PLAN) is None
    small = replace(CASE, M=64)
    assert failed(Profile((1.0,)), "", "", small, PLAN) is None
