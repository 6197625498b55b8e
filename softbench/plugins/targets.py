"""The functions of a package that the gate compares, and a file of them that is a plugin source; only workers import them.

A function is named `MODULE:NAME`, `FILE.py:NAME`, or with an expression in place of the name, which sees what the module or file has:
`mine.norms:RMSNorm(1024).forward`. It may be a benchmark: a test of pytest-benchmark, of which the first call of its fixture is taken, or a
method `time_...` of an asv class, with its `setup` and `params`. A benchmark has its inputs already.

A file of targets (`*.targets`, JSON) has the interpreter of an environment and, by operation, the functions that it measures there.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

from softbench.core.case import Case, Value, parse_op
from softbench.core.errors import UsageError
from softbench.core.files import replacing
from softbench.core.text import one_line
from softbench.core.toolchain import PRELOADED, preload_file
from softbench.plugins.source import import_file

SUFFIX = ".targets"
OF_IMPORTS = ("TORCH", "PYTORCH", "TRITON", "CUDA_HOME", "CUDA_PATH")
"""How the names of variables begin that modules of torch and Triton read when they are imported."""
TARGET = ".target"
"""The suffix of the file of one target, which is read as a problem (`softbench.problems.target`)."""
failed: dict[str, str] = {}
"""Why targets could not be read in this worker, by their operation."""
_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
FIXTURE = "benchmark"
"""The parameter of a test of pytest-benchmark."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark of another suite: a callable without arguments for each case."""

    cases: tuple[dict[str, Value], ...]
    """The values of its parameters, each a case."""
    make: Callable[[Mapping[str, Value]], Callable[[], Any]]
    """The callable of a case."""


def resolve(text: str) -> Callable[..., Any] | Benchmark:
    """The function, method, expression or benchmark of this name, from the packages of this process.

    Raises:
        UsageError: there is none, or it cannot be called. Exceptions of the package's own code pass through.
    """
    place, colon, expression = text.partition(":")
    if not colon or not expression.strip():
        raise UsageError(f"{text}: names no function; write MODULE:FUNCTION, as in mine.rows:norm")
    module = _module(place, text)
    if not _DOTTED.fullmatch(expression):
        try:
            found = eval(expression, vars(module))  # the user's own words
        except (NameError, AttributeError, SyntaxError) as error:
            raise UsageError(f"{text}: {type(error).__name__}: {one_line(str(error))}") from None
        return _callable(text, found)
    owner: Any = None
    found = module
    for name in expression.split("."):
        owner, found = found, getattr(found, name, None)
        if found is None:
            raise UsageError(f"{place} has no {expression}")
    if inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, name)):
        return _of_class(owner, found)
    if inspect.isfunction(found) and FIXTURE in inspect.signature(found).parameters:
        return _of_fixture(text, found)
    return _callable(text, found)


def _module(place: str, text: str) -> Any:
    variables_before()
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise UsageError(f"{text}: no such file")
        return import_file(Path(place))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise UsageError(f"there is no module {error.name}") from None
        raise


def _callable(text: str, found: Any) -> Callable[..., Any]:
    if isinstance(found, type) or not callable(found):
        what = "a class; write an expression, as in" if isinstance(found, type) else f"of {type(found).__name__}, and not callable; see"
        raise UsageError(f"{text} is {what} mine.norms:RMSNorm(1024).forward")
    torch: Any = sys.modules.get("torch")  # a worker has it, and a module of torch has imported it
    if torch and isinstance(module := getattr(found, "__self__", found), torch.nn.Module) and torch.cuda.is_available():
        module.to("cuda")  # its inputs are there
    return found


def _of_class(owner: type, method: Callable[..., Any]) -> Benchmark:
    """A method of an asv class: `setup` and the method get the values of `params`."""
    params = getattr(owner, "params", None) or []
    axes: list[Sequence[Any]] = (
        [list(one) for one in params] if params and isinstance(params[0], list | tuple) else [params] if params else []
    )
    names = list(getattr(owner, "param_names", None) or (f"param{number}" for number in range(1, len(axes) + 1)))
    values = {name: {_value(one): one for one in axis} for name, axis in zip(names, axes, strict=True)}

    def make(case: Mapping[str, Value]) -> Callable[[], Any]:
        instance, given = owner(), [values[name][case[name]] for name in names]
        if callable(setup := getattr(instance, "setup", None)):
            setup(*given)
        bound = getattr(instance, method.__name__)
        return lambda: bound(*given)

    combined = product(*([(name, _value(one)) for one in axis] for name, axis in zip(names, axes, strict=True)))
    return Benchmark(tuple(dict(one) for one in combined) or ({},), make)


def _of_fixture(text: str, test: Callable[..., Any]) -> Benchmark:
    """A test of pytest-benchmark, with the values of its marks `parametrize`."""
    axes: list[list[dict[str, Any]]] = []
    for mark in getattr(test, "pytestmark", ()):
        if mark.name == "parametrize":
            names = mark.args[0].replace(" ", "").split(",") if isinstance(mark.args[0], str) else list(mark.args[0])
            rows = [getattr(row, "values", None) or ((row,) if len(names) == 1 else row) for row in mark.args[1]]
            axes.append([dict(zip(names, row, strict=True)) for row in rows])
    all_given = [{name: value for part in one for name, value in part.items()} for one in product(*axes)]
    if lacking := set(inspect.signature(test).parameters) - {FIXTURE, *all_given[0]}:
        raise UsageError(f"{text} needs the fixture {min(lacking)}; name a test that needs {FIXTURE} only, or the function that it calls")
    by_case = {_key(given): given for given in all_given}

    def make(case: Mapping[str, Value]) -> Callable[[], Any]:
        recorder = _Recorder()
        test(**{FIXTURE: recorder}, **by_case[_key(case)])
        if recorder.call is None:
            raise UsageError(f"{text} does not call its fixture {FIXTURE}")
        return recorder.call

    return Benchmark(tuple({name: _value(value) for name, value in given.items()} for given in all_given), make)


