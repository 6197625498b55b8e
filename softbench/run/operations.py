"""Users' operations: reads a file in a worker and makes its operation known to the parent process."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from softbench.core.case import REFERENCE, YARDSTICK, Value
from softbench.core.errors import UsageError
from softbench.core.json import to_json
from softbench.core.messages import INVALID_REPLY, Failure, LoadOperation, LoadSource
from softbench.core.text import did_you_mean_file, unknown
from softbench.ops import registry
from softbench.ops.declaration import from_json
from softbench.ops.operation import Operation
from softbench.plan.grammar import DEFAULTS, parse_axis, parse_operation, parse_parameters, split
from softbench.plan.settings import PHASES
from softbench.plugins.source import PluginSource, source_of
from softbench.processes.worker_pool import Lost, Pool, Worker, keep, opened

FORMATS = ("kernelbench", "kernelbot", "flashinfer", "backendbench")
"""The formats of problems that a word may name in front."""
SUFFIXES = (".py", ".json", ".yml")
"""Those of files of operations and problems."""
TASK = "task.yml"
"""The file of a kernelbot folder that stands for it."""
TRACES = ".txt"
"""The suffix of BackendBench's files of traces."""
BASELINES = PluginSource("entry point", REFERENCE, "softbench.problems.baselines:backends", "softbench")
"""Where the reference of a problem and torch.compile of it come from."""
READERS = min(8, os.cpu_count() or 1)
"""Files of different places that are read at the same time."""
MANY = 8
"""With fewer processors what runs beside the readers would delay them."""
Cases = Sequence[Mapping[str, Value]]
"""Values of a problem's parameters, each a case."""


def names(
    given: Sequence[str] | None, at: str = "--op", seconds: float = PHASES["import"], cases: Cases = (), threads: int | None = None
) -> list[str] | None:
    """The values of `--op` with the name of its operation in place of each Python file. None stays None.

    Args:
        given: names, or files that end in `.py`; each may be a list with commas.
        at: the flag or the key of a configuration, for errors.
        seconds: the deadline for one file.
        cases: those of problems that the user asks for; without them a problem's own count.
        threads: as of the session that follows, which then takes the same forkserver.

    Raises:
        UsageError: a file has no valid operation.
    """
    if given is None:
        return None
    written = [word for text in given for word in split(text)]
    written = [one for word in written for one in (_operators(word, at) if _format(word, at) == "backendbench" else [word])]
    words = [_file(word, at) for word in written]
    paths = [word for before, word in zip(written, words, strict=True) if word != before or word.endswith(SUFFIXES)]
    found = {word: registry.of_file(str(Path(word).resolve())) for word in paths}
    found = {word: "" if name and cases and registry.declared(name).whole else name for word, name in found.items()}
    if files := [file for file, known in found.items() if not known]:
        pool = opened(threads=threads)
        try:
            many = [word for before, word in zip(written, words, strict=True) if _format(before, at) == "backendbench"]
            found |= _read_all(pool, files, many, at, seconds, cases)
        except BaseException:
            pool.close(gently=False)
            raise
        keep(pool)
    for word in words:
        if word not in found and word.partition("(")[0] not in registry.names() and _exists(word):
            kind = "backendbench" if any(Path(word).glob("*/*_implementation*.py")) else "kernelbot"
            folder = f"; write {kind}:{word} for a folder of {kind}" if Path(word).is_dir() else ""
            raise UsageError(f"{at} {word}: is neither an operation nor a file of one ({', '.join(SUFFIXES)}){folder}")
    ops = [found.get(word, word) for word in words]
    for before, op in zip(written, ops, strict=True):
        if before.startswith("kernelbench:") and registry.declared(op).solution != "ModelNew":
            raise UsageError(
                f"{at} {before}: is no problem of KernelBench, because it defines no Model and get_inputs; leave out kernelbench:"
            )
    return [op for op in ops if op]


