"""How the families of a language make plans for a shape, and how they are launched."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton

from ..common.cuda_library import architecture_of
from ..cuda import build, launch
from ..plans.table import PASSES, Family
from ..triton import dispatch, losses
from ..triton.devices import device_traits
from ..triton.launch_plan import VECTOR_BYTES, Plan, Problem
from ..triton.loss_plans import as_fused, fused_plan, is_short
from ..triton.planner import choose, make_plan
from ..triton.stable_key import with_stable_key
from .shapes import FAMILIES, Shape, draw

DTYPES = {2: torch.bfloat16, 4: torch.float32}
"""By the bytes of an element."""
Operands = tuple[torch.Tensor, ...]
Call = Callable[[], object]
Plans = dict[Any, list[Family]]
"""The plans that families make for a shape, and the families of each."""


class Cuda:
    """The kernels in CUDA C++. `each`: so many shapes have one length. `seed`: of the shapes."""

    name, each = "cuda", 1

    def __init__(self, seed: str) -> None:
        self.seed = seed

    def key(self) -> str:
        """Changes with the kernels."""
        return build.build(architecture_of(torch.cuda.get_device_capability())).parent.name

    def ready(self, number: int) -> bool:
        """Whether the shape with this number can be timed at once. It begins to prepare this one and later ones."""
        return True

    def close(self) -> None:
        """Ends what the language started."""

    def plans(self, shape: Shape) -> Plans:
        """The plans of all families that make one."""
        library, found = launch._library("softmax", torch.cuda.current_device()), Plans()
        for family in FAMILIES[self.name]:
            plan, numbers = launch.Plan(-1), (ctypes.c_int * 5)(*launch.family_numbers(family))
            if library.softbench_candidate(PASSES.index(shape.which), shape.size == 2, shape.M, shape.N, numbers, ctypes.addressof(plan)):
                found.setdefault(tuple(getattr(plan, name) for name, *_ in plan._fields_), []).append(family)
        return found

    def makes(self, shape: Shape) -> dict[Family, int]:
        """The families that make a plan for a shape, and its threads."""
        return {family: launch.Plan(*plan).threads for plan, families in self.plans(shape).items() for family in families}

    def calls(self, shape: Shape, plans: Sequence[Any], sets: Sequence[Operands]) -> list[list[Call]]:
        """For each plan a launch on each of several operands. None: of the plan that is used now. No calls: this card does not take it."""
        run: Any = launch.launch_backward if shape.reads == 2 else launch.launch_forward
        given = (None if plan is None else launch.Plan(*plan) for plan in plans)
        return [[functools.partial(run, *operands, plan=plan) for operands in sets] for plan in given]


class Triton:
    """The kernels in Triton, as `Cuda`. Several processes compile them."""

    name, each = "triton", 3

    def __init__(self, seed: str, processes: int | None = None) -> None:
        self.seed = seed
        self.pool = ProcessPoolExecutor(processes or max(1, len(os.sched_getaffinity(0)) - 2), get_context("spawn"))
        self.threads = ThreadPoolExecutor()  # loading waits for the driver, which other processes of the host use too
        self.compiled: dict[Hashable, Future[None]] = {}
        self.expected = 0

    def key(self) -> str:
        """Of the sources beside the planner, and of their compiler."""
        sources = sorted(Path(make_plan.__code__.co_filename).parent.glob("*.py"))
        return hashlib.sha256(b"".join([triton.__version__.encode(), *map(Path.read_bytes, sources)])).hexdigest()[:16]

    def close(self) -> None:
        for pool in (self.threads, self.pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def ready(self, number: int) -> bool:
        self.expected = max(self.expected, number) + 1  # further ahead each time: compiling takes longer than timing
        found, _ = (self._compile(draw(one, self.name, self.each, self.seed)) for one in (number, self.expected))
        return all(compiled.done() for compiled in found)

    def plans(self, shape: Shape) -> Plans:
        for compiled in self._compile(shape):
            compiled.exception()  # waits
        return _plans(shape)

    def makes(self, shape: Shape) -> dict[Family, int]:
        return {family: plan.threads for plan, families in _plans(shape).items() for family in families}

    def calls(self, shape: Shape, plans: Sequence[Any], sets: Sequence[Operands]) -> list[list[Call]]:
        return list(self.threads.map(functools.partial(self._calls, shape, sets), plans))

    def _calls(self, shape: Shape, sets: Sequence[Operands], plan: Any) -> list[Call]:
        ready, arguments = _ready(shape, _problem(shape), plan or _now(shape))
        if shape.which == "fused":
            target, loss = (torch.zeros(shape.M, dtype=dtype, device="cuda") for dtype in (torch.int64, torch.float32))
            every: list[tuple[Any, ...]] = [(x, target, dx, loss, None) for x, dx in sets]
        else:
            every = [ready.operands(given) for given in sets]
        try:
            compiled = with_stable_key(ready.kernel)[(ready.programs,)](*every[0], *arguments, **ready.options)
            run = dispatch._compiled_launch(compiled, ready, sets[0])
        except Exception as error:  # this card or compiler does not take the plan
            print(f"softbench: tune: {plan} of {shape}: {error}", file=sys.stderr)
            return []
        # The operands live as long as the launch.
        addresses = [([None if one is None else one.data_ptr() for one in operands], operands) for operands in every]
        return [lambda given=given: run(*given[0], *arguments) for given in addresses]  # type: ignore[misc]

    def _compile(self, shape: Shape) -> list[Future[None]]:
        """What compiles the plans of a shape, each kernel once."""
        problem, plans, found = _problem(shape), _plans(shape), []
        for plan in (*plans, _now(shape)) if plans else ():
            ready, arguments = _ready(shape, problem, plan)
            parameters = ready.kernel.params[-len(arguments) :]
            known = [one for of, one in zip(parameters, arguments, strict=True) if of.is_constexpr]
            # Triton compiles the generic kernels again if 16 divides N, or for N = 1.
            kind = (shape.N == 1, shape.N % 16 == 0) if plan.tier in ("tile", "loop") else ()
            key = ready.kernel.__name__, shape.which, shape.size, *known, *kind, *ready.options.items()
            if key not in self.compiled:
                self.compiled[key] = self.pool.submit(_compile, shape, problem, plan)
            found.append(self.compiled[key])
        return found


Language = Cuda | Triton


def _problem(shape: Shape) -> Problem:
    traits = device_traits(torch.device("cuda", torch.cuda.current_device()))[1:]
    wide, alignment = shape.which == "widened", min(VECTOR_BYTES, shape.row_bytes & -shape.row_bytes)
    return Problem(shape.reads == 2, shape.M, shape.N, shape.size, alignment, True, *traits, contiguous=not wide, wide=wide)


def _plans(shape: Shape) -> Plans:
    problem, found = _problem(shape), Plans()
    fused = shape.which == "fused"
    if fused and is_short(problem):  # a kernel of its own, without plans
        return found
    for family in FAMILIES[Triton.name]:
        plan = make_plan(problem, family)
        if plan and (plan := as_fused(problem, plan) if fused else plan):
            found.setdefault(plan, []).append(family)
    return found


def _now(shape: Shape) -> Plan:
    """The plan that is used now."""
    card = device_traits(torch.device("cuda", torch.cuda.current_device()))[0]
    problem = _problem(shape)
    return (fused_plan(problem, card) if shape.which == "fused" else None) or choose(problem, card)


def _ready(shape: Shape, problem: Problem, plan: Plan) -> tuple[Any, tuple[Any, ...]]:
    """A launch, and its arguments behind the operands and the scratch memory."""
    if shape.which == "fused":
        ready = losses._fused(problem, plan, (shape.N, shape.N), losses.Options())
        return ready, (*(None,) * ready.places, *ready.arguments)
    of_softmax = dispatch.prepare_launch(problem, plan, (SimpleNamespace(stride=lambda _: shape.N),) * (shape.reads + 1))  # type: ignore[arg-type]
    return of_softmax, (*of_softmax.arguments, None)


def _compile(shape: Shape, problem: Problem, plan: Plan) -> None:
    """Compiles a plan's kernel, which Triton's cache on disk keeps."""
    ready, arguments = _ready(shape, problem, plan)
    read, written = DTYPES[shape.size], DTYPES[shape.written_size]
    if shape.which == "fused":
        operands: tuple[Any, ...] = read, torch.int64, written, torch.float32, None
    else:
        operands = *(read,) * shape.reads, written, *(torch.int64,) * (2 if ready.slots else 0)
    with_stable_key(ready.kernel).warmup(*operands, *arguments, grid=(1,), **ready.options)
