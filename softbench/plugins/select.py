"""Selects the backends of a run by name and pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from softbench.core.case import YARDSTICK
from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.text import LISTED, did_you_mean, few, split_exclusions, unknown
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import ALL, NO_FUNCTION, PluginSource

WILDCARDS = frozenset("*?[")


def needed(sources: Sequence[PluginSource], names: Sequence[str] | None, *, yardstick: bool = True) -> tuple[PluginSource, ...]:
    """The plugin sources to load first for these backends: files, and entry points named as a backend or its part before the colon.

    `all` and patterns need every source. A `missing` backend may be in any other source. `yardstick`: that of copy, too.
    """
    wanted, excluded = split_exclusions(names or ())
    every = (*wanted, *excluded)
    if not wanted or any(name == ALL or WILDCARDS & set(name) for name in every):
        return tuple(sources)
    labels = {*([YARDSTICK] if yardstick else []), *every, *(name.partition(":")[0] for name in every)}
    return tuple(source for source in sources if source.given or source.label in labels)


def missing(infos: Iterable[BackendInfo], names: Sequence[str] | None) -> bool:
    """True if one of the names belongs to no info, and to no plugin source of one."""
    infos = list(infos)
    return not {name for info in infos for name in (info.name, *_label(info))}.issuperset(name.removeprefix("!") for name in names or ())


def all_or_all_but(names: Sequence[str] | None) -> bool:
    """True if the names select every backend but the extras and those that they exclude."""
    return set(split_exclusions(names or ())[0]) <= {ALL}


def _label(info: BackendInfo) -> tuple[str, ...]:
    """The names of a plugin's source, which select all its backends. `softbench list` has the first of a plugin that it cannot read.

    The file's absolute path is the second. It never is the name of a backend.
    """
    return () if info.origin.own else (info.origin.label, info.origin.target)


def of_source(infos: Iterable[BackendInfo], name: str) -> list[BackendInfo]:
    """The backends of the plugin source of this name; empty if there is none, or if a backend has the name."""
    infos = list(infos)
    return [] if any(info.name == name for info in infos) else [info for info in infos if name in _label(info)]


def unknown_names(infos: Iterable[BackendInfo], names: Sequence[str] | None) -> list[str]:
    """Those of the names that are no pattern and belong to no info."""
    known = {ALL, *(info.name for info in infos)}
    return [name for name in names or () if name.removeprefix("!") not in known and not WILDCARDS & set(name)]


def select(
    infos: Sequence[BackendInfo],
    names: Sequence[str] | None,
    *,
    yardstick: bool = True,
    flag: str = "--backends",
    known: Sequence[BackendInfo] = (),
) -> tuple[BackendInfo, ...]:
    """The backends of a run: the yardstick first (unless it is not needed), then the named ones in order. `flag` is named in errors.

    Names may also be `all` (as None: every backend but the extras), shell patterns (`compile:*`), and the name of a plugin source for its
    backends. A `!` in front of any of them excludes, wherever it stands; exclusions alone take the others of `all`.
    Backends that cannot run here become rows with the reason, and so does a plugin file that could not be loaded, whatever the
    names are. Without the yardstick both are errors, as then only the named backends have rows. A source that lacks the function that
    the user named is one always.

    `known` are all backends, also those that `infos` lacks because `all` may not select them. An exclusion may name one of them.

    Raises:
        UsageError: two sources claim a name, or a name or pattern is unknown, or the exclusions leave no backend.
            A plugin lacks the function that was named. Without the yardstick: a named backend cannot run here, or a plugin file could
            not be loaded.
        SoftbenchError: the backends are named, and none of them can run here.
    """
    by_name: dict[str, BackendInfo] = {}
    for info in infos:
        other = by_name.setdefault(info.name, info)
        if other is not info:
            both = f"one of {other.origin.shown}, one of {info.origin.shown}"
            raise UsageError(f"two backends are called '{info.name}': {both}; rename one, as in --plugin NAME=FILE")
    chosen: list[BackendInfo] = []
    named: list[BackendInfo] = []
    wanted, excluded = split_exclusions(names or ())
    for name in wanted or (ALL,):
        if name == ALL or WILDCARDS & set(name):
            chosen += matching(by_name.values(), name, f"{flag}: ")
        else:
            names_of = [info.name for info in of_source(infos, name)] or [name]
            found = [_named(each, by_name, infos, flag) for each in names_of]
            named, chosen = named + found, chosen + found
    if excluded:
        out = _excluded(known or infos, excluded, flag, yardstick=yardstick)
        left = [info for info in chosen if info.name not in out]
        if len(left) < len(chosen) and not any(info.name != YARDSTICK for info in left):
            raise UsageError(f"{flag} {','.join(names or ())}: no backend is left; an exclusion applies wherever it stands")
        named, chosen = [info for info in named if info in left], left
        infos = [info for info in infos if info.name not in out]
    unable = [info for info in dict.fromkeys(named) if not info.able]
    if unable and not (yardstick and any(info.able and info.name != YARDSTICK for info in chosen)):
        reasons = [f"{info.name}: {info.broken or 'unavailable: ' + info.unavailable}" for info in unable]
        raise (SoftbenchError if yardstick and not any(info.broken for info in unable) else UsageError)(f"{flag} {'; '.join(reasons)}")
    first = [by_name[YARDSTICK]] if yardstick and YARDSTICK in by_name else []
    lost = not_loaded(infos)
    if refused := [info for info in lost if not yardstick or (info.origin.function and NO_FUNCTION in info.broken)]:
        raise UsageError(not_loaded_text(refused[0]))
    return tuple(dict.fromkeys(first + chosen + lost))


def _excluded(infos: Sequence[BackendInfo], patterns: Sequence[str], flag: str, *, yardstick: bool) -> set[str]:
    """The names that the patterns exclude. Raises UsageError for a pattern that matches none, and for the yardstick."""
    if yardstick and YARDSTICK in patterns:
        raise UsageError(f"{flag}: '!{YARDSTICK}' excludes the yardstick, which every run measures; leave it out")
    return {info.name for pattern in patterns for info in matching(infos, pattern, f"{flag}: '!{pattern}' excludes nothing: ")}


def not_loaded(infos: Iterable[BackendInfo]) -> list[BackendInfo]:
    """The infos of plugin files that could not be loaded; not those of a backend whose file has others."""
    infos = list(infos)
    sizes = Counter(info.origin for info in infos)
    return [info for info in infos if info.broken and info.origin.given and sizes[info.origin] == 1]


def not_loaded_text(info: BackendInfo) -> str:
    """The message about a plugin file that could not be loaded."""
    return f"plugin {info.origin.shown}: could not be loaded: {info.broken}"


def matching(infos: Iterable[BackendInfo], pattern: str, at: str = "") -> list[BackendInfo]:
    """The infos that `all`, a name, a pattern or the name of a plugin source selects. An error begins with `at`.

    Raises:
        UsageError: nothing matches.
    """
    infos = list(infos)
    if pattern == ALL:
        return [info for info in infos if not info.extra]
    if not (found := [info for info in infos if fnmatchcase(info.name, pattern)] or of_source(infos, pattern)):
        known = _known(pattern, infos)
        hint = did_you_mean(pattern, known)
        raise UsageError(
            f"{at}no backend matches '{pattern}'; {hint}known are {few(sorted(known), LISTED)}; softbench list '*' tells of extras too"
        )
    return found


def _known(name: str, infos: Iterable[BackendInfo]) -> list[str]:
    """The names for an error message, without those that could not be loaded; of the extras only a close match."""
    infos = [info for info in infos if not info.broken]
    extras = {info.name for info in infos if info.extra}
    return [info.name for info in infos if info.name not in extras] + get_close_matches(name, sorted(extras), n=1)


def _named(name: str, by_name: dict[str, BackendInfo], infos: Sequence[BackendInfo], flag: str) -> BackendInfo:
    if name not in by_name:
        if lost := [f"{info.origin.shown} could not be loaded: {info.broken}" for info in infos if info.broken]:  # it may have the name
            raise UsageError(f"{flag}: unknown backend '{name}': {'; '.join(lost)}")
        raise UsageError(f"{flag}: {unknown(name, _known(name, by_name.values()), 'backend')}")
    return by_name[name]
