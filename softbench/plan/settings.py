"""The settings of a run: defaults, then the configuration, then `--quick`, then flags; later ones win.

`Settings` and `Sweep` declare each setting once. The keys of a configuration, the options of the commands, the keywords in Python, their
readers, the help and docs/configuration.md follow from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from softbench.core.case import TIMERS, Case
from softbench.core.errors import ConfigError, UsageError
from softbench.core.text import unknown
from softbench.ops.registry import operation
from softbench.plan import sweep as sweeps
from softbench.plan.declare import (
    HOW_LONG,
    MEASUREMENTS,
    RARE,
    RUN,
    WHAT,
    Setting,
    declared,
    device,
    number,
    setting,
    strings,
    threads,
    whole,
    word,
)
from softbench.plan.sweep import AXES, DEFAULTS, LAST, Sweep, thinned

PHASES = {"import": 60.0, "build": 300.0, "check": 120.0, "time": 120.0}
"""The phases of a cell and their default deadlines in seconds."""
UNITS = {"s": 1, "m": 60, "h": 3600}
"""Seconds of each unit of a duration."""
WORKER = "worker"
"""The setting `judge` of a run without the judge's process."""
KEPT = "kept"
"""The setting `caches` of a run whose builds may find compiled code."""
QUICK_SHAPES = 6
"""The largest number of N in a `--quick` run without `--N`."""

Layer = dict[str, Any]
"""Some fields of `Settings` and, from flags, of `Sweep`, with valid values from one source."""
QUICK: Layer = {"rounds": 3, "max_rounds": 3, "batch_ms": 5.0}
"""What `--quick` sets."""


def timeouts(value: object, at: str) -> dict[str, float]:
    """Reads a table of deadlines."""
    if not isinstance(value, dict):
        raise UsageError(f"{at}: must be a table of seconds; its keys are {', '.join(PHASES)}")
    for key in value:
        if key not in PHASES:
            raise UsageError(f"{at}: {unknown(key, PHASES, 'phase')}")
    return {key: number(0.001, 1e6)(seconds, f"{at}.{key}") for key, seconds in value.items()}


