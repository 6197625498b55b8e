"""The exception tree.

`SoftbenchError` is the base class, with exit code 1. `UsageError` has exit code 2; `ConfigError` and `ResultsError` derive from it.
`WorkersError` has exit code 1, `InconclusiveError` 3, `StorageError` 4, `NotMeasurableError` 5.
`Interrupted` is a KeyboardInterrupt with exit code 128 + signal.

Messages say what, where, and what to do next. Only boundaries catch them: loading a plugin, one cell, and `cli.main`.
"""

from __future__ import annotations


class SoftbenchError(Exception):
    """An expected error, with one clear line for the user."""

    exit_code = 1


class UsageError(SoftbenchError):
    """A flag, a value or a name is invalid."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration is invalid."""


class ResultsError(UsageError):
    """A results file cannot be read, or an output folder cannot be written."""


class WorkersError(SoftbenchError):
    """Worker processes cannot be started."""


class InconclusiveError(SoftbenchError):
    """The measurements allow no conclusion: they come from another machine, or are too few."""

    exit_code = 3


class StorageError(SoftbenchError):
    """The disk is full, or cannot be written at all."""

    exit_code = 4


class NotMeasurableError(SoftbenchError):
    """Another program uses the device, so nothing can be measured at this time."""

    exit_code = 5


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived. It is no Exception, so that no boundary catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.exit_code = 128 + signum
