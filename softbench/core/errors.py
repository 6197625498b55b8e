"""The exception tree.

    SoftbenchError                 one clear line for the user; exit code 1
    ├── UsageError                 a flag, a value or a name is off; exit code 2
    │   ├── ConfigError            ... in a configuration file
    │   └── ResultsError           a results file cannot be read, or a folder not be written
    ├── WorkersError               workers could not be started at all
    └── InconclusiveError          measurements that cannot be judged: another machine, too few processes; exit code 3
    Interrupted (KeyboardInterrupt)  SIGINT or SIGTERM; exit code 128 + signal

Messages say what, where, and what to do next. They are caught at the boundaries only: the loading of a plugin, one cell, `cli.main`.
"""

from __future__ import annotations


class SoftbenchError(Exception):
    """Anything softbench itself has to say to its user."""

    exit_code = 1


class UsageError(SoftbenchError):
    """A flag, a value or a name that cannot be used."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file that cannot be used."""


class ResultsError(UsageError):
    """A results file that cannot be read, or an output folder that cannot be written."""


class WorkersError(SoftbenchError):
    """Worker processes could not be started."""


class InconclusiveError(SoftbenchError):
    """Measurements that nothing can be concluded from: of another machine, or too few."""

    exit_code = 3


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived. Not an Exception: no boundary swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum
