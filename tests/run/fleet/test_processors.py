"""The processors of a host are parted among its cards."""

import os

import pytest
from hypothesis import given, strategies as st

from softbench.core.errors import UsageError
from softbench.run.fleet.processors import part, parted

TWO_NODES = {0: range(4), 1: range(4, 8)}


def test_processors_go_to_the_cards_of_their_node():
    assert part([1, 0], range(8), TWO_NODES, {}) == [frozenset(range(4, 8)), frozenset(range(4))]
    assert part([0, 0, 1], range(8), TWO_NODES, {}) == [{0, 1}, {2, 3}, {4, 5, 6, 7}]


def test_cards_of_unknown_nodes_share_all_processors():
    assert part([None, None], range(8), {}, {}) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert part([0, None], range(8), TWO_NODES, {}) == [{0, 1, 2, 3}, {4, 5, 6, 7}]
    assert part([0, None], range(4), {0: range(4)}, {}) == [{0, 1}, {2, 3}]  # no other processors are left for the second


def test_threads_of_a_core_stay_together():
    """Linux numbers the second thread of core i as i + 4."""
    siblings = {i: {i % 4, i % 4 + 4} for i in range(8)}
    assert part([None, None], range(8), {}, siblings) == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert part([None] * 8, range(8), {}, siblings) == [{i} for i in range(8)]  # fewer cores than cards


def test_more_cards_than_processors_are_refused():
    with pytest.raises(UsageError, match="3 cards need a processor each, and this process may use 2"):
        part([None] * 3, range(2), {}, {})


@given(st.data())
def test_shares_are_disjoint_and_not_empty(data):
    usable = data.draw(st.sets(st.integers(0, 31), min_size=1))
    by_node = {node: {one for one in usable if one // 8 == node} for node in range(4)}
    siblings = {one: {one, one ^ 1} for one in range(32)}
    nodes = data.draw(st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=1, max_size=len(usable)))
    found = part(nodes, usable, by_node, siblings)
    assert all(found) and len(found) == len(nodes)
    assert sum(map(len, found)) == len(frozenset().union(*found)) and frozenset().union(*found) <= usable


def test_this_machine_is_parted():
    assert parted([None]) == [frozenset(os.sched_getaffinity(0))]
