"""Where backends come from, how one is loaded (in a worker), and which ones a run takes (in the parent)."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from softbench.config import unknown
from softbench.errors import UsageError
from softbench.protocol import typed
from softbench.units import one_line

GROUP = "softbench.backends"
YARDSTICK = "copy"
ALL = "all"
WILDCARDS = frozenset("*?[")
METHODS = ("available", "supports", "prepare")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")
SOURCES = {".py", ".cu", ".cuh", ".cpp", ".h"}


@dataclass(frozen=True, slots=True)
class Origin:
    """A door that backends come through."""

    kind: str
    """`entry point` or `file`."""
    label: str
    """The entry point's name, or the file's stem: what a backend is called until it could be loaded."""
    target: str
    """`module:attribute`, or the file's absolute path."""
    shown: str
    """For people: the distribution, or the file as the user wrote it."""
    alias: str = ""
    """What the user wants its backend to be called: two versions of one file may stand side by side."""

    @property
    def own(self) -> bool:
        """True of softbench's own backends, false of a plugin."""
        return self.kind != "file" and self.target.startswith("softbench.")


@dataclass(frozen=True, slots=True)
class Offer:
    """A backend as its worker describes it."""

    name: str
    origin: Origin
    unavailable: str = ""
    """Why it cannot run here, and how to mend it."""
    broken: str = ""
    """Why its plugin could not be loaded at all."""
    broken_status: str = "failed"
    """`failed` or `timeout`."""
    summary: str = ""
    source: str = ""
    """Hash of its source files."""
    advice: str = ""
    """When to pick it."""
    extra: bool = False
    """True when `all` leaves it out: it is taken by name or pattern."""
    reuses_output: bool = False
    """True when its next call overwrites what a call returned."""
    loaded: bool = True
    """False where the plugin was only looked at (`softbench.glance`), not run."""


def origins(plugins: Iterable[Path]) -> tuple[Origin, ...]:
    """Every door: entry points of all installed distributions (not imported here), then the files.

    Raises:
        UsageError: a file that is not there, or no entry point at all (softbench is not installed).
    """
    found = []
    for point in metadata.entry_points(group=GROUP):
        shown = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        found.append(Origin("entry point", safe_name(point.name), point.value, one_line(shown)))
    if not found:
        raise UsageError("softbench is not installed, so its backends are not registered; run: pip install -e .")
    for given in plugins:
        alias, path = _aliased(given)
        try:
            there = path.is_file()
        except OSError as error:
            raise UsageError(f"--plugin {path}: {error.strerror}") from None
        if not there:
            raise UsageError(f"--plugin {path}: no such file")
        found.append(Origin("file", alias or safe_name(path.stem), str(path.resolve()), one_line(str(given)), alias))
    return tuple(found)


def safe_name(text: str) -> str:
    """A file's name as one that a backend could have: it goes into tables and files."""
    return text if NAME.fullmatch(text) else re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:64] or "plugin"


def _aliased(given: Path) -> tuple[str, Path]:
    """`new=my/softmax.py` as `new` and the file; a file whose very name has a `=` keeps it."""
    alias, equals, rest = str(given).partition("=")
    try:
        whole = given.is_file()
    except OSError:
        whole = False
    if equals and not whole and alias == ALL:
        raise UsageError(f"--plugin {given}: '{ALL}' names every backend; give this one another name")
    return (alias, Path(rest)) if equals and NAME.fullmatch(alias) and not whole else ("", given)


def needed(doors: Sequence[Origin], names: Sequence[str] | None) -> tuple[Origin, ...]:
    """The doors to open first for these backends: files, and entry points of a name or of what stands before its colon.

    All of them for `all` and patterns. What is `missing` behind these may be behind any other.
    """
    if names is None or any(name == ALL or WILDCARDS & set(name) for name in names):
        return tuple(doors)
    labels = {YARDSTICK, *names, *(name.partition(":")[0] for name in names)}
    return tuple(door for door in doors if door.kind == "file" or door.label in labels)


def missing(offers: Iterable[Offer], names: Sequence[str] | None) -> bool:
    """True when a name is none of these offers'."""
    return not {offer.name for offer in offers}.issuperset(names or ())


def select(offers: Sequence[Offer], names: Sequence[str] | None, *, yardstick: bool = True, flag: str = "--backends") -> tuple[Offer, ...]:
    """What a run takes: those named, in that order; first the yardstick, unless nobody needs it. `flag` is where the names come from.

    Beside names there are `all` (as None: every offer but the extras) and patterns as a shell's (`compile:*`). What these take may be
    unavailable: it becomes rows with the reason.

    Raises:
        UsageError: a name that two origins claim, a name or pattern that nobody offers, or a name that was asked for and cannot run here.
    """
    by_name: dict[str, Offer] = {}
    for offer in offers:
        other = by_name.setdefault(offer.name, offer)
        if other is not offer:
            raise UsageError(
                f"two backends are called '{offer.name}': one of {other.origin.shown}, one of {offer.origin.shown}; rename one"
            )
    chosen: list[Offer] = []
    for name in (ALL,) if names is None else names:
        if name == ALL or WILDCARDS & set(name):
            chosen += matching(by_name.values(), name)
        else:
            chosen.append(_named(name, by_name, offers, flag))
    first = [by_name[YARDSTICK]] if yardstick and YARDSTICK in by_name else []
    return tuple(dict.fromkeys(first + chosen))