def read_in(
    python: str,
    files: Mapping[Path, tuple[str, Cases]],
    pythons: Sequence[str],
    threads: int | None = None,
    seconds: float = PHASES["import"],
    sides: Sequence[PluginSource] = (),
) -> dict[Path, Operation | UsageError]:
    """Read files of operations or problems in a worker of another environment, and make them known here; an error for each that is invalid.

    `files` has the place of each one's code and its cases. A worker reads neighbours of one place only: code may change its whole process,
    as by another default dtype. `pythons` are the interpreters of the session that follows, and `threads` is as of that. Meanwhile workers
    load the `sides`, whose forkservers then import what those needed: the workers of the session begin sooner.
    """
    found: dict[Path, Operation | UsageError] = {}
    groups = [[(file, cases) for file, (_, cases) in group] for _, group in groupby(files.items(), key=lambda one: one[1][0])]
    pool = opened(threads=threads, pythons=pythons)
    begun: list[tuple[Worker, LoadOperation]] = []
    looking: list[Worker] = []
    try:
        for number, group in enumerate(groups):
            for (first, first_cases), *_ in groups[len(begun) : number + READERS]:  # their imports take seconds
                worker, request = pool.spawn("operation", python=python), _request(first, first_cases)
                pool.send_ahead(worker, request)
                begun.append((worker, request))
            if number == 0 and (os.cpu_count() or 1) >= MANY:
                pool.preload(wait=True)
                for side in sides:
                    looking.append(pool.spawn("operation", python=side.python))
                    pool.send_ahead(looking[-1], LoadSource(to_json(side), "cpu"))
            reader: Worker | None = begun[number][0]
            for file, cases in group:
                reader = reader or pool.spawn("operation", python=python)
                request = begun[number][1] if file == group[0][0] else _request(file, cases)
                try:
                    found[file] = registry.declared(_asked(pool, reader, request, str(file), "", seconds))
                except UsageError as error:
                    found[file] = error
                    pool.discard(reader)  # the next file gets another one, as the error may have cost this one its device
                    reader = None
            if reader:
                pool.discard(reader)
        pool.preload(wait=False)
        pool.discard(*looking)
    except BaseException:
        pool.close(gently=False)
        raise
    keep(pool)
    return found


def name(given: str, parameters: Sequence[str] | None = None, sizes: Mapping[str, object] = MappingProxyType({})) -> str:
    """The one operation of values of `--op` and `--set`; raises as `names`, also if there are several or an unknown one.

    `sizes` are `--M` and `--N`, which a problem takes for parameters.
    """
    words = names([given], cases=cases_of({"set": parameters, **{axis: [str(size)] for axis, size in sizes.items() if size}})) or ()
    if len(words) == len(found := problems(words)) == 1:
        ops = dict.fromkeys(op for op, *_ in found[0].cases)
        return next(iter(ops)) if len(ops) == 1 else found[0].name
    return parse_operation(",".join(words), "--op", parse_parameters(parameters, "--set") if parameters else DEFAULTS)


def problems(ops: Sequence[str]) -> list[Operation]:
    """The problems among operations."""
    return [found for op in ops if op in registry.names() and (found := registry.declared(op)).whole]


def with_solutions(given: Sequence[str]) -> tuple[list[str], list[Path]]:
    """The operations and problems of texts, and the solutions: what follows `FORMAT:FILE` up to the next one, and those of its folder.

    A folder of BackendBench becomes its operators; a file of traces may follow it. Raises UsageError for a folder without operators.
    A solution is for the problems that it follows.
    """
    found: tuple[list[str], list[Path]] = [], []
    solves: dict[str, list[str]] = {}
    for words in map(split, given):
        after = problem = ""
        for place, word in enumerate(words):
            named = _format(word, "--problem")
            if after and not named:
                if after != "backendbench":
                    solves.setdefault(source_of(Path(word)).target, []).append(problem)
                if after != "backendbench" or not word.endswith(TRACES):
                    found[1].append(Path(word))
                continue
            after, problem = named, str(Path(_file(word, "--problem")).resolve())
            if named == "backendbench":
                traces = next((one for one in words[place:] if one.endswith(TRACES) and not _format(one, "--problem")), "")
                ops = _operators(word, "--problem", traces)
                found[0].extend(ops)
                places = [_folder(op)[0] for op in ops]
                found[1].extend({one.parent: None for one in places if _implementations(one)})
                continue
            found[0].append(word)
            found[1].extend(_beside(Path(word.partition(":")[2])) if named == "flashinfer" else ())
    registry.solve(solves)
    return found


def _folder(word: str) -> tuple[Path, str]:
    """Folder and file of traces of `backendbench:FOLDER:TRACES`."""
    text = word.partition(":")[2]
    folder, _, traces = text.rpartition(":") if text.endswith(TRACES) else (text, "", "")
    return Path(folder), traces


def _implementations(operator: Path) -> list[Path]:
    """The solutions in the folder of an operator of BackendBench."""
    return sorted(operator.glob(f"{operator.name}_implementation*.py"))


def _operators(word: str, at: str, given: str = "") -> list[str]:
    """The operators of a folder of BackendBench, or the folder of one, each as `backendbench:FOLDER[:TRACES]`. Raises UsageError."""
    folder, traces = _folder(word)
    if not folder.is_dir():
        raise UsageError(f"{at} {word}: no such folder")
    if (file := given or traces) and not Path(file).is_file():
        raise UsageError(f"{at} {word}: there is no file of traces {file}")
    folder = folder.resolve()
    several = [one for one in sorted(folder.iterdir()) if one.is_dir() and _implementations(one)]
    if not several and not _implementations(folder) and any(one.is_dir() for one in folder.iterdir()):
        raise UsageError(f"{at} {word}: no folder in it has a solution, as relu/relu_implementation_v1.py is one of relu")
    found = []
    for one in several if several and not _implementations(folder) else [folder]:
        place = Path(file).resolve() if file else _traces(one)
        found.append(f"backendbench:{one}" + (f":{place}" if place else ""))
    return found


