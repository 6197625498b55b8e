"""How much a command prints: `--quiet` errors and losses only, `--verbose` what is otherwise left out."""

from __future__ import annotations

from contextvars import ContextVar

from softbench.core.errors import UsageError

_LEVEL: ContextVar[int] = ContextVar("level", default=0)


def choose(*, quiet: bool, verbose: bool) -> None:
    """Set the level of this command.

    Raises:
        UsageError: both are asked for.
    """
    if quiet and verbose:
        raise UsageError("--quiet: does not go with --verbose or --long; leave out one of them")
    _LEVEL.set(int(verbose) - int(quiet))


def quiet() -> bool:
    """True if only errors are printed."""
    return _LEVEL.get() < 0


def verbose() -> bool:
    """True if everything is printed."""
    return _LEVEL.get() > 0
