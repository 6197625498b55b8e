"""A problem of FlashInfer-Trace: a definition in JSON, with the workloads beside it. A solution is a JSON file, too.

A definition has named axes, inputs, outputs, and `run` in Python as its reference. `definitions/KIND/NAME.json` has its workloads in
`workloads/KIND/NAME.jsonl`, and its solutions in `solutions/AUTHOR/KIND/NAME/`. https://github.com/flashinfer-ai/flashinfer-bench
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from softbench.core.case import Value, safe_name
from softbench.core.errors import UsageError
from softbench.core.text import count
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.plugins.flashinfer_solution import module_of, read
from softbench.problems.problem import Problem, Tolerance

NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in TENSOR_DTYPES.values()}
INTEGERS = {torch.int16: 1024, torch.int32: 1024, torch.int64: 1024}
"""Random integers are below this, as its evaluator draws them; those of 8 bits take all values."""
AXES, KINDS = ("const", "var"), ("random", "scalar", "safetensors")
"""The types of an axis, and of an input of a workload."""
TOLERANCE = (1e-2, 1e-2)
"""rtol and atol of its evaluator, which accepts an element within either of them."""


class FlashInfer(Problem):
    """A definition."""

    format, solution = "flashinfer", "run"

    def __init__(self, path: Path) -> None:
        """Raises UsageError for a file that is no definition. Exceptions of its own code pass through."""
        self.path, found = path, read(path, ("name", "axes", "inputs", "outputs", "reference"))
        self.name, self.summary = safe_name(str(found["name"])), str(found.get("description") or "").partition("\n")[0]
        self._kind = str(found.get("op_type", ""))
        self._inputs, self._outputs = found["inputs"], found["outputs"]
        self._constants = {name: axis["value"] for name, axis in found["axes"].items() if axis.get("type") == "const"}
        self._constraints = _constraints(path, [str(one) for one in found.get("constraints") or ()], [*found["axes"], *self._inputs])
        for name, axis in found["axes"].items():
            _known(f"the axis {name}", axis, AXES)
        free = [name for name, axis in found["axes"].items() if axis.get("type") == "var"]
        for name, spec in {**self._inputs, **self._outputs}.items():
            if spec.get("dtype") not in NAMES:
                raise UsageError(f"{name} has the dtype {spec.get('dtype')}; softbench has {', '.join(NAMES)}")
        run = vars(module_of(path, {path.stem: found["reference"]}, path.stem)).get("run")
        if not callable(run):
            raise UsageError("its reference defines no function run")
        self._run: Callable[..., Any] = run
        self._workloads = [_workload(one, path) for one in _workloads(path, self._kind)]
        stored = [value.places for one in self._workloads for value in one.values() if isinstance(value, _Stored)]
        self.reads = [_beside(path, "workloads", self._kind), *(place for places in stored for place in places)]
        scalars = [name for name, spec in self._inputs.items() if spec.get("shape") is None]
        self.parameters = {name: self._first(name) for name in [*free, *scalars]}
        cases = [self._case(one) for one in self._workloads]
        self.cases = [case for place, case in enumerate(cases) if case not in cases[:place]] or [{}]

    def _first(self, name: str) -> Value:
        for one in self._workloads:
            if name in one:
                found: Value = one[name]
                return found
        raise UsageError(f"no workload gives a value of {name}: expected {_beside(self.path, 'workloads', self._kind)}")

    def _case(self, workload: Mapping[str, Any]) -> dict[str, Value]:
        return {name: workload[name] for name in self.parameters if name in workload}

    def inputs(self, values: Mapping[str, Value], seed: int, dtype: torch.dtype, device: torch.device) -> Any:
        """Random tensors, scalars, or those of a file, in the order of the definition."""
        axes = {**self._constants, **{name: value for name, value in values.items() if name not in self._inputs}}
        stored = next((one for one in self._workloads if all(one.get(name) == value for name, value in values.items())), {})
        found: list[Any] = []
        for name, spec in self._inputs.items():
            if spec.get("shape") is None:
                found.append(values[name])
            elif callable(load := stored.get(name)):
                found.append(load(device))
            else:
                found.append(_random([_extent(axis, axes) for axis in spec["shape"]], NAMES[spec["dtype"]], device))
                if self._kind == "sampling" and name == "probs":
                    wide = found[-1].float().exp()
                    found[-1] = (wide / wide.sum(-1, keepdim=True)).to(found[-1].dtype)
        known = {**axes, **dict(zip(self._inputs, found, strict=True))}
        for one, holds in self._constraints.items():
            if not holds(**{name: known[name] for name in signature(holds).parameters}):
                raise UsageError(f"the constraint {one} does not hold for {', '.join(f'{k}={v}' for k, v in values.items())}")
        return tuple(found)

    def reference(self, device: torch.device) -> Callable[..., Any]:
        """`run` of the definition; a dict of outputs becomes a tuple in their order."""
        return self._ordered(self._run, "its reference ")

    def ready(self, found: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        """`run` of a solution. One in destination-passing style gets its outputs, which are made anew for each call."""
        if (meant := getattr(found, "definition", self.name)) != self.name:
            raise UsageError(f"is a solution of {meant}, not of {self.name}")
        if not getattr(found, "destination", False):
            return self._ordered(found)

        def call(*given: Any) -> Any:
            axes = dict(self._constants)
            for spec, one in zip(self._inputs.values(), given, strict=True):
                axes |= dict(zip(spec.get("shape") or (), getattr(one, "shape", ()), strict=False))
            outs = [
                torch.empty([_extent(axis, axes) for axis in spec["shape"] or ()], dtype=NAMES[spec["dtype"]], device=device)
                for spec in self._outputs.values()
            ]
            found(*given, *outs)
            return outs[0] if len(outs) == 1 else tuple(outs)

        return call

    def _ordered(self, function: Callable[..., Any], who: str = "") -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            out = function(*given)
            if isinstance(out, dict):
                if lacking := [name for name in self._outputs if name not in out]:
                    raise TypeError(f"{who}returns a dict without {', '.join(lacking)}")
                out = tuple(out[name] for name in self._outputs)
            outs = out if isinstance(out, tuple | list) else (out,)
            if len(outs) != len(self._outputs):
                raise TypeError(f"{who}returns {count(len(outs), 'output')}; the definition has {', '.join(self._outputs)}")
            return outs[0] if len(outs) == 1 else out

        return call

    def tolerance(self, dtype: str) -> Tolerance | None:
        """That of its evaluator."""
        return TOLERANCE


def _beside(path: Path, what: str, kind: str) -> Path:
    """The file of a definition's workloads, in the folder that has both."""
    folder = path.parent.parent if path.parent.name == kind else path.parent
    return folder.parent / what / (kind if path.parent.name == kind else "") / f"{path.stem}.jsonl"


def _workloads(path: Path, kind: str) -> list[dict[str, Any]]:
    file = _beside(path, "workloads", kind)
    try:
        lines = file.read_text().splitlines() if file.is_file() else []
        found = [json.loads(line) for line in lines if line.strip()]
    except ValueError as error:
        raise UsageError(f"{file}: {error}") from None
    return [one["workload"] for one in found if isinstance(one, dict) and isinstance(one.get("workload"), dict)]


def _workload(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The values of axes and scalars; for a tensor of a file a function that reads it."""
    values = dict(found.get("axes") or {})
    for name, one in (found.get("inputs") or {}).items():
        _known(f"the input {name} of a workload", one, KINDS)
        if one.get("type") == "scalar":
            values[name] = one["value"]
        elif one.get("type") == "safetensors":
            values[name] = _Stored(path, str(one["path"]), str(one.get("tensor_key", name)))
    return values


class _Stored:
    """A tensor of a safetensors file; its path starts at the folder of the definitions and workloads."""

    def __init__(self, path: Path, file: str, key: str) -> None:
        self.places = [parent / file for parent in path.parents]
        self.key = key

    def __call__(self, device: torch.device) -> torch.Tensor:
        try:
            from safetensors import safe_open
        except ImportError:
            raise UsageError("a workload has tensors in safetensors files: pip install 'softbench[problems]'") from None
        place = next((one for one in self.places if one.is_file()), None)
        if place is None:
            raise UsageError(f"a workload has a tensor in {self.places[0].name}, and there is no such file")
        with safe_open(place, "pt", device=str(device)) as file:
            return file.get_tensor(self.key)


def _known(what: str, found: Mapping[str, Any], types: tuple[str, ...]) -> None:
    """Raise UsageError for a type that this version of softbench does not know."""
    if (kind := found.get("type")) not in types:
        raise UsageError(f"{what} has the type {kind}; softbench knows {', '.join(types)}: is it of a newer version of FlashInfer-Trace?")


def _constraints(path: Path, texts: list[str], names: list[str]) -> dict[str, Callable[..., bool]]:
    """Each constraint as a function of the axes and inputs that it names."""
    found: dict[str, Callable[..., bool]] = {}
    for place, text in enumerate(texts):
        used = ", ".join(name for name in names if re.search(rf"\b{re.escape(name)}\b", text))
        name = f"{path.stem}_constraint{place}"
        found[text] = vars(module_of(path, {name: f"def holds({used}):\n    return ({text})\n"}, name))["holds"]
    return found


def _extent(axis: object, axes: Mapping[str, Any]) -> int:
    if isinstance(axis, int):
        return axis
    if axis not in axes:
        raise UsageError(f"the axis {axis} of a shape is not among axes")
    return int(axes[str(axis)])


def _random(shape: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Values as its evaluator draws them."""
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, device=device).bool()
    if not dtype.is_floating_point:
        about = torch.iinfo(dtype)
        low, high = (0, INTEGERS[dtype]) if dtype in INTEGERS else (about.min, about.max + 1)
        return torch.randint(low, high, shape, device=device).to(dtype)
    found = torch.randn(shape, device=device)
    return (found.clamp(-2, 2) if dtype.itemsize == 1 else found).to(dtype)