def _traces(operator: Path) -> Path | None:
    """The file of traces in the folder of an operator, or in that of all operators."""
    for file in (*sorted(operator.glob(f"*{TRACES}")), *sorted(operator.parent.glob(f"*{TRACES}"))):
        with suppress(OSError), file.open(errors="replace") as text:
            if text.read(10) == "Operator: ":
                return file
    return None


def _file(word: str, at: str) -> str:
    """A word without its format; of a folder of kernelbot its file. Raises as `_format`."""
    given = _format(word, at)
    name = word.removeprefix(f"{given}:")
    return str(Path(name) / TASK) if given == "kernelbot" and Path(name).name != TASK else name


def _beside(definition: Path) -> list[Path]:
    """The solutions in a FlashInfer-Trace folder that has the definition."""
    root = next((folder.parent for folder in definition.resolve().parents if folder.name == "definitions"), None)
    return sorted(root.glob(f"solutions/**/{definition.stem}/*.json")) if root else []


def _format(word: str, at: str) -> str:
    """The format that a word names in front; empty without one. Raises UsageError for an unknown one, or if no file follows."""
    name, colon, file = word.partition(":")
    if not colon or "(" in name:
        return ""
    if name not in FORMATS:
        raise UsageError(f"{at} {word}: {unknown(name, (*FORMATS,), 'format of problems')}")
    if not file:
        raise UsageError(f"{at} {word}: names no file or folder after the colon")
    return name


def baselines() -> tuple[PluginSource, ...]:
    """The source of the reference backends, if a problem is known."""
    return (BASELINES,) if problems(registry.names()) else ()


def cases_of(given: Mapping[str, Any]) -> list[dict[str, Value]]:
    """The cases of a problem that options ask for: `--set` with each `--M` and `--N`. Raises UsageError for an invalid one."""
    sets = parse_parameters(given["set"], "--set") if given.get("set") else ((),)
    sizes = [[(axis, size) for size in parse_axis(",".join(given[axis]), f"--{axis}")] for axis in ("M", "N") if given.get(axis)]
    found = [{**dict(one), **dict(chosen)} for one in sets for chosen in product(*sizes)]
    return [case for case in found if case]


def sources(ops: Collection[str], every: Sequence[PluginSource]) -> tuple[PluginSource, ...]:
    """The plugin sources of a command with these operations, with the reference of its problems.

    No backend of softbench's own but the yardstick has a problem, so a run of problems alone loads no other.
    """
    found = (*every, *baselines())
    if not ops or len(problems(list(ops))) < len(ops):
        return found
    return tuple(source for source in found if not source.own or source.label in (YARDSTICK, REFERENCE))


def _read_all(pool: Pool, files: Sequence[str], many: Sequence[str], at: str, seconds: float, cases: Cases) -> dict[str, str]:
    """The names of the operations of files. Raises as `_read`.

    `many` are operators of BackendBench, whose folder may have hundreds: one that cannot be read is left out, with a line at another one.
    """
    found: dict[str, str] = {}
    lost: list[UsageError] = []
    for file in files:
        try:
            found[file] = _read(pool, file, at, seconds, cases)
        except UsageError as error:
            if file not in many:
                raise
            lost.append(error)
    others = [found[file] for file in many if file in found]
    if lost and not others:
        raise lost[0]
    if lost:
        operation = registry.declared(others[0])
        lines = (f"{str(error).removeprefix(f'{at} ').replace(': ', ' is left out: ', 1)}" for error in lost)
        registry.add(replace(operation, lost=(*operation.lost, *lines)), registry.file_of(operation.name))
    return found


def _exists(word: str) -> bool:
    with suppress(OSError):  # it is too long for the name of a file
        return Path(word).exists()
    return False


def _read(pool: Pool, file: str, at: str, seconds: float, cases: Cases = ()) -> str:
    try:
        there = registry.path_of(file) is not None or Path(file).is_dir()
    except OSError as error:
        raise UsageError(f"{at} {file}: {error.strerror}") from None
    if not there:
        raise UsageError(f"{at} {file}: no such file{did_you_mean_file(Path(file))}")
    worker = pool.spawn("operation")
    try:
        return _asked(pool, worker, _request(Path(file), cases), file, at, seconds)
    finally:
        pool.discard(worker)


def _request(file: Path, cases: Cases) -> LoadOperation:
    return LoadOperation(str(file.resolve()), tuple(map(dict, cases)))


def _asked(pool: Pool, worker: Worker, request: LoadOperation, file: str, at: str, seconds: float) -> str:
    """Have a worker read a file, and make its operation known here; returns its name. Raises UsageError."""
    reply = pool.ask(worker, request, seconds, "import")
    if isinstance(reply, Failure | Lost):
        raise UsageError(f"{at} {file}: {reply.reason}")
    try:
        operation = from_json(reply.operation)
        registry.add(operation, request.file, layouts=reply.layouts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{at} {file}: {error if isinstance(error, ValueError) else INVALID_REPLY}") from None
    return operation.name
