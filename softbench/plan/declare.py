"""How a setting is declared: a field of a dataclass with its text, the reader of its values, its option and its keyword in Python."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from softbench.core.errors import ConfigError, UsageError
from softbench.core.text import unknown

WHAT, HOW_LONG, RARE = "What to measure", "How long", "Rarely needed"
"""The panels of the help in which settings stand."""
RUN, MEASUREMENTS, EVERY = ("run",), ("run", "gate"), ("run", "gate", "check")
"""The commands that have a setting as an option, and the functions of their name that have it as a keyword."""

Reader = Callable[[Any, str], Any]
"""The valid value of a setting from a given one, and the place of the given one. Raises UsageError, which begins with the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is known of a setting beside the type of its values."""

    name: str = ""
    """The field, the key in a configuration and the keyword in Python."""
    default: Any = None
    text: str
    """The row of docs/configuration.md; for an axis empty, because the table of `sweep` has it."""
    read: Reader
    """Reads a value of a configuration."""
    parse: Reader
    """Reads what the command line has."""
    affects: bool = False
    """Whether it affects a measurement, so that a resumed run must have the same value."""
    panel: str = ""
    """The panel of the option; a setting without one has no option."""
    help: str = ""
    """The help of the option, if it is not the text."""
    shown: str | bool = ""
    """What the help shows as the default, if it is not the default. True shows nothing."""
    kind: Any = list[str]
    """The type of an option's value."""
    repeats: bool = False
    """Whether each use of the option is a value of its own; otherwise the uses are joined to one list with commas."""
    metavar: str | None = None
    words: str | tuple[str, ...] = ()
    """The words that the shell completes, or the name of the function in `softbench.cli.completion` that finds them."""
    commands: tuple[str, ...] = EVERY
    also: tuple[str, ...] = ()
    """Other names of the option."""

    @property
    def flag(self) -> str:
        """The option's name."""
        return "--plugin" if self.name == "plugins" else f"--{self.name.replace('_', '-')}"

    @property
    def shown_default(self) -> str | bool:
        """The default as the help shows it."""
        return self.shown or as_text(self.default)

    @property
    def option_help(self) -> str:
        """The help of the option."""
        return self.help or self.text.replace("`", "")


def as_text(value: Any) -> str:
    """A default in the grammar of the command line."""
    if isinstance(value, dict):
        return ",".join(f"{key}={as_text(one)}" for key, one in value.items())
    return ",".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def setting(default: Any, text: str, read: Reader | tuple[str, ...], panel: str = "", **more: Any) -> Any:
    """A field that declares a setting.

    Args:
        read: the reader of its values, or its words.
        more: other fields of `Setting`.
    """
    reader, words = (one_of(*read), read) if isinstance(read, tuple) else (read, ())
    one = Setting(**{"parse": reader, "words": words, **more}, text=text, default=default, read=reader, panel=panel)
    metadata = {"setting": one}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def axis(default: Any, parse: Callable[[Any, str], Any], help: str, *, read: Reader | None = None, **more: Any) -> Any:
    """A field that declares an axis of a sweep, whose values are read in the grammar of the flag.

    Args:
        parse: reads a text.
        read: reads a value of a configuration; without it, the text of a number or of a list is read.
        more: other fields of `Setting`.
    """
    reader = read or (lambda value, at: parse(axis_text(value, at), at))
    return setting(default, "", reader, WHAT, **{"help": help, "parse": parse, "commands": MEASUREMENTS, **more})


def declared(cls: Any) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name."""
    return {one.name: replace(one.metadata["setting"], name=one.name) for one in fields(cls) if "setting" in one.metadata}


def axis_text(value: object, at: str) -> str:
    """TOML's `4096`, `[256, 512]` and `"256:8192:256"` as text in the grammar of the flags."""
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(item, int | str) and not isinstance(item, bool) for item in items):
        raise ConfigError(f"{at}: must be a number, a text or a list of them, not {value!r}")
    return ",".join(str(item) for item in items)


def strings(value: object, at: str) -> tuple[str, ...]:
    """Reads texts, from one with commas or from a list."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) and item.strip() for item in items):
        raise UsageError(f"{at}: must be a text or a list of texts, none of them empty, not {value!r}")
    return tuple(dict.fromkeys(item.strip() for item in items))


def whole(low: int, high: int) -> Reader:
    """Reads a whole number in this range."""

    def read(value: object, at: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise UsageError(f"{at}: must be a whole number from {low} to {high}, not {value!r}")
        return value

    return read


def number(low: float, high: float) -> Reader:
    """Reads a number in this range."""

    def read(value: object, at: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise UsageError(f"{at}: must be a number from {low:g} to {high:g}, not {value!r}")
        return float(value)

    return read


def word(value: object, at: str) -> str:
    """Reads a name."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{at}: must be a name, not {value!r}")
    return value.strip()


def one_of(*known: str) -> Reader:
    """Reads one of these words."""

    def read(value: object, at: str) -> str:
        name = word(value, at)
        if name not in known:
            raise UsageError(f"{at}: {unknown(name, known, 'value')}")
        return name

    return read


def device(value: object, at: str) -> str:
    """Reads the name of a device."""
    name = word(value, at)
    if name not in ("auto", "cpu", "cuda") and not (name.startswith("cuda:") and name[5:].isdecimal()):
        raise UsageError(f"{at}: {unknown(name, ('auto', 'cpu', 'cuda', 'cuda:K'), 'device')}")
    return name


def threads(value: object, at: str) -> int:
    """Reads a number of threads, at most the processors of this process."""
    most = len(os.sched_getaffinity(0))
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UsageError(f"{at}: must be a whole number from 1 to {most}, the processors of this process, not {value!r}")
    return value
