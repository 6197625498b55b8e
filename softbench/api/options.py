"""Arguments of Python as options of the command line: the same settings, errors that name arguments, the command that repeats a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, ParamSpec, TypeVar, get_type_hints

from softbench.api.backends import Given
from softbench.api.keywords import KEYWORDS, Operations
from softbench.core.case import Value, value_text
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.text import did_you_mean, one_line
from softbench.plan.settings import SETTINGS

_P = ParamSpec("_P")
_T = TypeVar("_T")


def keywords(command: str) -> dict[str, Any]:
    """The settings that the function of a command has as keywords, with their types. Each means what the option of its name does."""
    hints = get_type_hints(KEYWORDS[command])
    return {name: hints[name] for name in SETTINGS if name in hints}


def takes(command: str) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """A decorator for a function with `**options`: its signature, which `help` shows, has the keywords of the command."""

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        own = [one for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in keywords(command).items()]
        function.__signature__ = signature(function).replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return function

    return decorate


@contextmanager
def as_arguments(config: object = None, given: Collection[str] = ()) -> Iterator[None]:
    """Errors name arguments in place of the flags of the command line. A command line in an error, after `softbench`, stays.

    If there is a `config`, arguments that are not `given` come from there.
    """
    from softbench.plan.config_file import in_file

    try:
        yield
    except SoftbenchError as error:
        text, *command = re.split(r"(?=softbench [a-z])", in_file(str(error), config, given), maxsplit=1)
        error.args = ("".join([_FLAG.sub(lambda flag: _ARGUMENTS.get(flag[0], flag[0]), text), *command]),)
        raise


def path(value: object, argument: str) -> Path:
    """The path of an argument. Raises UsageError for what is none."""
    if not isinstance(value, str | PathLike):
        raise UsageError(f"{argument}: must be a path, not {one_line(repr(value), 80)}")
    return Path(value)


def known_only(options: Mapping[str, object], function: Callable[..., object]) -> None:
    """Raises TypeError for an option that a function with `takes` does not have, as Python does for its own functions."""
    parameters = signature(function).parameters
    names = [name for name, one in parameters.items() if one.kind is not Parameter.VAR_POSITIONAL]
    for name in options:
        if name in names:
            continue
        known = f"{did_you_mean(name, names)}known are {', '.join(names)}"
        known = f"give {name} without this name, as in {function.__name__}('torch', 'triton')" if name in parameters else known
        raise TypeError(f"unknown argument '{name}'; {known}")


def texts(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the command line has them: texts where it takes texts, numbers where it takes numbers.

    Raises:
        UsageError: a value is of another type, or has no item.
    """
    found = {name: _as_option(name, value) for name, value in options.items() if value is not None}
    if empty := [key for key, value in found.items() if key != "plugins" and isinstance(value, str | list) and not "".join(value)]:
        raise UsageError(f"{empty[0]}: is empty; give a value, or leave it out")
    return found


def _plain(value: Any) -> Any:
    """A number of Python for one of numpy."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _timeouts(value: Any) -> str:
    return ",".join(f"{phase}={seconds}" for phase, seconds in value.items()) if isinstance(value, Mapping) else str(value)


def _items(value: Any, kinds: type | UnionType, argument: str, what: str) -> list[Any]:
    """One value of these kinds, or several, as a list. Raises UsageError for others."""
    found = [value] if isinstance(value, kinds) or not isinstance(value, Iterable) else list(value)
    if wrong := [one for one in found if not isinstance(one, kinds)]:
        raise UsageError(f"{argument}: {one_line(repr(wrong[0]), 80)} is no {what}")
    return found


def _listed(value: object) -> str:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value).removeprefix("torch.")
    return ",".join(map(_listed, value))


def _shapes(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    sizes = list(value)
    return ",".join(map(_shapes, sizes)) if any(isinstance(size, str | Iterable) for size in sizes) else "x".join(map(str, sizes))


def _parameters(value: str | Mapping[str, Value]) -> str:
    return value if isinstance(value, str) else ",".join(f"{name}={_value(one)}" for name, one in value.items())


def _value(value: Any) -> str:
    """A parameter's value. A dtype of torch has softbench's name."""
    from softbench.plan.grammar import DTYPE_ALIASES

    plain = _plain(value)
    name = str(plain).removeprefix("torch.")
    return value_text(plain) if isinstance(plain, bool | int | float | str) else DTYPE_ALIASES.get(name, name)


def _parameter_sets(value: Any) -> list[str]:
    return [_parameters(one) for one in _items(value, str | Mapping, "set", "set of parameters; write {'scale': 0.7}")]


def _plugins(value: Any) -> list[Path]:
    return [Path(one) for one in _items(value, str | PathLike, "plugins", "plugin file")]


def operations(op: Operations) -> list[str] | None:
    """The values of `--op`; None without an operation. Raises UsageError for what is neither a name nor a file, and for an empty list."""
    if op is None:
        return None
    if not (found := [str(one) for one in _items(op, str | PathLike, "op", "operation; give a name or a file")]):
        raise UsageError("op: is empty; give a name or a file, or leave it out")
    return found


_SPECIAL: dict[str, Callable[[Any], object]] = {"shape": _shapes, "set": _parameter_sets, "timeout": _timeouts, "plugins": _plugins}
"""The settings whose values in Python have a form of their own."""


def _as_option(name: str, value: Any) -> object:
    """A value as the command line has it: a text or a list of texts where it takes texts, else a number."""
    if name in _SPECIAL:
        return _SPECIAL[name](value)
    kind = SETTINGS[name].kind
    if kind not in (list[str], str) and isinstance(value, list | tuple):
        raise UsageError(f"{name}: must be one number, not {one_line(repr(value), 80)}")
    return _listed(value) if kind == list[str] else str(value) if kind is str else _plain(value)


_NAMES = (*SETTINGS, "output", "case", "candidate", "reference")
_ARGUMENTS = {f"--{name.replace('_', '-')}": name for name in _NAMES} | {"--plugin": "plugin", "-o": "out", "--device cpu": "device='cpu'"}
"""The name of an argument for each flag."""
_FLAG = re.compile(r"(?<![\w-])(?:--device cpu\b|-o(?= )|--[A-Za-z][A-Za-z0-9-]*)")


def given_settings(backends: Given, op: Operations, found: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a call as the command line gives them. `found` is of `texts`."""
    names = backends.names if backends.names != ("all",) else "all"
    return {**found, "op": operations(op), "backends": names, "plugins": [*backends.plugins, *found.get("plugins", ())]}


def words(backends: Given, op: Operations, options: Mapping[str, Any]) -> list[str]:
    """The words of a command line with these plugins, operation and options. An option that is true is a flag alone."""
    ops = operations(op)
    found = [word for plugin in (*backends.plugins, *options.get("plugins", ())) for word in ("--plugin", str(plugin))]
    found += ["--op", ",".join(ops)] if ops else []
    for key, value in options.items():
        if key == "plugins" or value is None or value is False:
            continue
        flag = f"--{key.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            found += [flag] if one is True else [f"{flag}={one}"] if str(one).startswith("-") else [flag, str(one)]
    return found