def matching(offers: Iterable[Offer], pattern: str) -> list[Offer]:
    """The offers that `all`, a name or a pattern takes.

    Raises:
        UsageError: there is none.
    """
    offers = list(offers)
    if pattern == ALL:
        return [offer for offer in offers if not offer.extra]
    if not (found := [offer for offer in offers if fnmatchcase(offer.name, pattern)]):
        known = _known(pattern, offers)
        raise UsageError(f"no backend matches '{pattern}'; known are {', '.join(sorted(known))}; softbench list '*' tells of extras too")
    return found


def _known(name: str, offers: Iterable[Offer]) -> list[str]:
    """The names to tell where one is not known: an extra only if it is close, as all of them would be a page."""
    extras = {offer.name for offer in offers if offer.extra}
    return [offer.name for offer in offers if offer.name not in extras] + get_close_matches(name, sorted(extras), n=1)


def _named(name: str, by_name: dict[str, Offer], offers: Sequence[Offer], flag: str) -> Offer:
    if name not in by_name:
        lost = "".join(f"; {offer.origin.shown} could not be loaded: {offer.broken}" for offer in offers if offer.broken)
        raise UsageError(f"{flag}: {unknown(name, _known(name, by_name.values()), 'backend')}{lost}")
    offer = by_name[name]
    if offer.broken or offer.unavailable:
        raise UsageError(f"{flag} {name}: {offer.broken or 'unavailable: ' + offer.unavailable}")
    return offer


def load(origin: Origin) -> tuple[Any, ...]:
    """Import an origin's backends. Runs the plugin's code: called in a worker only.

    An entry point names, and a file holds under the name `backend` or `backends`, one Backend or a list of them.

    Raises:
        UsageError: what it offers is not a backend. Whatever the plugin's own import raises passes through.
    """
    if origin.kind == "file":
        module = _import_file(Path(origin.target))
        offered = getattr(module, "backends", None) or getattr(module, "backend", None)
        if offered is None:
            raise UsageError("defines neither `backend` nor `backends`, or nothing in them")
    else:
        offered = metadata.EntryPoint(origin.label, origin.target, GROUP).load()
    found = tuple(offered) if isinstance(offered, list | tuple) else (offered,)
    for backend in found:
        if isinstance(backend, type):
            raise UsageError(f"{backend.__name__} is a class and not a backend: write {backend.__name__}()")
        lacking = [method for method in METHODS if not callable(getattr(backend, method, None))]
        if lacking:
            raise UsageError(f"{_shown(backend)} is not a backend: it lacks the methods {', '.join(lacking)}")
        name = getattr(backend, "name", None)
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == ALL:
            raise UsageError(f"{_shown(name)} is no name for a backend; use 1 to 64 letters, digits and . _ : + -, and not '{ALL}'")
    if not origin.alias:
        return found
    return tuple(_renamed(backend, origin.alias if len(found) == 1 else f"{origin.alias}.{backend.name}") for backend in found)


def _shown(thing: Any) -> str:
    """A thing in a message, without the address that an object without a text of its own shows."""
    text = repr(thing)
    return f"an object of {type(thing).__name__}" if " object at 0x" in text else one_line(text, 80)


def _renamed(backend: Any, name: str) -> Any:
    """The backend under another name. It is wrapped, not changed: its own methods may rely on its name."""

    class Renamed:
        __doc__ = type(backend).__doc__

        def __getattr__(self, attribute: str) -> Any:
            return getattr(backend, attribute)

    renamed: Any = Renamed()
    renamed.name = name
    return renamed


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"softbench_plugin_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError("is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.append(str(path.parent))  # a plugin may come with helpers beside it
    spec.loader.exec_module(module)
    return module


def source_hash(backend: Any, origin: Origin) -> str:
    """A hash of a backend's source files: the plugin file, or the folders of its package's loaded modules; and its own `sources()`."""
    digest = hashlib.sha256()
    if origin.kind == "file":
        folder = Path(origin.target).parent  # what it imported from beside it belongs to it
        loaded = [Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))]
        files = sorted({Path(origin.target), *(file for file in loaded if file.parent == folder)})
    else:
        package = origin.target.partition(":")[0].partition(".")[0]
        modules = [m for name, m in list(sys.modules.items()) if name == package or name.startswith(package + ".")]
        folders = {Path(folder) for module in modules for folder in getattr(module, "__path__", ())}
        lone = {Path(file) for module in modules if (file := getattr(module, "__file__", None))}
        files = sorted({f for folder in folders if folder.is_dir() for f in folder.iterdir() if f.suffix in SOURCES} | lone)
    own = getattr(backend, "sources", None)
    for file in [*files, *(own() if callable(own) else ())]:
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def offer_to_json(offer: Offer) -> dict[str, Any]:
    """For the pipe between worker and parent."""
    return asdict(offer)


def offer_from_json(data: dict[str, Any], door: Origin) -> Offer:
    """The inverse of `offer_to_json`, for what came through `door`: a worker's word is only data.

    Raises:
        KeyError, TypeError, ValueError: it is no offer.
    """
    offer = typed(Offer, {**data, "origin": door, "loaded": True})
    if not NAME.fullmatch(offer.name):
        raise ValueError("an offer without a name")
    return offer
