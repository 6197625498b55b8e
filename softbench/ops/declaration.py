"""What an operation may declare, and its form in JSON. It needs no torch, so the parent process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from softbench.core.case import MAX_PARAMETERS, PRESET, Direction, shape_of
from softbench.core.json_types import JsonObject
from softbench.core.validate import NAME
from softbench.ops import parameters
from softbench.ops.operation import AXES, CASE_DTYPE, ELEMENT_BYTES, Operation, Pass, Preset, Share, TensorSpec
from softbench.ops.parameters import Parameter, Setting


def validate(operation: Operation) -> None:
    """Raises a ValueError for the first part of an operation that softbench cannot measure."""
    if not NAME.fullmatch(operation.name):
        raise ValueError(f"'{operation.name}' is no name; use 1 to 64 letters, digits and . _ : + -")
    if not all(isinstance(parameter, Parameter) for parameter in operation.parameters) or len(operation.parameters) > MAX_PARAMETERS:
        raise ValueError(f"parameters must be a tuple of at most {MAX_PARAMETERS} softbench.ops.parameters.Parameter")
    known = {parameter.name: parameter for parameter in operation.parameters}
    if len(known) < len(operation.parameters) or set(known) & {*AXES, CASE_DTYPE, *ELEMENT_BYTES}:
        raise ValueError(f"its parameters need a name each, and none of {', '.join((*AXES, CASE_DTYPE, *ELEMENT_BYTES))}")
    for parameter in known.values():
        parameters.validate(parameter)
    for name, tensor in operation.tensors.items():
        _validate_tensor(name, tensor, known)
    for name, preset in operation.presets.items():
        _validate_preset(name, preset, any_dim=operation.any_dim)
    if not operation.passes:
        raise ValueError("it has no pass; give it one named forward")
    for direction, one in operation.passes.items():
        _validate_pass(operation, direction, one)
        for share in one.shares:
            _validate_setting(f"pass {direction}: shares", share.when, known)


def _validate_tensor(name: str, tensor: TensorSpec, known: Mapping[str, Parameter]) -> None:
    axes = {*AXES, *(parameter.name for parameter in known.values() if parameter.kind == "whole" and (parameter.least or 0) >= 0)}
    if not tensor.axes or not set(tensor.axes) <= axes or len(set(tensor.axes)) < len(tensor.axes):
        raise ValueError(f"tensor {name} has axes {tensor.axes}; they must be of {' and '.join(sorted(axes))}")
    dtypes = known[tensor.dtype].choices if tensor.dtype in known else (tensor.dtype,)
    if not dtypes or not set(dtypes) <= {CASE_DTYPE, *ELEMENT_BYTES}:
        raise ValueError(f"tensor {name} has dtype {tensor.dtype}; known are {CASE_DTYPE}, {', '.join(ELEMENT_BYTES)}")
    _validate_setting(f"tensor {name}", tensor.when, known)


def _validate_preset(name: str, preset: Preset, *, any_dim: bool) -> None:
    if not PRESET.fullmatch(name):
        raise ValueError(f"preset '{name}' needs a name of at most 32 letters, digits, _ and - that begins with a letter")
    if isinstance(preset.shapes, str) or not preset.shapes:
        raise ValueError(f"preset {name}: shapes must be a tuple of texts such as 4096x1024")
    for text in preset.shapes:
        try:
            found = shape_of(text)
        except ValueError as error:
            raise ValueError(f"preset {name}: {error}") from None
        if not (found.plain or any_dim):
            raise ValueError(f"preset {name}: {text} is not (M, N), and the operation has no any_dim")


def _validate_setting(at: str, when: Setting, known: Mapping[str, Parameter]) -> None:
    if not when:
        return
    if when[0] not in known:
        raise ValueError(f"{at}: when names {when[0]}, which is none of its parameters")
    known[when[0]].read(when[1])


def _validate_pass(operation: Operation, direction: str, one: Pass) -> None:
    if direction not in set(Direction):
        raise ValueError(f"pass {direction}: the name must be one of {', '.join(Direction)}")
    for part in ("inputs", "outputs", "reads"):
        if isinstance(names := getattr(one, part), str) or len(set(names)) < len(names):
            raise ValueError(f"pass {direction}: {part} must be a tuple of names, each once")
        for name in names:
            if name not in operation.tensors:
                raise ValueError(f"pass {direction}: {part} has {name}, which is none of its tensors")
    for share in one.shares:
        if share.tensor not in one.reads or not 0 < share.of <= 1:
            raise ValueError(f"pass {direction}: the share of {share.tensor} is {share.of}; give a number up to 1 for one of its reads")
    first = operation.tensors[one.inputs[0]] if one.inputs else None
    if first is None or first.when or not first.has_columns:
        raise ValueError(f"pass {direction}: its first input must have the axes M and N")
    if not one.outputs or any(operation.tensors[name].when or not operation.tensors[name].has_rows for name in one.outputs):
        raise ValueError(f"pass {direction}: every output must have M as its first axis")


def to_json(operation: Operation) -> JsonObject:
    """An operation as JSON."""
    return asdict(
        replace(
            operation,
            tensors=dict(operation.tensors),
            passes=dict(operation.passes),
            presets=dict(operation.presets),
            values={},
        )
    )


def from_json(data: JsonObject) -> Operation:
    """The inverse of `to_json`; the data are untrusted.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is invalid.
    """
    tensors = {
        str(name): TensorSpec(tuple(map(str, one["axes"])), str(one["dtype"]), tuple(one["when"])) for name, one in data["tensors"].items()
    }
    passes = {str(name): _pass_from_json(one) for name, one in data["passes"].items()}
    known = tuple(parameters.from_json(one) for one in data["parameters"])
    presets = {str(name): Preset(tuple(map(str, one["shapes"])), str(one["doc"])) for name, one in data["presets"].items()}
    found = Operation(str(data["name"]), tensors, passes, str(data["summary"]), known, any_dim=bool(data["any_dim"]), presets=presets)
    validate(found)
    return found


def _pass_from_json(data: JsonObject) -> Pass:
    inputs, outputs, reads = (tuple(map(str, data[part])) for part in ("inputs", "outputs", "reads"))
    return Pass(inputs, outputs, reads, tuple(Share(str(one["tensor"]), float(one["of"]), tuple(one["when"])) for one in data["shares"]))
