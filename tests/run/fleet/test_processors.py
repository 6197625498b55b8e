"""The processors of a host are parted among its cards."""

import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from softbench.core.errors import UsageError
from softbench.run.fleet import processors
from softbench.run.fleet.processors import of_node, part, parted

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


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node of a cluster: its usable processors, the NUMA node of each GPU, and what Ray lets a card see."""

    def made(usable, gpus, visible, numa_nodes=2):
        for number in range(numa_nodes):
            (tmp_path / f"node{number}").mkdir()
            (tmp_path / f"node{number}" / "cpulist").write_text(f"{4 * number}-{4 * number + 3}\n")
        monkeypatch.setattr(processors, "NODES", tmp_path)
        monkeypatch.setattr(processors, "CPUS", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(usable))
        nvml = SimpleNamespace(
            nvmlInit=lambda: None,
            nvmlShutdown=lambda: None,
            nvmlDeviceGetCount=lambda: len(gpus),
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetPciInfo=lambda index: SimpleNamespace(busId=index),
        )
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(processors, "numa_node", gpus.__getitem__)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return made


@pytest.mark.parametrize(("visible", "expected"), [("0", {4, 5}), ("1", {0, 1, 2, 3}), ("2", {6, 7})])
def test_a_card_of_ray_has_the_processors_near_its_gpu(node, visible, expected):
    """The place of an actor is not that of the GPU that Ray gave it."""
    node(range(8), [1, 0, 1], visible)
    assert of_node(0, 3) == expected


def test_a_node_whose_gpus_are_unknown_is_parted_by_place(node):
    node(range(8), [], "GPU-0123", numa_nodes=1)
    assert [of_node(number, 2) for number in range(2)] == [{0, 1, 2, 3}, {4, 5, 6, 7}]


def test_a_node_that_cannot_be_parted_stays_whole(node):
    node(range(8), [0, 0, 1, 1], "2")  # Ray has two of the four GPUs
    assert of_node(1, 2) == frozenset()


def test_fewer_processors_than_cards_stay_whole(node):
    node([3], [0, 0], "1")
    assert of_node(1, 2) == frozenset()
