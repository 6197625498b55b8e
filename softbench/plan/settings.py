"""What to run: defaults, then the configuration file, then `--quick`, then flags; later ones win.

A configuration is TOML. Its keys are those of `Settings`, with the shapes in `[[sweep]]` tables and the deadlines in `[timeout]`:

    rounds = 5
    [timeout]
    build = 600
    [[sweep]]
    M = 4096                      # a number, a list, or the grammar of --M
    N = "256:6272:128"
    dtype = ["fp32", "bf16"]
    direction = "forward"
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from softbench.core.case import TIMERS
from softbench.core.errors import ConfigError, UsageError
from softbench.core.text import unknown
from softbench.plan.sweep import Sweep, parse_axis, parse_directions, parse_dtypes, thinned

PHASES = {"import": 60.0, "build": 300.0, "check": 120.0, "time": 120.0}
"""The phases of a cell and their default deadlines, seconds."""

QUICK = {"rounds": 3, "max_rounds": 3, "batch_ms": 5.0}
QUICK_SHAPES = 6

Layer = dict[str, Any]
"""Some of the fields of Settings, validated."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run, fully described."""

    sweep: tuple[Sweep, ...] = ()
    backends: tuple[str, ...] | None = None
    """Names asked for; None is all there are."""
    plugins: tuple[Path, ...] = ()
    """Python files that define backends."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:K`."""
    rounds: int = 3
    """Passes over the backends of a case, at least."""
    max_rounds: int = 10
    """Passes at most: a backend whose figure is known before sits out the rest. Where only `rounds` is given, it is that."""
    precision: float = 0.005
    """A figure is known when the 95 % interval of its median is within this fraction of it; 0 is never."""
    tick_us: float = 0.032  # or within this: CUDA events tick in 32 ns
    processes: int = 1
    """Fresh sets of workers, each measuring the whole sweep."""
    seed: int = 0  # of the inputs
    relative_to: str = "torch"
    """The backend that speed-ups are over."""
    warmup_ms: float = 2.0
    """Untimed calls before each batch, milliseconds."""
    batch_ms: float = 10.0
    """Timed calls of one backend in one round, milliseconds."""
    timer: str = "do_bench"
    """What makes the headline figure on a GPU: one of `softbench.core.case.TIMERS`."""
    l2: str = "cold"
    """`cold`: the GPU's L2 is flushed before every timed call; `warm`: it is not."""
    profile: str = "on"
    """`off`: no device and host time of a call, whose profiler takes a GPU's host a while."""
    yardstick: bool = True
    """Measure copy beside them, as a run always does; the ratio of two backends needs none."""
    memory_share: float = 0.9
    """The share of the device's free memory that all workers may hold together."""
    timeout: dict[str, float] = field(default_factory=lambda: dict(PHASES))
    """Deadline of each phase, seconds."""

    def measuring(self) -> dict[str, object]:
        """The settings that bear on a figure: with the environment, what a resumed run must share with its beginning."""
        keys = ("rounds", "max_rounds", "precision", "tick_us", "processes", "seed", "warmup_ms", "batch_ms", "timer", "l2", "profile")
        return {key: value for key, value in asdict(self).items() if key in keys}


def shipped() -> dict[str, str]:
    """Names of the configurations that come with softbench, each with its first comment line."""
    entries = [entry for entry in resources.files("softbench.configs").iterdir() if entry.name.endswith(".toml")]
    found = {entry.name.removesuffix(".toml"): entry.read_text().partition("\n")[0].lstrip("# ") for entry in entries}
    return dict(sorted(found.items()))


def load(name_or_file: str) -> Layer:
    """A configuration that is shipped (by name) or a file (by path).

    Raises:
        ConfigError: no such configuration, unreadable, not TOML, an unknown key or a value that does not fit; the message
            names the file and the key.
    """
    path = Path(name_or_file)
    if path.suffix == ".toml" or path.name != name_or_file:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise ConfigError(f"--config {name_or_file}: {reason}") from None
    elif name_or_file in shipped():
        text = (resources.files("softbench.configs") / f"{name_or_file}.toml").read_text(encoding="utf-8")
    else:
        raise ConfigError(f"--config: {unknown(name_or_file, shipped(), 'configuration')}; or give the path of a .toml file")
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError, as is a number of thousands of digits
        raise ConfigError(f"{name_or_file}: not valid TOML: {error}") from None
    return _layer(table, name_or_file, base=path.parent)


