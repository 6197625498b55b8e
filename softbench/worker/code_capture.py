"""Captures the code that compilers generate for one case of a backend: Inductor's modules, Triton's stages, and launched kernels.

Inductor passes each module that it writes to a hook for tests, `GraphLowering.save_output_code`. Each Triton kernel becomes a
`CompiledKernel`. Caches of whole graphs are off, because a cached graph passes through neither.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import torch

from softbench.core.case import Case
from softbench.core.inspection import LANGUAGES, NAME_CHARACTERS, Artifact, Inspection, Launch
from softbench.core.json import JsonObject
from softbench.core.text import count, one_line, size
from softbench.ops.registry import operation
from softbench.plugins.backend import Backend, Generated
from softbench.plugins.traits import generated
from softbench.worker import callables
from softbench.worker.checking import any_dim
from softbench.worker.compile_stats import Graphs
from softbench.worker.timing import timers

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

INDUCTOR_KERNEL = re.compile(r"^(\w+) = async_compile\.(triton|cpp_pybinding|cpp)\(", re.MULTILINE)
INDUCTOR_CPP = re.compile(r"async_compile\.cpp(?:_pybinding)?\(.*?r?'''(.*?)'''", re.DOTALL)
WORD = 4  # bytes; Triton counts spills in registers
INDUCTOR_TRITON = re.compile(r"^(\w+) = async_compile\.triton\(.*?r?'''(.*?)'''", re.MULTILINE | re.DOTALL)
STAGES = ("ttir", "ttgir", "llir", "ptx", "sass")


@dataclass(slots=True)
class Seen:
    """The code that compilers generated during a capture."""

    modules: list[str] = field(default_factory=list)
    """Inductor's Python: one module for each graph."""
    counts: list[list[int]] = field(default_factory=list)
    """The bytes that each scheduled node of each graph reads and writes, by Inductor's count."""
    kernels: list[CompiledKernel] = field(default_factory=list)
    """Triton's compiled kernels, in the order of compilation."""


def inspect(backend: Backend, case: Case, seed: int) -> Inspection:
    """Build one case, and collect its generated code and its launches. Exceptions of the backend pass through."""
    with watched() as seen:
        graphs = Graphs()
        given = any_dim.make(case, seed, torch.device(case.device))
        prepared = callables.prepared(backend, case)

        def call() -> None:
            prepared(*given)

        call()
        timers.synchronize(case.device)
        launches = traced(call) if case.device == "cuda" else []
    artifacts = _inductor(seen)
    launches, triton = _triton(seen, launches)
    named = {artifact.name for artifact in artifacts}
    artifacts += [artifact for artifact in triton if artifact.name not in named]
    if own_code := generated(backend):
        more, spills = _pieces(own_code(case, [launch.name for launch in launches]))
        artifacts += more
        launches = [replace(launch, spilled_bytes=spills.get(launch.name, launch.spilled_bytes)) for launch in launches]
    launches = _with_bytes(launches, seen, case)
    return Inspection(tuple(_facts(backend, case, seen, graphs, launches, artifacts)), tuple(launches), tuple(artifacts))


def _pieces(answer: Generated) -> tuple[list[Artifact], dict[str, int]]:
    """The answer of a backend's `generated`: pieces of code, and spilled bytes by kernel.

    Raises:
        TypeError: the answer has another form.
    """
    try:
        pieces, spills = answer
        return [Artifact(*map(str, piece)) for piece in pieces], {str(name): int(spilled) for name, spilled in dict(spills).items()}
    except (TypeError, ValueError):
        shown = one_line(repr(answer), 40)
        raise TypeError(f"generated() returned {shown}, not ([(name, kind, language, text), ...], {{kernel: bytes spilled}})") from None