def parse_timeout(text: str, flag: str = "--timeout") -> dict[str, float]:
    """`30` (every phase) or `import=10,build=600`, in seconds."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        if len(pairs) == 1 and not pairs[0][1]:
            return timeouts(dict.fromkeys(PHASES, float(text)), flag)
        return timeouts({name.strip(): float(seconds) for name, _, seconds in pairs}, flag)
    except ValueError:
        raise UsageError(f"{flag} {text}: write seconds, or phases as in import=10,build=600") from None


def seconds(value: object, at: str) -> float:
    """Reads a duration: a number of seconds, or a text such as `90s`, `10m` and `2h`."""
    text = str(value).strip()
    factor = UNITS.get(text[-1:], 1)
    try:
        return number(0, 1e6)(factor * float(text.removesuffix(text[-1:]) if text[-1:] in UNITS else text), at)
    except ValueError:
        raise UsageError(f"{at}: must be seconds or a duration such as 90s, 10m or 2h, not {value!r}") from None


def backends(value: Any, at: str) -> tuple[str, ...] | None:
    """Reads names or patterns of backends; None for `all`."""
    if isinstance(value, str) and value.strip() == "all":
        return None
    found = strings(list(value) if isinstance(value, tuple) else value, at)
    if kept := [name for name in found if name.startswith("\\!")]:
        raise UsageError(f"{at}: {kept[0]} has a backslash that the shell kept; write '{kept[0][1:]}' in single quotes")
    if alone := [name for name in found if name.removeprefix("!") in ("", "!")]:
        raise UsageError(f"{at}: {alone[0]} stands without a name; write '!torch', in single quotes and without a blank")
    return found


def tables(value: Any, at: str) -> list[Any]:
    """Reads tables: one, or a list of them."""
    if value == []:
        raise ConfigError(f"{at}: is empty; write [[sweep]] and then M = ..., N = ...")
    return value if isinstance(value, list) else [value]


@dataclass(frozen=True, slots=True)
class Settings:
    """One run, fully described."""

    sweep: tuple[Sweep, ...] = setting(
        (), "Tables with M and N, or shape and dim, and with dtype, direction, op (the operation) and set (its parameters).", tables
    )
    backends: tuple[str, ...] | None = setting(
        None,
        "Names or patterns of backends; `!torch` excludes one, wherever it stands. Without this key all but the extras.",
        backends,
        WHAT,
        help="Names or patterns: torch,compile:*. '!torch' (in single quotes) excludes. A run always adds copy.",
        shown="all without extras; check --plugin: its own",
        words="patterns",
        commands=("run", "check"),
    )
    plugins: tuple[Path, ...] = setting(
        (),
        "Plugins: each is `FILE`, `FILE:FUNCTION` or `MODULE:FUNCTION`. `NAME=` in front renames the backend.",
        strings,
        WHAT,
        parse=lambda value, at: tuple(value),
        help="Your kernel: a Python file with backends, or FILE:FUNCTION or MODULE:FUNCTION. Its code runs. NAME=FILE renames its backend. "
        "Repeatable.",
        shown=True,
        kind=list[Path],
        repeats=True,
        metavar="FILE",
    )
    device: str = setting("auto", "`auto`, `cpu`, `cuda` or `cuda:K`.", device, WHAT, kind=str, words=("auto", "cpu", "cuda"))
    threads: int | None = setting(
        None,
        "CPU threads of torch in each worker; without this key torch's own number. Only on the CPU.",
        threads,
        RARE,
        help="CPU threads of torch in each worker, 1 to the number of processors. Only on the CPU.",
        shown="torch's own number",
        kind=int,
        commands=MEASUREMENTS,
        affects=True,
    )
    rounds: int = setting(
        3,
        "Minimum number of rounds.",
        whole(1, 10_000),
        RARE,
        help="Number of rounds; in each, every backend takes one batch.",
        shown="3 to --max-rounds",
        kind=int,
        commands=MEASUREMENTS,
        affects=True,
    )
    max_rounds: int = setting(
        10,
        "Maximum number of rounds. A backend stops earlier when it reaches the precision. If only `rounds` is given, it is `rounds`.",
        whole(1, 10_000),
        RARE,
        help="Maximum rounds if the target precision is not reached.",
        kind=int,
        commands=RUN,
        affects=True,
    )
    precision: float = setting(
        0.005,
        "Target precision: the 95 % interval of the median lies within this fraction of the median. 0 is never reached.",
        number(0, 1),
        RARE,
        help="Target precision: the 95 % interval of the median lies within this fraction of the median.",
        kind=float,
        commands=RUN,
        affects=True,
    )
    tick_us: float = setting(
        0.032,
        "The precision is also reached if the interval lies within this many microseconds of the median; CUDA events have a tick of 32 ns.",
        number(0, 1e6),
        affects=True,
    )
    processes: int = setting(
        1,
        "Process sets: fresh workers that each measure the whole sweep.",
        whole(1, 1_000),
        HOW_LONG,
        kind=int,
        commands=MEASUREMENTS,
        affects=True,
    )
    wait: float = setting(
        0.0,
        "The longest wait, as `90` seconds or as `10m`, until nothing else computes on the device. If something still does, the run ends.",
        seconds,
        HOW_LONG,
        help="Wait until nothing else computes on the device, at most 90 (seconds), 10m or 2h; then exit code 5. Of --devices, each waits.",
        shown="no wait",
        kind=str,
        metavar="DURATION",
        commands=MEASUREMENTS,
    )
    seed: int = setting(0, "Seed of the inputs.", whole(0, 2**31 - 1), RARE, kind=int, affects=True)
    relative_to: str = setting("torch", "The reference backend of the speed-ups.", word, WHAT, kind=str, words="backends", commands=RUN)
    warmup_ms: float = setting(2.0, "Milliseconds of untimed calls before each batch.", number(0, 1e5), affects=True)
    batch_ms: float = setting(10.0, "Milliseconds of timed calls per batch.", number(0.01, 1e5), affects=True)
    timer: str = setting(
        TIMERS[0],
        "The timer of the median on a GPU: `queued`, `do_bench`, `device`, `graph` or `host`.",
        TIMERS,
        RARE,
        help="Timer of the median on a GPU: queued, do_bench, device, graph or host.",
        kind=str,
        commands=RUN,
        affects=True,
    )
    l2: str = setting(
        "cold",
        "`cold` flushes the GPU's L2 before every timed call; `warm` does not.",
        ("cold", "warm"),
        RARE,
        kind=str,
        commands=RUN,
        affects=True,
    )
    profile: str = setting(
        "on",
        "`on` measures device and host time of a call after the rounds; `every` does so in each process set; `off` saves that time.",
        ("on", "every", "off"),
        RARE,
        help="off skips device time and host time, for shorter runs.",
        kind=str,
        commands=RUN,
        affects=True,
    )
    judge: str = setting(
        WORKER,
        "`separate` also judges each cell in a process that its backend cannot reach, as `softbench judge`; `worker` does not.",
        (WORKER, "separate"),
        RARE,
        help="separate also judges each cell in a process that its backend cannot reach; docs/judge.md describes it.",
        kind=str,
        commands=RUN,
        affects=True,
    )
    caches: str = setting(
        KEPT,
        "`empty` gives each worker empty caches of compilers, so that builds take as long as the first ones on a machine; `kept` does not.",
        (KEPT, "empty"),
        affects=True,
    )
    yardstick: bool = True
    """Measure the yardstick too. A run always does; an A/B run does not need it. No source sets this."""
    memory_share: float = setting(0.9, "The fraction of the free device memory that all workers may hold together.", number(1e-6, 1))
    timeout: dict[str, float] = setting(  # noqa: RUF009 - a field of its own
        PHASES,
        "Deadline of each phase in seconds.",
        timeouts,
        RARE,
        parse=parse_timeout,
        help="Deadlines in seconds: one number for all phases, or PHASE=SECONDS for some.",
    )

    def measuring(self) -> dict[str, object]:
        """The settings that affect a measurement. A resumed run must have the same ones."""
        plain = {key for key, value in (("judge", WORKER), ("caches", KEPT)) if getattr(self, key) == value}
        keys = {key for key, one in KEYS.items() if one.affects} - plain
        return {key: value for key, value in asdict(self).items() if key in keys}

    @classmethod
    def from_sources(cls, config: Layer, flags: Layer, *, quick: bool = False) -> Settings:
        """Settings from a configuration and flags. Axes given as flags replace those of every sweep.

        Raises:
            UsageError: settings contradict each other.
        """
        axes = axes_of(flags)
        found = [with_axes(sweep, axes) for sweep in config.get("sweep", ())]
        if quick and "N" not in axes:
            found = [replace(sweep, N=thinned(sweep.N, QUICK_SHAPES)) for sweep in found]
        others = {**config, **(QUICK if quick else {}), **flags}
        merged = {key: value for key, value in others.items() if key not in AXES} | {
            "sweep": tuple(found),
            "timeout": {**PHASES, **config.get("timeout", {}), **flags.get("timeout", {})},
            "plugins": tuple(dict.fromkeys((*config.get("plugins", ()), *flags.get("plugins", ())))),
        }
        settings = cls(**merged)
        if settings.max_rounds < settings.rounds:
            raise UsageError(
                f"--max-rounds {settings.max_rounds}: less than the {settings.rounds} rounds that are always taken; lower those too"
            )
        return settings


KEYS = declared(Settings)
"""The keys of a configuration. An A/B run alone leaves out the yardstick."""
CONFIG = Setting(
    name="config",
    text="tutorial, powers, frontier, operations, losses, models, small, strategies, strided, gallery, host, gate, cpu, or a TOML file. "
    "Flags win.",
    read=word,
    parse=word,
    panel=WHAT,
    shown="tutorial; cpu without a GPU",
    kind=str,
    metavar="NAME|FILE",
    words="configurations",
    commands=MEASUREMENTS,
)
"""The option that names the configuration."""
FIRST = ("backends", "plugins", "M", "N", "dtype", "direction", "op")
"""The settings that most users need; the help begins with them."""
_EVERY = {**AXES, "config": CONFIG, **KEYS}
SETTINGS = {name: _EVERY[name] for name in (*FIRST, *_EVERY)}
"""Everything that a source sets, in the order of the help."""


def of_command(command: str) -> list[Setting]:
    """The settings that a command has as options, in the order of its help."""
    return [one for one in SETTINGS.values() if one.panel and command in one.commands]


def read(name: str, value: object, at: str) -> Any:
    """The valid value of a key of a configuration, or of an axis of a sweep. Raises UsageError, which begins with `at`."""
    return SETTINGS[name].read(value, at)


def from_flags(flags: Mapping[str, Any]) -> Layer:
    """The given flags (not None), validated. Keys are names of settings.

    The values of a repeated option are joined: `--N 256 --N 512` is `--N 256,512`.

    Raises:
        UsageError: naming the flag.
    """
    layer: Layer = {}
    for key, value in flags.items():
        if value not in (None, (), []):
            one = SETTINGS[key]
            layer[key] = one.parse(",".join(value) if isinstance(value, list) and not one.repeats else value, one.flag)
    if "shape" in layer and ("M" in layer or "N" in layer):
        raise UsageError("--shape gives all sizes of the tensor; leave out --M and --N")
    return with_fixed_rounds(layer)


def axes_of(flags: Layer) -> Layer:
    """The axes among flags."""
    return {key: value for key, value in flags.items() if key in AXES}


def with_axes(sweep: Sweep, axes: Layer) -> Sweep:
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


def one_case(flags: Mapping[str, Any], command: str) -> Case:
    """The case that flags name, of 4096 rows and columns without others, and in fp32 or the first dtype that the operation has.

    Raises:
        UsageError: a flag is invalid, or they name several cases.
    """
    axes = from_flags(flags)
    plain = Sweep((4096,), (4096,))
    there = operation(axes["op"][0]).dtypes
    if "dtype" not in axes and not set(plain.dtype) & set(there):
        plain = replace(plain, dtype=there[:1])
    try:
        (case,) = sweeps.cases([with_axes(plain, axes)], "cuda")
    except ValueError:
        raise UsageError(f"{command}: give one --dtype, one --direction, and one --shape with one --dim") from None
    return case


def with_fixed_rounds(layer: Layer) -> Layer:
    """A layer with `rounds` and without `max_rounds` fixes the number of rounds."""
    return {"max_rounds": layer["rounds"], **layer} if "rounds" in layer else layer
