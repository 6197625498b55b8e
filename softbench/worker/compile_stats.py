"""What compilers do in this process, so that builds beside it do not matter: whether they ran, how often, and for how long."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

from softbench.kernels.common.cuda_toolkit import cache_folder


class CompilerCounts:
    """Counts from its making on: Inductor's graphs, Triton's kernels, softbench's own CUDA libraries, and quack's kernels."""

    def __init__(self) -> None:
        self.triton_misses = 0
        self._inductor = _inductor()
        self._libraries, self._quack = _libraries(), _quack()
        with suppress(ImportError, AttributeError):  # an older Triton has no listener, and is then never said to be cold
            from triton import knobs

            knobs.compilation.listener = self._listen

    def _listen(self, *, cache_hit: bool, **_: Any) -> None:
        self.triton_misses += not cache_hit

    def state(self) -> str:
        """`cold` when something was compiled, else `cached`. Inductor's Triton kernels count as its own."""
        hits, misses = (now - then for now, then in zip(_inductor(), self._inductor, strict=True))
        if hits or misses:
            return "cold" if misses else "cached"
        return "cold" if self.triton_misses or _libraries() > self._libraries or _quack() > self._quack else "cached"


class Graphs:
    """What torch.compile makes in this process from now on, as Dynamo itself keeps account of it."""

    def __init__(self) -> None:
        if dynamo := sys.modules.get("torch._dynamo.utils"):
            dynamo.clear_compilation_metrics()  # it keeps the latest 64 only, so a count over many cases would stand still
        self._breaks = _graph_breaks()

    def count(self) -> int:
        """Graphs made, forward and backward ones."""
        return len(_compilation_metrics())

    def seconds(self) -> float | None:
        """The time that they took together; None where there are none."""
        made = _compilation_metrics()
        return sum((metric.duration_us or 0) / 1e6 for metric in made) if made else None

    def breaks(self) -> int | None:
        """Graph breaks: places at which a part of the function was left to Python; None where nothing was compiled."""
        return max(0, _graph_breaks() - self._breaks) if self.count() else None


def _compilation_metrics() -> list[Any]:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return list(dynamo.get_compilation_metrics()) if dynamo else []


def _graph_breaks() -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return sum(dynamo.counters["graph_break"].values()) if dynamo else 0


def _inductor() -> tuple[int, int]:
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        counts = dynamo.counters["inductor"]
        return counts["fxgraph_cache_hit"], counts["fxgraph_cache_miss"] + counts["fxgraph_cache_bypass"]
    return 0, 0


def _libraries() -> int:
    with suppress(OSError):  # this user may not read the folder
        return sum(1 for _ in cache_folder().glob("*/*.so"))
    return 0


def _quack() -> int:
    """How often quack's softmax called its compiler: a kernel found in its cache on disk is no miss."""
    with suppress(AttributeError):  # not imported, or another version of it
        quack: Any = sys.modules.get("quack.softmax")
        return sum(kernel.compile.cache_info().misses for kernel in (quack.Softmax, quack.SoftmaxBackward))
    return 0
