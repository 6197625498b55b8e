"""A request: what the user asked for, before settings are resolved."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softbench.plan.config_file import DEFAULT_CONFIG, load
from softbench.plan.deal import Shard
from softbench.plan.settings import Layer, Settings


@dataclass(frozen=True, slots=True)
class Request:
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


def command_line(arguments: Sequence[str]) -> str:
    """The command for a results file. An absolute path becomes its last part, as results may be published."""

    def without_folders(argument: str) -> str:
        option, equals, value = argument.rpartition("=")
        return f"{option}{equals}{Path(value).name}" if value.startswith("/") else argument

    return shlex.join(["softbench", *map(without_folders, arguments)])
