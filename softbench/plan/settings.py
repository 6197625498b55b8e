"""The settings of a run: defaults, then the configuration, then `--quick`, then flags; later ones win."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypedDict, cast

from softbench.core.case import Direction
from softbench.core.errors import UsageError
from softbench.core.json import JsonObject
from softbench.plan.sweep import DEFAULTS, LAST, Given, Sweep, thinned

PHASES = {"import": 60.0, "build": 300.0, "check": 120.0, "time": 120.0}
"""The phases of a cell and their default deadlines in seconds."""
WORKER = "worker"
"""The setting `judge` of a run without the judge's process."""
QUICK_SHAPES = 6
"""The largest number of N in a `--quick` run without `--N`."""


class Axes(TypedDict, total=False):
    """Axes that flags set for every sweep."""

    M: tuple[int, ...]
    N: tuple[int, ...]
    dtype: tuple[str, ...]
    direction: tuple[Direction, ...]
    op: tuple[str, ...]
    shape: tuple[str, ...]
    dim: tuple[int, ...]
    set: tuple[Given, ...]


class Layer(Axes, total=False):
    """Some fields of Settings, from one source. Flags may also set axes."""

    sweep: tuple[Sweep, ...]
    backends: tuple[str, ...] | None
    plugins: tuple[Path, ...]
    device: str
    threads: int
    rounds: int
    max_rounds: int
    precision: float
    tick_us: float
    processes: int
    seed: int
    relative_to: str
    warmup_ms: float
    batch_ms: float
    timer: str
    l2: str
    profile: str
    judge: str
    yardstick: bool
    memory_share: float
    timeout: dict[str, float]


QUICK: Layer = {"rounds": 3, "max_rounds": 3, "batch_ms": 5.0}
"""What `--quick` sets."""
AXES = ("M", "N", "dtype", "direction", "op", "set", "shape", "dim")


@dataclass(frozen=True, slots=True)
class Settings:
    """One run, fully described. The field docs are the text of docs/configuration.md."""

    sweep: tuple[Sweep, ...] = ()
    """Tables with M and N, or shape and dim, and with dtype, direction, op (the operation) and set (its parameters)."""
    backends: tuple[str, ...] | None = None
    """Names or patterns of backends; without this key all but the extras."""
    plugins: tuple[Path, ...] = ()
    """Plugins: each is `FILE`, `FILE:FUNCTION` or `MODULE:FUNCTION`. `NAME=` in front renames the backend."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:K`."""
    threads: int | None = None
    """CPU threads of torch in each worker; without this key torch's own number. Only on the CPU."""
    rounds: int = 3
    """Minimum number of rounds."""
    max_rounds: int = 10
    """Maximum number of rounds. A backend stops earlier when it reaches the precision. If only `rounds` is given, it is `rounds`."""
    precision: float = 0.005
    """Target precision: the 95 % interval of the median lies within this fraction of the median. 0 is never reached."""
    tick_us: float = 0.032
    """The precision is also reached if the interval lies within this many microseconds of the median; CUDA events have a tick of 32 ns."""
    processes: int = 1
    """Process sets: fresh workers that each measure the whole sweep."""
    seed: int = 0
    """Seed of the inputs."""
    relative_to: str = "torch"
    """The reference backend of the speed-ups."""
    warmup_ms: float = 2.0
    """Milliseconds of untimed calls before each batch."""
    batch_ms: float = 10.0
    """Milliseconds of timed calls per batch."""
    timer: str = "do_bench"
    """The timer of the median on a GPU: `do_bench`, `device`, `graph` or `host`."""
    l2: str = "cold"
    """`cold` flushes the GPU's L2 before every timed call; `warm` does not."""
    profile: str = "on"
    """`on` measures device and host time of a call after the rounds; `off` saves that time."""
    judge: str = WORKER
    """`separate` also judges each cell in a process that its backend cannot reach, as `softbench judge`; `worker` does not."""
    yardstick: bool = True
    """Measure the yardstick too. A run always does; an A/B run does not need it."""
    memory_share: float = 0.9
    """The fraction of the free device memory that all workers may hold together."""
    timeout: dict[str, float] = field(default_factory=lambda: dict(PHASES))
    """Deadline of each phase in seconds."""

    def measuring(self) -> dict[str, object]:
        """The settings that affect a measurement. A resumed run must have the same ones."""
        keys = ("rounds", "max_rounds", "precision", "tick_us", "processes", "seed", "warmup_ms", "batch_ms", "timer", "l2", "profile")
        judged = ("judge",) if self.judge != WORKER else ()  # older runs have no such setting
        return {key: value for key, value in asdict(self).items() if key in ("threads", *keys, *judged)}

    @classmethod
    def from_sources(cls, config: Layer, flags: Layer, *, quick: bool = False) -> Settings:
        """Settings from a configuration and flags. Axes given as flags replace those of every sweep.

        Raises:
            UsageError: settings contradict each other.
        """
        axes = cast(Axes, {key: value for key, value in flags.items() if key in AXES})
        sweeps = [with_axes(sweep, axes) for sweep in config.get("sweep", ())]
        if quick and "N" not in axes:
            sweeps = [replace(sweep, N=thinned(sweep.N, QUICK_SHAPES)) for sweep in sweeps]
        others: Layer = {**config, **(QUICK if quick else {}), **flags}
        merged: JsonObject = {key: value for key, value in others.items() if key not in AXES} | {
            "sweep": tuple(sweeps),
            "timeout": {**PHASES, **config.get("timeout", {}), **flags.get("timeout", {})},
            "plugins": tuple(dict.fromkeys((*config.get("plugins", ()), *flags.get("plugins", ())))),
        }
        settings = cls(**merged)
        if settings.max_rounds < settings.rounds:
            raise UsageError(
                f"max_rounds: {settings.max_rounds} is less than the {settings.rounds} that are always taken; lower rounds too"
            )
        return settings


def with_axes(sweep: Sweep, axes: Axes) -> Sweep:
    """A sweep with other axes. A shape replaces M and N, and these replace a shape. An operation replaces the parameters too.

    Raises:
        UsageError: M or N is missing, or dim has no shape.
    """
    if "shape" in axes:
        sweep = replace(sweep, M=(), N=(), shape=axes["shape"])
    elif sweep.shape and ("M" in axes or "N" in axes):
        if missing := [name for name in ("M", "N") if name not in axes]:
            raise UsageError(f"--{missing[0]} is missing: the sweep has shapes, which --M and --N replace together")
        sweep = replace(sweep, shape=(), dim=(LAST,))
    if "op" in axes:
        sweep = replace(sweep, set=DEFAULTS)
    if "dim" in axes and not sweep.shape:
        raise UsageError("--dim is a dimension of --shape; without a shape the rows are along N")
    return replace(sweep, **axes)


def with_fixed_rounds(layer: Layer) -> Layer:
    """A layer with `rounds` and without `max_rounds` fixes the number of rounds."""
    return {"max_rounds": layer["rounds"], **layer} if "rounds" in layer else layer
