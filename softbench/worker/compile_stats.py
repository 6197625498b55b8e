"""Counts and times the compilations of this process. Builds of other processes do not count."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from softbench.core.toolchain import FRESH_CACHES
from softbench.kernels.common.cuda_toolkit import READ_CACHE, cache_folder

if TYPE_CHECKING:
    from torch._dynamo.utils import CompilationMetrics


class CompilerCounts:
    """Counts new graphs of Inductor, Triton kernels, softbench's CUDA libraries, and the compilations that a backend itself counts."""

    def __init__(self, compilations: Callable[[], int] = lambda: 0) -> None:
        """`compilations` is the trait of that name."""
        self.triton_misses = 0
        self._inductor = _inductor()
        self._own = compilations
        self._libraries, self._before = _libraries(), compilations()
        with suppress(ImportError, AttributeError):  # an older Triton has no listener: its builds count as cached
            from triton import knobs

            knobs.compilation.listener = self._listen

    def _listen(self, *, cache_hit: bool, **_: object) -> None:
        self.triton_misses += not cache_hit

    def state(self) -> str:
        """`cold` if something was compiled, else `cached`. Triton kernels of Inductor count as Inductor's."""
        hits, misses = (now - then for now, then in zip(_inductor(), self._inductor, strict=True))
        if hits or misses:
            return "cold" if misses else "cached"
        return "cold" if self.triton_misses or _libraries() > self._libraries or self._own() > self._before else "cached"


class Graphs:
    """Counts the graphs that torch.compile makes in this process from now on. Dynamo keeps the metrics."""

    def __init__(self) -> None:
        if dynamo := sys.modules.get("torch._dynamo.utils"):
            dynamo.clear_compilation_metrics()  # it keeps the latest 64 only, so without this the count would stop at 64
        self._breaks = _graph_breaks()

    def count(self) -> int:
        """The number of graphs, forward and backward."""
        return len(_compilation_metrics())

    def seconds(self) -> float | None:
        """The seconds of all compilations together; None if there are none."""
        made = _compilation_metrics()
        return sum((metric.duration_us or 0) / 1e6 for metric in made) if made else None

    def breaks(self) -> int | None:
        """The number of places where a part of the function was left to Python; None if nothing was compiled."""
        return max(0, _graph_breaks() - self._breaks) if self.count() else None


def _compilation_metrics() -> list[CompilationMetrics]:
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
    """The number of built CUDA libraries, or of all files of this worker's fresh caches."""
    if folder := os.environ.get(FRESH_CACHES):
        return sum(len(files) for *_, files in os.walk(folder))
    with suppress(OSError):  # this user may not read the folder
        return sum(1 for _ in cache_folder().glob("*/*.so"))
    return 0


def built_libraries() -> tuple[dict[str, str], list[str]]:
    """Variables with which another process finds the built CUDA libraries, and the files that it must read.

    Links are left out, as they may lead anywhere.
    """
    with suppress(OSError):  # this user may not read the folder
        folder = cache_folder()
        files = sorted(file for file in folder.glob("cuda-sm_*/*.so") if file.is_file() and file.resolve().is_relative_to(folder.resolve()))
        return {READ_CACHE: str(folder)}, [str(file) for file in files]
    return {}, []
