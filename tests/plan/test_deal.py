"""Shards of a sweep."""

import pytest
from hypothesis import given, strategies as st

from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.ops.registry import operation
from softbench.plan.deal import CASE_BYTES, Shard, deal, of_shard, parse_shard

CASES = st.lists(
    st.builds(Case, st.integers(1, 10**5), st.integers(1, 10**5), st.sampled_from(["fp32", "bf16"]), st.sampled_from(Direction)).filter(
        lambda case: case.direction is not Direction.FUSED
    ),
    unique=True,
    max_size=40,
)


def cost(case):
    return CASE_BYTES + operation(case.op).bytes_moved(case)


@given(CASES, st.integers(1, 12))
def test_every_case_is_dealt_once_in_the_sweeps_order(cases, parts):
    found = deal(cases, parts)
    assert len(found) == parts
    assert sorted(map(cases.index, (case for part in found for case in part))) == list(range(len(cases)))
    assert all([*part] == sorted(part, key=cases.index) for part in found)
    assert deal(cases, parts) == found


@given(CASES, st.integers(1, 12))
def test_parts_differ_by_at_most_the_largest_case(cases, parts):
    work = [sum(map(cost, part)) for part in deal(cases, parts)]
    assert max(work) - min(work) <= max(map(cost, cases), default=0)


def test_a_shard_without_cases_is_refused():
    cases = [Case(8, N, "fp32", Direction.FORWARD) for N in (1, 2)]
    assert [of_shard(cases, Shard(number, 2)) for number in (1, 2)] == [(cases[1],), (cases[0],)]
    with pytest.raises(UsageError, match="--shard 3/3: the sweep has 2 cases, so this shard has none; take at most 2"):
        of_shard(cases, Shard(3, 3))


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/2/3", "a/b", "-1/2", "1/100000", "\uff11/\uff12"])
def test_a_wrong_shard_is_refused(text):
    with pytest.raises(UsageError, match="as in 2/8"):
        parse_shard(text)


def test_a_shard_is_read():
    assert parse_shard(" 2/8 ") == (2, 8)
    assert str(Shard(2, 8)) == "2/8"