@contextmanager
def watched() -> Iterator[Seen]:
    """Record the modules of Inductor and the kernels of Triton."""
    import torch._functorch.config as functorch
    import torch._inductor.config as config
    from torch._inductor.graph import GraphLowering

    seen = Seen()
    to_module = GraphLowering.compile_to_module

    def counting(graph: GraphLowering, *arguments: object, **named: object) -> object:
        module = to_module(graph, *arguments, **named)
        with suppress(Exception):  # another version may count in another way; then a count is missing
            seen.counts.append([node.get_read_write_buffers_sizes() for node in graph.scheduler.nodes])
        return module

    # The static launcher runs a cubin without Triton's own object. When it is off, Triton's runtime launches.
    options: dict[str, object] = {name: False for name in ("use_static_cuda_launcher",) if hasattr(config, name)}
    with (
        config.patch({"fx_graph_cache": False, "fx_graph_remote_cache": False, **options}),
        functorch.patch({"enable_autograd_cache": False}),
        mock.patch.object(GraphLowering, "save_output_code", seen.modules.append),
        mock.patch.object(GraphLowering, "compile_to_module", counting),
        _triton_watched(seen.kernels),
    ):
        yield seen


@contextmanager
def _triton_watched(kernels: list[CompiledKernel]) -> Iterator[None]:
    try:
        from triton.compiler import CompiledKernel
    except ImportError:
        yield
        return
    make = CompiledKernel.__init__

    def making(kernel: CompiledKernel, *arguments: object, **named: object) -> None:
        make(kernel, *arguments, **named)
        kernels.append(kernel)

    with mock.patch.object(CompiledKernel, "__init__", making):
        yield


def traced(call: Callable[[], None]) -> list[Launch]:
    """The kernels of one call, in order, as CUPTI reports them to torch's profiler."""
    for _ in range(2):  # the first session only starts CUPTI; events may be missing from it
        with tempfile.TemporaryDirectory(prefix="softbench-") as folder:
            file = Path(folder) / "trace.json"
            torch.cuda.synchronize()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as session:
                call()
                torch.cuda.synchronize()
            session.export_chrome_trace(str(file))
            events = json.loads(file.read_text(errors="replace")).get("traceEvents", [])
    return launches_of(events)


def launches_of(events: list[JsonObject]) -> list[Launch]:
    """The kernels, copies and fills among a trace's events, in order of time."""
    found = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    launches = []
    for event in sorted(found, key=lambda event: event.get("ts", 0)):
        about = event.get("args", {})
        shared = about.get("shared memory")
        launches.append(
            Launch(
                one_line(str(event.get("name", "")), NAME_CHARACTERS),
                tuple(int(extent) for extent in about.get("grid", ())),
                tuple(int(extent) for extent in about.get("block", ())),
                registers=_number(about.get("registers per thread")),
                shared_bytes=_number(shared),
                moved_bytes=_number(about.get("bytes")),
                counted_by="CUDA" if "bytes" in about else "",
            )
        )
    return launches


def _number(value: str | float | None) -> int | None:
    with suppress(TypeError, ValueError):
        return None if value is None else int(value)
    return None


def _inductor(seen: Seen) -> list[Artifact]:
    """Inductor's modules, and the C++ and Triton kernels that they contain as text."""
    found = []
    for number, module in enumerate(seen.modules):
        found.append(Artifact(f"inductor-{number}.py", "wrapper", "python", module))
        for piece, code in enumerate(INDUCTOR_CPP.findall(module)):
            found.append(Artifact(f"inductor-{number}-{piece}.cpp", "source", "cpp", code.strip() + "\n"))
        for name, code in INDUCTOR_TRITON.findall(module):
            found.append(Artifact(f"{name}.py", "source", "python", code.strip() + "\n"))
    return found