class _Recorder:
    """In place of the fixture of pytest-benchmark: it keeps the first call that it is given."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] | None = None
        self.extra_info: dict[str, Any] = {}

    def __call__(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.call = self.call or (lambda: function(*args, **named))
        return function(*args, **named)

    def pedantic(self, target: Callable[..., Any], args: Any = (), kwargs: Any = None, setup: Any = None, **_: Any) -> Any:
        given = setup() if setup else None
        args, kwargs = given or (args, kwargs)
        return self(target, *args, **(kwargs or {}))


def _value(given: Any) -> Value:
    return given if isinstance(given, bool | int | float | str) else re.sub(r"[^\w.-]+", "-", str(given)).strip("-")


def _key(values: Mapping[str, Any]) -> frozenset[tuple[str, Value]]:
    return frozenset((name, _value(value)) for name, value in values.items())


class Targets:
    """A backend whose functions are those of a file of targets."""

    summary = "functions of a package, measured by the gate"

    def __init__(self, file: Path, name: str) -> None:
        self.name = name
        given = json.loads(file.read_text("utf-8"))
        self.functions: dict[str, str] = given["functions"]
        self.operations = tuple(given["operations"])
        self.facts = {op: _facts(text, given["lent"]) for op, text in self.functions.items()}
        self.facts[""] = _kept(file.with_suffix(".versions"), partial(_versions, self.functions.values()))
        tell_modules()

    def available(self) -> str | None:
        """None: what is lacking is lacking for an operation."""
        return None

    def supports(self, case: Case) -> str | None:
        """Why the function of the case's operation cannot be had. Raises RuntimeError if it is there, and no call of it ends."""
        op = parse_op(case.op)[0]
        if op in failed and "error" not in self.facts[op]:
            raise RuntimeError(failed[op])
        return self.facts[op].get("error")

    def prepare(self, case: Case) -> Callable[..., Any]:
        """The function of the case's operation."""
        found = resolve(self.functions[parse_op(case.op)[0]])
        return found if not isinstance(found, Benchmark) else found.make  # the values of the operation make the call of a case


def _facts(text: str, lent: Sequence[str]) -> dict[str, str]:
    """Where a function is and how it is called; or why there is none. `lent` are folders of softbench's own environment."""
    try:
        found = resolve(text)
    except Exception as error:  # of the package's own import, too
        return {"error": one_line(str(error) if isinstance(error, UsageError) else f"{text}: {type(error).__name__}: {error}")}
    place = text.partition(":")[0]
    file = "" if place.endswith(".py") else str(getattr(sys.modules[place], "__file__", None) or "")
    borrowed = any(file.startswith(f"{folder}/") for folder in lent) and not file.startswith(f"{sys.prefix}/")
    facts = {"file": hashlib.sha256(file.encode()).hexdigest() if file else "", "lent": "yes" if borrowed else ""}
    if not isinstance(found, Benchmark):
        with suppress(TypeError, ValueError):  # of a builtin
            facts["signature"] = ", ".join(str(one.replace(annotation=one.empty)) for one in inspect.signature(found).parameters.values())
    return facts


def _kept(file: Path, make: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What another worker wrote into a file, else what this one makes and writes: the search of all packages takes a second."""
    if not file.exists():
        with replacing(file) as opened:
            opened.write(json.dumps(make()).encode())
    found: dict[str, str] = json.loads(file.read_bytes())
    return found


def _variables() -> dict[str, str]:
    """Without those of Inductor, which sets one itself, and whose modules no forkserver imports."""
    return {name: value for name, value in os.environ.items() if name.startswith(OF_IMPORTS) and not name.startswith("TORCHINDUCTOR_")}


@cache
def variables_before() -> dict[str, str]:
    """What the variables are when this is called first: before a package is imported."""
    return _variables()


def tell_modules() -> None:
    """Write which modules of PRELOADED this worker has by now, for the forkservers of later ones in this environment.

    They are none if the import of the package set such a variable: in a later worker these modules would be there before it.
    """
    file, late = preload_file(), _variables() != variables_before()
    if file and (late or not file.exists()):
        found = [name for name in sys.modules if name.partition(".")[0] in PRELOADED and not name.startswith("torch._inductor")]
        names = [] if late else found
        with replacing(file) as opened:
            opened.write("\n".join(names).encode())


def _versions(functions: Any) -> dict[str, str]:
    """The versions of Python, torch, Triton and the packages of the functions."""
    found = {"Python": ".".join(map(str, sys.version_info[:3]))}
    names = {one.partition(":")[0].partition(".")[0] for one in functions if not one.partition(":")[0].endswith(".py")}
    of_module = metadata.packages_distributions() if names else {}
    for name in ("torch", "triton", *sorted({of_module.get(name, [name])[0] for name in names})):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
