"""Parts the processors of a host among its cards: by NUMA node, and hardware threads of one core stay together."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from softbench.core.errors import UsageError
from softbench.core.machine import numa_node

CPUS, NODES = Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node")


def parted(nodes: Sequence[int | None]) -> list[frozenset[int]]:
    """The processors for each card, whose NUMA nodes are given (None: unknown), of those that this process may use.

    Raises:
        UsageError: there are more cards than processors.
    """
    usable = os.sched_getaffinity(0)
    by_node = {int(path.name[4:]): _listed(path / "cpulist") & usable for path in NODES.glob("node[0-9]*")}
    siblings = {processor: _listed(CPUS / f"cpu{processor}" / "topology" / "thread_siblings_list") for processor in usable}
    return part(nodes, usable, by_node, siblings)


def of_node(number: int, count: int) -> frozenset[int]:
    """The processors for this process's GPU, if the `count` GPUs of this node all measure; empty if they cannot be parted.

    Every card of a node parts them alike and takes its own share. `number` is the card's place among them. It may not be that of its GPU,
    which CUDA_VISIBLE_DEVICES names. Without that, NUMA nodes cannot be told apart, and a host with several is not parted.
    """
    gpus, visible = _gpu_nodes(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if len(gpus) == count and visible.isdecimal() and int(visible) < count:
        number = int(visible)
    elif len(list(NODES.glob("node[0-9]*"))) > 1:
        return frozenset()
    else:
        gpus = [None] * count
    try:
        return parted(gpus)[number]
    except UsageError:  # a worker of Ray may use fewer processors than there are cards
        return frozenset()


def _gpu_nodes() -> list[int | None]:
    """The NUMA node of each GPU of this host (None: unknown), by NVML's index; empty without NVML."""
    found: list[int | None] = []
    with suppress(Exception):  # no driver, or one that lacks a fact
        import pynvml as nvml

        nvml.nvmlInit()
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                found.append(None)
                with suppress(OSError, ValueError):
                    found[-1] = numa_node(nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(index)).busId)
        finally:
            nvml.nvmlShutdown()
    return found


def part(
    nodes: Sequence[int | None], usable: Collection[int], by_node: Mapping[int, Collection[int]], siblings: Mapping[int, Collection[int]]
) -> list[frozenset[int]]:
    """As `parted`, on a machine that is described: the processors of each node, and the hardware threads of each processor's core.

    Each node's processors go to its cards. These get none of another node, as that memory is far. Cards of an unknown node, or of a
    node without processors, share what no node's card has.
    """
    if len(nodes) > len(usable):
        raise UsageError(f"{len(nodes)} cards need a processor each, and this process may use {len(usable)}; name fewer cards")
    known = [node if node is not None and len(by_node.get(node, ())) >= nodes.count(node) else None for node in nodes]
    taken = {processor for node in known if node is not None for processor in by_node[node]}
    others = [processor for processor in sorted(usable) if processor not in taken]
    if known.count(None) > len(others):
        known, others = [None] * len(nodes), sorted(usable)
    found: list[frozenset[int]] = [frozenset()] * len(nodes)
    for node in dict.fromkeys(known):
        cards = [i for i, one in enumerate(known) if one == node]
        shares = _shares(others if node is None else sorted(by_node[node]), len(cards), siblings)
        for card, share in zip(cards, shares, strict=True):
            found[card] = share
    return found


def _shares(processors: Sequence[int], count: int, siblings: Mapping[int, Collection[int]]) -> list[frozenset[int]]:
    """The processors in `count` shares of about equal size; cores are whole if there are enough of them."""
    there = set(processors)
    cores = list(dict.fromkeys(tuple(sorted(there & {processor, *siblings.get(processor, ())})) for processor in processors))
    if len(cores) < count:
        cores = [(processor,) for processor in processors]
    bounds = [len(cores) * i // count for i in range(count + 1)]
    return [frozenset(one for core in cores[low:high] for one in core) for low, high in pairwise(bounds)]


def _listed(file: Path) -> set[int]:
    """The numbers of a list of Linux, such as `0-3,8`; none if it cannot be read."""
    found: set[int] = set()
    with suppress(OSError, ValueError):
        for text in filter(None, file.read_text().strip().split(",")):
            first, _, last = text.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found