def _layer(table: dict[str, Any], where: str, base: Path) -> Layer:
    layer: Layer = {}
    for key, value in table.items():
        at = f"{where}: {key}"
        if key == "sweep":
            sweeps = value if isinstance(value, list) else [value]
            if not sweeps:
                raise ConfigError(f"{at}: is empty; write [[sweep]] and then M = ..., N = ...")
            layer[key] = tuple(_sweep(sweep, f"{where}: [[sweep]] {i + 1}") for i, sweep in enumerate(sweeps))
        elif key == "timeout":
            layer[key] = _timeouts(value, at)
        elif key == "plugins":
            layer[key] = tuple(_beside(base, file) for file in _strings(value, at))
        elif key == "backends":
            layer[key] = None if value == "all" else _strings(value, at)
        elif key in READERS:
            layer[key] = READERS[key](value, at)
        else:
            raise ConfigError(f"{where}: {unknown(key, [f.name for f in fields(Settings)], 'key')}")
    return _with_fixed_rounds(layer)


def _with_fixed_rounds(layer: Layer) -> Layer:
    """Who gives a number of rounds and no limit beside it means that number."""
    return {"max_rounds": layer["rounds"], **layer} if "rounds" in layer else layer


def _sweep(table: Any, at: str) -> Sweep:
    if not isinstance(table, dict):
        raise ConfigError(f"{at}: must be a table; write [[sweep]] and then M = ..., N = ...")
    for key in table:
        if key not in SWEEP_READERS:
            raise ConfigError(f"{at}: {unknown(key, SWEEP_READERS, 'key')}")
    for key in ("M", "N"):
        if key not in table:
            raise ConfigError(f"{at}: {key} is missing")
    try:
        return Sweep(**{key: SWEEP_READERS[key](_text(value, f"{at} {key}"), f"{at} {key}") for key, value in table.items()})
    except UsageError as error:
        raise ConfigError(str(error)) from None


def _text(value: Any, at: str) -> str:
    """TOML's `4096`, `[256, 512]` and `"256:8192:256"` all in the one grammar that flags use."""
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, int | str) and not isinstance(item, bool) for item in items):
        raise ConfigError(f"{at}: must be a number, a text or a list of them, not {value!r}")
    return ",".join(str(item) for item in items)


def _strings(value: Any, at: str) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise ConfigError(f"{at}: must be a text or a list of texts, none of them empty, not {value!r}")
    return tuple(dict.fromkeys(item.strip() for item in items))


def _beside(base: Path, file: str) -> Path:
    """A plugin's file beside the configuration; `name=file` keeps its name in front."""
    alias, equals, rest = file.rpartition("=")
    return Path(f"{alias}{equals}{base / rest}")


