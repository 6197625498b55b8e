"""What an operation may declare, and its form in JSON. It needs no torch, so the parent process can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from softbench.core.case import DIMS, DTYPES, MAX_PARAMETERS, NAME, OP, PRESET, Direction, shape_of, valid_shape
from softbench.core.json import JsonObject
from softbench.ops import parameters
from softbench.ops.operation import AXES, CASE_DTYPE, ELEMENT_BYTES, SEEN, Operation, Pass, Preset, Share, TensorSpec, WholeCase
from softbench.ops.parameters import Parameter, Setting


def validate(operation: Operation) -> None:
    """Raises a ValueError for the first part of an operation that softbench cannot measure."""
    if not NAME.fullmatch(operation.name):
        raise ValueError(f"'{operation.name}' is no name; use 1 to 64 letters, digits and . _ : + -")
    if not all(isinstance(parameter, Parameter) for parameter in operation.parameters) or len(operation.parameters) > MAX_PARAMETERS:
        raise ValueError(f"parameters must be a tuple of at most {MAX_PARAMETERS} softbench.ops.parameters.Parameter")
    known = {parameter.name: parameter for parameter in operation.parameters}
    reserved = AXES if operation.whole else dict.fromkeys((*AXES, *DIMS, CASE_DTYPE, *ELEMENT_BYTES))
    if len(known) < len(operation.parameters) or set(known) & set(reserved):
        raise ValueError(f"its parameters need a name each, and none of {', '.join(reserved)}")
    for parameter in known.values():
        parameters.validate(parameter)
    if operation.whole:
        _validate_problem(operation)
        return
    for name, tensor in operation.tensors.items():
        _validate_tensor(name, tensor, known, scores=operation.scores)
    _validate_setting("causal", operation.causal, known)
    for name, preset in operation.presets.items():
        _validate_preset(name, preset, any_dim=operation.any_dim, scores=operation.scores)
    if not operation.passes:
        raise ValueError("it has no pass; give it one named forward")
    for direction, one in operation.passes.items():
        _validate_pass(operation, direction, one, known)
        for share in one.shares:
            _validate_setting(f"pass {direction}: shares", share.when, known)


def _validate_problem(operation: Operation) -> None:
    """The tensors of a problem have any axes. Its one pass calls it."""
    one = operation.passes.get(Direction.FORWARD)
    if one is None or len(operation.passes) > 1 or not one.inputs or not one.outputs or not set(one.in_place) <= set(one.inputs):
        raise ValueError("a problem has one pass, forward, with inputs and outputs")
    if not operation.case_dtypes or not set(operation.case_dtypes) <= set(DTYPES):
        raise ValueError(f"the dtypes of its cases must be of {', '.join(DTYPES)}")
    for (op, M, N, shape), case in operation.cases.items():
        named = OP.fullmatch(op) and min(M, N) > 0 and (not shape or valid_shape(shape, M, N))
        if not named or not {*case.call.inputs, *case.call.outputs} <= case.tensors.keys() or case.dtype not in ("", *DTYPES):
            raise ValueError(f"a case {op} {shape or f'{M}x{N}'} without its tensors")
        for name, tensor in case.tensors.items():
            if tensor.dtype not in (CASE_DTYPE, *ELEMENT_BYTES) or not all(isinstance(size, int) for size in tensor.axes):
                raise ValueError(f"tensor {name} has dtype {tensor.dtype} and shape {tensor.axes}")


def _validate_tensor(name: str, tensor: TensorSpec, known: Mapping[str, Parameter], *, scores: bool) -> None:
    axes = {*AXES, *(parameter.name for parameter in known.values() if parameter.kind == "whole" and (parameter.least or 0) >= 0)}
    if scores:
        axes |= {*DIMS, *(parameter.name for parameter in known.values() if all(map(_are_dims, parameter.choices or ("?",))))}
    if not set(tensor.axes) <= axes or len(set(tensor.axes)) < len(tensor.axes):
        raise ValueError(f"tensor {name} has axes {tensor.axes}; they must be of {' and '.join(sorted(axes))}")
    dtypes = known[tensor.dtype].choices if tensor.dtype in known else (tensor.dtype,)
    if not dtypes or not set(dtypes) <= {CASE_DTYPE, *ELEMENT_BYTES}:
        raise ValueError(f"tensor {name} has dtype {tensor.dtype}; known are {CASE_DTYPE}, {', '.join(ELEMENT_BYTES)}")
    _validate_setting(f"tensor {name}", tensor.when, known)


def _are_dims(word: str) -> bool:
    """True for a word of axes of DIMS in their order, with N and another one."""
    return word == "".join(one for one in DIMS if one in word) and len(word) > 1 and "N" in word


def _validate_preset(name: str, preset: Preset, *, any_dim: bool, scores: bool) -> None:
    if not PRESET.fullmatch(name):
        raise ValueError(f"preset '{name}' needs a name of at most 32 letters, digits, _ and - that begins with a letter")
    if isinstance(preset.shapes, str) or not preset.shapes:
        raise ValueError(f"preset {name}: shapes must be a tuple of texts such as 4096x1024")
    for text in preset.shapes:
        try:
            found = shape_of(text)
        except ValueError as error:
            raise ValueError(f"preset {name}: {error}") from None
        if scores and (len(found.sizes) != len(DIMS) or str(found) != "x".join(map(str, found.sizes))):
            raise ValueError(f"preset {name}: {text} is not ({', '.join(DIMS)})")
        if not (found.plain or any_dim or scores):
            raise ValueError(f"preset {name}: {text} is not (M, N), and the operation has no any_dim")


def _validate_setting(at: str, when: Setting, known: Mapping[str, Parameter]) -> None:
    if not when:
        return
    if when[0] not in known:
        raise ValueError(f"{at}: when names {when[0]}, which is none of its parameters")
    known[when[0]].read(when[1])


def _validate_pass(operation: Operation, direction: str, one: Pass, known: Mapping[str, Parameter]) -> None:
    if direction not in set(Direction):
        raise ValueError(f"pass {direction}: the name must be one of {', '.join(Direction)}")
    for part in ("inputs", "outputs", "reads"):
        if isinstance(names := getattr(one, part), str) or len(set(names)) < len(names):
            raise ValueError(f"pass {direction}: {part} must be a tuple of names, each once")
        for name in names:
            if name not in operation.tensors:
                raise ValueError(f"pass {direction}: {part} has {name}, which is none of its tensors")
    for share in one.shares:
        right = share.of == SEEN if isinstance(share.of, str) else 0 < share.of <= 1
        if share.tensor not in one.reads or not right or (share.of == SEEN and not operation.causal):
            raise ValueError(f"pass {direction}: the share of {share.tensor} is {share.of}; give a number up to 1 for one of its reads")
    if isinstance(one.whole, tuple):
        _validate_setting(f"pass {direction}: whole", one.whole, known)
    first = operation.tensors[one.inputs[0]] if one.inputs else None
    if first is None or first.when or not (first.has_columns or one.whole):
        raise ValueError(f"pass {direction}: its first input must have the axes M and N")
    outputs = [operation.tensors[name] for name in one.outputs]
    rows = one.whole or all(spec.axes[:1] == ("M",) or set(DIMS[:-1]) <= set(spec.axes) for spec in outputs)
    if not rows or all(spec.when for spec in outputs):
        raise ValueError(f"pass {direction}: every output must have M as its first axis, or the pass whole=True, and one must exist always")
    sizes = {"M", "N", *(parameter.name for parameter in known.values() if parameter.kind == "whole")}
    if not {size for size in one.multiply_adds if not (isinstance(size, int) and size > 0)} <= sizes:
        raise ValueError(f"pass {direction}: multiply_adds has {one.multiply_adds}; give names of {', '.join(sorted(sizes))}")


def to_json(operation: Operation) -> JsonObject:
    """An operation as JSON."""
    return asdict(
        replace(
            operation,
            tensors=dict(operation.tensors),
            passes=dict(operation.passes),
            presets=dict(operation.presets),
            parameter_values={},
            cases={},
        )
    ) | {"cases": [asdict(replace(case, tensors=dict(case.tensors))) for case in operation.cases.values()]}


def from_json(data: JsonObject) -> Operation:
    """The inverse of `to_json`; the data are untrusted.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is invalid.
    """
    whole = bool(data["whole"])
    tensors = _tensors(data["tensors"], whole=whole)
    passes = {str(name): _pass_from_json(one) for name, one in data["passes"].items()}
    known = tuple(parameters.from_json(one) for one in data["parameters"])
    presets = {str(name): Preset(tuple(map(str, one["shapes"])), str(one["doc"])) for name, one in data["presets"].items()}
    found = Operation(str(data["name"]), tensors, passes, str(data["summary"]), known, any_dim=bool(data["any_dim"]), presets=presets)
    found = replace(found, scores=bool(data["scores"]), causal=tuple(data["causal"]), whole=whole)
    cases = [case_from_json(one) for one in data["cases"]]
    found = replace(
        found,
        cases={case.extent: case for case in cases},
        case_dtypes=tuple(map(str, data["case_dtypes"])),
        solution=str(data["solution"]),
        lost=tuple(map(str, data["lost"])),
        format=str(data["format"]),
        recorded=bool(data["recorded"]),
    )
    validate(found)
    return found


def _tensors(data: JsonObject, *, whole: bool) -> dict[str, TensorSpec]:
    size = int if whole else str
    return {
        str(name): TensorSpec(tuple(map(size, one["axes"])), str(one["dtype"]), tuple(one["when"]), bool(one["only_seen"]))
        for name, one in data.items()
    }


def case_from_json(data: JsonObject) -> WholeCase:
    """A case of a problem, of `asdict`; the data are untrusted."""
    op, M, N, shape = data["extent"]
    tensors = _tensors(data["tensors"], whole=True)
    extent = str(op), int(M), int(N), str(shape)
    return WholeCase(extent, tensors, _pass_from_json(data["call"]), int(data["flops"]), str(data["dtype"]), tuple(map(str, data["spec"])))


def _pass_from_json(data: JsonObject) -> Pass:
    inputs, outputs, reads = (tuple(map(str, data[part])) for part in ("inputs", "outputs", "reads"))
    shares = tuple(Share(str(one["tensor"]), _of(one["of"]), tuple(one["when"])) for one in data["shares"])
    whole = tuple(data["whole"]) if isinstance(data["whole"], list | tuple) else bool(data["whole"])
    sizes = tuple(axis if isinstance(axis, int) else str(axis) for axis in data["multiply_adds"])
    return Pass(inputs, outputs, reads, shares, tuple(map(str, data["in_place"])), whole, sizes, bool(data["products_alone"]))


def _of(share: float | str) -> float | str:
    return share if isinstance(share, str) else float(share)