def _triton(seen: Seen, launches: list[Launch]) -> tuple[list[Launch], list[Artifact]]:
    """The launches with the registers and spills of their Triton kernels, and the stages of these kernels."""
    artifacts: dict[str, Artifact] = {}
    complete: list[Launch] = []
    for launch in launches:
        kernel = _chosen(seen.kernels, launch)
        if kernel is not None:
            with suppress(Exception):  # it is loaded already, unless another launcher ran it
                kernel._init_handles()
            spills = getattr(kernel, "n_spills", None)
            spills = None if spills is None else spills * WORD
            known = launch.registers if launch.registers is not None else getattr(kernel, "n_regs", None)
            launch = replace(launch, registers=known, spilled_bytes=spills, shared_bytes=_shared(kernel, launch))
            for artifact in _stages(kernel):
                artifacts.setdefault(artifact.name, artifact)
        complete.append(launch)
    return complete, list(artifacts.values())


def _shared(kernel: CompiledKernel, launch: Launch) -> int | None:
    """Static and dynamic shared memory as CUPTI counts them, or else as Triton does."""
    return launch.shared_bytes if launch.shared_bytes is not None else getattr(kernel.metadata, "shared", None)


def _chosen(kernels: list[CompiledKernel], launch: Launch) -> CompiledKernel | None:
    """The compiled kernel of a launch. Of several with its name, threads and registers decide, then the latest is chosen."""
    named = [kernel for kernel in kernels if kernel.name == launch.name]
    threads = launch.block[0] if launch.block else None
    fitting = [kernel for kernel in named if kernel.metadata.num_warps * 32 == threads]
    alike = [kernel for kernel in fitting if getattr(kernel, "n_regs", None) == launch.registers]
    return next(iter([*alike[::-1], *fitting[::-1], *named[::-1]]), None)


def _stages(kernel: CompiledKernel) -> Iterator[Artifact]:
    source = getattr(getattr(kernel.src, "fn", None), "raw_src", None) or getattr(getattr(kernel.src, "fn", None), "src", None)
    if source:
        text = "".join(source) if isinstance(source, list) else str(source)
        yield Artifact(f"{kernel.name}.py", "source", "python", text)
    for stage in STAGES:
        with suppress(Exception):  # this Triton may lack a stage, or its disassembler may be missing
            text = kernel.asm[stage]
            if isinstance(text, str) and text.strip():
                yield Artifact(f"{kernel.name}.{stage}", stage, LANGUAGES[stage], text)


def _with_bytes(launches: list[Launch], seen: Seen, case: Case) -> list[Launch]:
    """The launches with the bytes they move. Inductor counts its own kernels; the only kernel of a call gets the algorithmic bytes."""
    counted: dict[str, int] = {}
    for module, counts in zip(seen.modules, seen.counts, strict=False):
        names = [name for name, _ in INDUCTOR_KERNEL.findall(module)]
        if len(names) == len(counts):
            counted |= dict(zip(names, counts, strict=True))
    if len(launches) == 1 and launches[0].name not in counted:
        return [replace(launches[0], moved_bytes=operation(case.op).bytes_moved(case), counted_by="algorithmic")]
    known = [(launch, counted.get(launch.name)) for launch in launches]
    return [launch if moved is None else replace(launch, moved_bytes=moved, counted_by="Inductor") for launch, moved in known]


def _facts(
    backend: Backend, case: Case, seen: Seen, graphs: Graphs, launches: list[Launch], artifacts: list[Artifact]
) -> Iterator[tuple[str, str]]:
    yield "backend", f"{backend.name}, {case.key} on {torch.cuda.get_device_name() if case.device == 'cuda' else 'the CPU'}"
    yield "algorithmic bytes", f"{operation(case.op).bytes_moved(case)} ({size(operation(case.op).bytes_moved(case))})"
    if seen.counts:
        moved = sum(sum(counts) for counts in seen.counts)
        yield "bytes by Inductor", f"{moved} ({size(moved)}) in {count(sum(map(len, seen.counts)), 'kernel')} of all its graphs"
    if graphs.count():
        yield "torch.compile", f"{count(graphs.count(), 'graph')}, {count(graphs.breaks() or 0, 'graph break')}"
    if case.device == "cuda":
        yield "kernels a call", str(len(launches)) if launches else "none seen; does another profiler hold CUPTI?"
    if not artifacts:
        yield "generated code", "none: what is called was compiled before, in its library"
