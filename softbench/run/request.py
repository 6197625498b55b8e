"""A request: what the user asked for, before settings are resolved."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from softbench import __version__
from softbench.core.errors import UsageError
from softbench.core.json import JsonObject, from_json, to_json
from softbench.plan.config_file import DEFAULT_CONFIG, load
from softbench.plan.deal import Shard, parse_shard
from softbench.plan.settings import Layer, Settings, from_flags
from softbench.plan.sweep import Sweep
from softbench.plugins.source import absolute
from softbench.plugins.static_scan import require_python
from softbench.run import operations


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user asked for: a run, or only its plan."""

    config: Layer
    """From the configuration."""
    flags: Layer
    """From the command line."""
    quick: bool
    output: Path
    """Folder of the results."""
    resume: bool
    command: str
    """The command line, stored in the run document."""
    version: str
    """softbench's version."""
    shard: Shard | None = None
    """The part of the cases to measure."""
    retry_failed: bool = False
    """Measure the cases with a failed cell again, of a finished run too."""

    def settings(self, device: str = "") -> Settings:
        """The settings; with `device`, a request without a sweep gets the device's default configuration.

        Raises:
            UsageError: settings contradict each other.
        """
        settings = Settings.from_sources(self.config, self.flags, quick=self.quick)
        if settings.sweep or not device:
            return settings
        default = load(DEFAULT_CONFIG[device])
        return Settings.from_sources({**default, **self.config}, self.flags, quick=self.quick)

    def gives(self, *names: str) -> bool:
        """True if the configuration or a flag sets all these fields."""
        return set(names) <= {*self.config, *self.flags}


def requested(
    given: Mapping[str, Any],
    command: Sequence[str],
    *,
    output: Path,
    quick: bool = False,
    resume: bool = False,
    shard: str | None = None,
    retry_failed: bool = False,
) -> RunRequest:
    """The request of a command or a call.

    Args:
        given: its settings as the command line gives them; `config` is the name or file of a configuration.
        command: the words of the command line, after `softbench`.
        shard: the part of the cases to measure, as a text.

    Raises:
        UsageError: a setting is invalid, a plugin is not Python, or the configuration does not exist.
    """
    flags = flags_of({name: value for name, value in given.items() if name != "config"})
    layer = load(given["config"], operations.names) if given.get("config") is not None else _of_problems(flags)
    if layer.get("sweep") and given.get("config") is None:
        flags = {name: value for name, value in flags.items() if name != "op"}  # each problem has a sweep of its own
    part = parse_shard(shard) if shard is not None else None
    require_python({**layer, **flags}.get("plugins", ()))
    return RunRequest(layer, flags, quick, output, resume or retry_failed, command_line(command), __version__, part, retry_failed)


def flags_of(given: Mapping[str, Any]) -> Layer:
    """The settings that the command line gives; an operation may be a file, and a problem too. Raises UsageError for an invalid one."""
    if not given.get("op"):
        return from_flags(given)
    ops, solutions = operations.with_solutions(given["op"])
    threads = from_flags({"threads": given.get("threads")}).get("threads")
    names = operations.names(ops, cases=operations.cases_of(given), threads=threads) or []
    flags = {**given, "op": names} | ({"plugins": [*(given.get("plugins") or ()), *solutions]} if solutions else {})
    if len(operations.problems(names)) < len(names):
        return from_flags(flags)
    if shapes := [name for name in ("shape", "dim") if flags.get(name)]:
        raise UsageError(f"--{shapes[0]}: the shapes of a problem follow from its parameters; set them with --M, --N and --set")
    return from_flags({name: value for name, value in flags.items() if name not in ("M", "N", "set")})


def _of_problems(flags: Layer) -> Layer:
    """A sweep over the cases of each problem, if the flags name nothing else."""
    names = flags.get("op", ())
    found = operations.problems(names)
    sweeps = [
        Sweep(op=(one.name,), dtype=tuple(dict.fromkeys(case.dtype or one.case_dtypes[0] for case in one.cases.values()))) for one in found
    ]
    return {"sweep": tuple(sweeps)} if found and len(found) == len(names) else {}


def request_to_json(request: RunRequest) -> JsonObject:
    """A request as JSON, for another process; files of plugins have absolute paths."""
    layers = {
        name: {**layer, "plugins": [str(absolute(path)) for path in layer.get("plugins", ())]}
        for name, layer in (("config", request.config), ("flags", request.flags))
    }
    return to_json({**layers, "quick": request.quick, "command": request.command, "version": request.version, "shard": request.shard})


def request_from_json(data: JsonObject) -> RunRequest:
    """The inverse of `request_to_json`, without a folder of results. Raises ValueError for a value of another type."""
    config, flags = (_layer(data[name]) for name in ("config", "flags"))
    shard = from_json(Shard, data["shard"]) if data["shard"] else None
    return RunRequest(config, flags, data["quick"], Path(), False, data["command"], data["version"], shard)


def _layer(data: JsonObject) -> Layer:
    types = {**get_type_hints(Sweep), **get_type_hints(Settings)}
    found = {name: from_json(types[name], value) for name, value in data.items() if name != "plugins"}
    return {**found, "plugins": tuple(map(Path, data["plugins"]))}


def command_line(arguments: Sequence[str]) -> str:
    """The command for a results file. An absolute path becomes one from here, or its last part: results may be published."""

    def without_folders(path: str) -> str:
        if not path.startswith("/"):
            return path
        return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else Path(path).name

    def shown(part: str) -> str:
        head = re.match(r"(?:[\w.+-]+[=:])*", part)
        assert head is not None  # it matches an empty text
        return f"{head[0]}{without_folders(part[head.end() :])}"

    return shlex.join(["softbench", *(",".join(map(shown, argument.split(","))) for argument in arguments)])