def _timeouts(value: Any, at: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise ConfigError(f"{at}: must be a table of seconds; its keys are {', '.join(PHASES)}")
    for key in value:
        if key not in PHASES:
            raise ConfigError(f"{at}: {unknown(key, PHASES, 'phase')}")
    return {key: _number(0.001, 1e6)(seconds, f"{at}.{key}") for key, seconds in value.items()}


def _whole(low: int, high: int) -> Callable[[Any, str], int]:
    def read(value: Any, at: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ConfigError(f"{at}: must be a whole number from {low} to {high}, not {value!r}")
        return value

    return read


def _number(low: float, high: float) -> Callable[[Any, str], float]:
    def read(value: Any, at: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise ConfigError(f"{at}: must be a number from {low:g} to {high:g}, not {value!r}")
        return float(value)

    return read


def _word(value: Any, at: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{at}: must be a name, not {value!r}")
    return value.strip()


def _one_of(*known: str) -> Callable[[Any, str], str]:
    def read(value: Any, at: str) -> str:
        word = _word(value, at)
        if word not in known:
            raise ConfigError(f"{at}: unknown '{word}'; known are {', '.join(known)}")
        return word

    return read


def _device(value: Any, at: str) -> str:
    word = _word(value, at)
    if word not in ("auto", "cpu", "cuda") and not (word.startswith("cuda:") and word[5:].isdecimal()):
        raise ConfigError(f"{at}: unknown '{word}'; known are auto, cpu, cuda, cuda:K")
    return word


READERS: dict[str, Callable[[Any, str], Any]] = {
    "device": _device,
    **dict.fromkeys(("rounds", "max_rounds"), _whole(1, 10_000)),
    "precision": _number(0, 1),
    "tick_us": _number(0, 1e6),
    "processes": _whole(1, 1_000),
    "seed": _whole(0, 2**31 - 1),
    "relative_to": _word,
    "warmup_ms": _number(0, 1e5),
    "batch_ms": _number(0.01, 1e5),
    "timer": _one_of(*TIMERS),
    "l2": _one_of("cold", "warm"),
    "profile": _one_of("on", "off"),
    "memory_share": _number(1e-6, 1),
}
SWEEP_READERS: dict[str, Callable[[str, str], Any]] = {
    "M": parse_axis,
    "N": parse_axis,
    "dtype": parse_dtypes,
    "direction": parse_directions,
}


def from_flags(flags: dict[str, Any]) -> Layer:
    """The flags that were given (those that are not None), validated; keys are the options' names with underscores.

    Raises:
        UsageError: naming the flag.
    """
    given = {key: value for key, value in flags.items() if value not in (None, (), [])}
    layer: Layer = {}
    for key, value in given.items():
        flag = f"--{key.replace('_', '-')}"
        if key in SWEEP_READERS:
            layer[key] = SWEEP_READERS[key](value, flag)
        elif key == "timeout":
            layer[key] = parse_timeout(value)
        elif key == "plugins":
            layer[key] = tuple(value)
        elif key == "backends":
            layer[key] = None if value.strip() == "all" else _strings(value, flag)
        else:
            layer[key] = READERS[key](value, flag)
    return _with_fixed_rounds(layer)


def parse_timeout(text: str) -> dict[str, float]:
    """`30` (every phase) or `import=10,build=600`, in seconds."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        if len(pairs) == 1 and not pairs[0][1]:
            return _timeouts(dict.fromkeys(PHASES, float(text)), "--timeout")
        return _timeouts({name.strip(): float(seconds) for name, _, seconds in pairs}, "--timeout")
    except ValueError:
        raise UsageError(f"--timeout {text}: write seconds, or phases as in import=10,build=600") from None


def resolve(file: Layer, flags: Layer, *, quick: bool = False) -> Settings:
    """One Settings from a configuration's layer and the flags'. M, N, dtype and direction given as flags replace those of every sweep.

    Raises UsageError where settings contradict each other.
    """
    merged = {**file, **(QUICK if quick else {}), **{key: value for key, value in flags.items() if key not in SWEEP_READERS}}
    timeout = {**PHASES, **file.get("timeout", {}), **flags.get("timeout", {})}
    plugins = tuple(dict.fromkeys((*file.get("plugins", ()), *flags.get("plugins", ()))))
    axes = {key: value for key, value in flags.items() if key in SWEEP_READERS}
    sweeps = [replace(sweep, **axes) for sweep in file.get("sweep", ())]
    if quick and "N" not in axes:
        sweeps = [replace(sweep, N=thinned(sweep.N, QUICK_SHAPES)) for sweep in sweeps]
    settings = Settings(**{**merged, "sweep": tuple(sweeps), "timeout": timeout, "plugins": plugins})
    if settings.max_rounds < settings.rounds:
        raise UsageError(f"max_rounds: {settings.max_rounds} is less than the {settings.rounds} that are always taken; lower rounds too")
    return settings
