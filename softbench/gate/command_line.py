"""Words of command lines that a run or the gate recorded: the options that they have, and the words without them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

OPERATIONS = ("--op", "--problem")
"""The names of the option of operations and problems."""


def words(command: str) -> list[str]:
    """The words of a command line; none if a quotation mark is open."""
    try:
        return shlex.split(command)
    except ValueError:
        return []


def options(of: Sequence[str], names: Collection[str]) -> list[str]:
    """Those of the words that are options of these names, with their values. Each option has a value."""
    return [word for word, is_option in _marked(of, names) if is_option]


def without(of: Sequence[str], names: Collection[str]) -> list[str]:
    """The words without the options of these names and their values. Each option has a value."""
    return [word for word, is_option in _marked(of, names) if not is_option]


def operation_files(of: Sequence[str]) -> list[str]:
    """The files of operations and problems among the values of `--op` and `--problem`, which may be lists with commas."""
    values = [word.removeprefix("--op=").removeprefix("--problem=") for word in options(of, OPERATIONS)]
    found: list[str] = []
    for value in values:
        named = False  # what follows a problem with its format is a solution
        for part in value.split(","):
            formatted = ":" in part and "(" not in part
            found += [part] if formatted or (part.endswith(".py") and not named) else []
            named = named or formatted
    return list(dict.fromkeys(found))


def _marked(of: Sequence[str], names: Collection[str]) -> list[tuple[str, bool]]:
    """Each word, and whether it is an option of these names or its value."""
    found, value_follows = [], False
    for word in of:
        name, sign, _ = word.partition("=")
        is_option = value_follows or name in names
        found.append((word, is_option))
        value_follows = not value_follows and name in names and not sign
    return found
