"""The trees of a problem's case: which leaves are tensors, and how a call of tensors becomes a call of the problem."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum, auto
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from inspect import signature
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_map,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)  # fmt: skip

from softbench.core.case import DTYPES as CASE_DTYPES, MAX_DIMENSIONS, MAX_EXTENT, Case, Shape, Value, op_text
from softbench.core.errors import UsageError
from softbench.core.json import JsonObject
from softbench.core.toolchain import BY_NVML
from softbench.ops.declaration import case_from_json
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.operation import CASE_DTYPE, Extent, Pass, TensorSpec, WholeCase
from softbench.problems.own_kernel import Operators
from softbench.problems.problem import SIZES, Arguments, Problem, drawn

NAMES = {dtype: name for name, dtype in TENSOR_DTYPES.items()}
Tensors = tuple[torch.Tensor, ...]
DYNAMO, SETTINGS = "torch._dynamo", "torch._dynamo.config"
IMPORTING = ("__enum__", "default_factory_module")
"""Keys by which torch's trees in JSON import a module."""


class Leaf(Enum):
    """What stands for the leaves of a tree."""

    TENSOR = auto()
    NUMBER = auto()
    """Of an output: it becomes a tensor."""
    NOTHING = auto()
    """Of an output: it is not compared."""


TENSOR, NUMBER, NOTHING = Leaf


@dataclass(frozen=True, slots=True)
class Layout:
    """The trees of a case."""

    given: TreeSpec
    """Of the positional and the named arguments."""
    leaves: tuple[object, ...]
    """TENSOR, or the constant that stands there."""
    returned: TreeSpec
    kinds: tuple[object, ...]
    """Of the leaves of the output: TENSOR, NUMBER or NOTHING; the number of the input that it is, if what is returned counts."""
    in_place: tuple[int, ...]
    """The numbers of the inputs that the reference changes."""
    inputs: tuple[str, ...]
    """The names of its inputs."""
    outputs: tuple[str, ...]
    """The names of what it returns, and of what its changed inputs become."""
    case: WholeCase
    own: str = ""
    """The function of softbench.kernels that is the reference (`softbench.problems.own_kernel`), if one is."""

    def tensors(self, tree: Any) -> Tensors:
        """The tensors of inputs.

        Raises:
            TypeError: their tree, or one of their constants, is another than that of the case.
        """
        leaves, spec = tree_flatten(arguments(tree))
        if spec != self.given:
            raise TypeError("inputs returns another tree for another seed")
        for before, now in zip(self.leaves, leaves, strict=True):
            if isinstance(now, torch.Tensor) is not (before is TENSOR) or (before is not TENSOR and not _equal(before, now)):
                raise TypeError(
                    f"inputs returns {now!r:.40} for one seed and {before!r:.40} for another; give changing numbers in a tensor"
                )
        return tuple(leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor))

    def called(self, function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> Any:
        """What a function returns for these inputs."""
        left = iter(tensors)
        args, named = tree_unflatten([next(left) if leaf is TENSOR else leaf for leaf in self.leaves], self.given)
        return function(*args, **named)

    def results(self, out: Any, tensors: Sequence[torch.Tensor]) -> Tensors:
        """The tensors of an output, and the inputs that the call changed.

        Raises:
            TypeError: its tree is another than the reference's.
        """
        leaves, spec = tree_flatten(out)
        if spec != self.returned and any(kind is not NOTHING for kind in self.kinds):
            kinds = [TENSOR if isinstance(kind, int) else kind for kind in self.kinds]
            raise TypeError(_apart(out, tree_unflatten(kinds, self.returned)))
        pairs = [*zip(leaves, self.kinds, strict=False)]
        found = [leaf if kind is TENSOR else _number(leaf, tensors[0].device) for leaf, kind in pairs if kind in (TENSOR, NUMBER)]
        changed = dict(enumerate(tensors)) | {kind: leaf for leaf, kind in pairs if isinstance(kind, int)}
        return (*found, *(changed[place] for place in self.in_place))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(map(int, self.case.tensors[name].axes))

    @property
    def plain(self) -> bool:
        """True if a call gets its tensors as arguments, and returns a tensor or a tuple of tensors."""
        simple_in = self.given == tree_flatten(((TENSOR,) * len(self.leaves), {}))[1] and all(leaf is TENSOR for leaf in self.leaves)
        specs = [tree_flatten(TENSOR)[1]] if len(self.kinds) == 1 else [tree_flatten((TENSOR,) * len(self.kinds))[1]]
        return simple_in and self.returned in specs and all(kind is TENSOR for kind in self.kinds) and not self.in_place

    def adapted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of the problem as one of tensors."""
        if self.plain:
            return function
        one = len(self.outputs) == 1

        def call(*tensors: torch.Tensor) -> Any:
            found = self.results(self.called(function, tensors), tensors)
            return found[0] if one else found

        return call

    def writing(self, function: Callable[..., Any], case: Case) -> Callable[..., Any]:
        """A function that writes its last arguments, as one that returns them; each call gets new memory for them."""
        returned = self.outputs[: len(self.outputs) - len(self.in_place)]
        due = [(self.shape(name), TENSOR_DTYPES[self.case.tensors[name].dtype_of(case)]) for name in returned]

        def call(*tensors: torch.Tensor) -> Any:
            made = [torch.empty(shape, dtype=dtype, device=tensors[0].device) for shape, dtype in due]
            self.called(lambda *args, **named: function(*args, *made, **named), tensors)
            found = (*made, *(tensors[place] for place in self.in_place))
            return found[0] if len(found) == 1 else found

        return call


def pack(layouts: Mapping[Extent, Layout]) -> bytes:
    """Layouts as JSON for other workers, which then need not follow the shapes; empty if a tree or a leaf cannot be sent."""
    with suppress(Exception):  # torch raises several
        return json.dumps([_packed(layout) for layout in layouts.values()]).encode()
    return b""


def unpack(data: bytes) -> dict[Extent, Layout]:
    """The inverse of `pack`, of data from the worker that read the problem; none if they are invalid."""
    with suppress(Exception), warnings.catch_warnings():  # a class of the problem's file, which this worker may know by another name
        warnings.simplefilter("ignore")  # of torch, about its own class of trees
        return {found.case.extent: found for found in map(_unpacked, json.loads(data))}
    return {}


def _packed(layout: Layout) -> JsonObject:
    trees = [treespec_dumps(spec) for spec in (layout.given, layout.returned)]
    if [treespec_loads(tree) for tree in trees] != [layout.given, layout.returned]:
        raise TypeError  # such as a dict by tuples, which JSON has as lists
    leaves = [[_packed_leaf(leaf) for leaf in of] for of in (layout.leaves, layout.kinds)]
    case = asdict(replace(layout.case, tensors=dict(layout.case.tensors)))
    return {"trees": trees, "leaves": leaves, "in_place": layout.in_place, "inputs": layout.inputs, "outputs": layout.outputs, "case": case,
            "own": layout.own}  # fmt: skip


def _packed_leaf(leaf: object) -> Any:
    if leaf is None or type(leaf) in (bool, int, float, str):
        return leaf
    if isinstance(leaf, torch.dtype):
        return ["dtype", NAMES[leaf]]
    if isinstance(leaf, Leaf):
        return ["leaf", leaf.name]
    raise TypeError


def _unpacked(data: JsonObject) -> Layout:
    if any(map(_imports, data["trees"])):
        raise ValueError
    (given, returned), (leaves, kinds) = map(treespec_loads, data["trees"]), [tuple(map(_unpacked_leaf, of)) for of in data["leaves"]]
    in_place, inputs, outputs = (tuple(data[name]) for name in ("in_place", "inputs", "outputs"))
    return Layout(given, leaves, returned, kinds, in_place, inputs, outputs, case_from_json(data["case"]), data["own"])


def _imports(node: Any) -> bool:
    """Whether JSON, with that in its texts, has a key of IMPORTING."""
    if isinstance(node, str):
        with suppress(ValueError):
            return _imports(json.loads(node))
    elif isinstance(node, dict):
        return any(key in IMPORTING or _imports(value) for key, value in node.items())
    return isinstance(node, list) and any(map(_imports, node))


def _unpacked_leaf(leaf: Any) -> object:
    if not isinstance(leaf, list):
        return leaf
    kind, name = leaf
    return Leaf[name] if kind == "leaf" else TENSOR_DTYPES[name]


def _equal(before: Any, now: Any) -> bool:
    """True for equal constants, and for two NaNs, which differ from themselves."""
    return bool(before == now or (before != before and now != now))


def arguments(tree: Any) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of inputs."""
    if isinstance(tree, Arguments):
        return tree.args, tree.named
    if isinstance(tree, dict):
        return [], tree
    return (list(tree), {}) if isinstance(tree, tuple | list) else ([tree], {})


def layout_of(problem: Problem, op: str, values: Mapping[str, Value]) -> Layout:
    """The layout of a case of a problem; nothing is computed if torch can follow shapes alone.

    Raises:
        UsageError: the problem has no such inputs or outputs. Exceptions of its own code pass through.
    """
    dtypes = [TENSOR_DTYPES[dtype] for dtype in problem.traced[: 1 + problem.takes_dtype]]
    found, *others = (_traced(problem, values, dtype) for dtype in dtypes)
    other = next(iter(others), found)
    specs = {
        name: _spec(name, [one.dtype, two.dtype] == dtypes, one)
        for (name, one), two in zip(found.named.items(), other.named.values(), strict=True)
    }
    dtype = next((NAMES[one.dtype] for one in found.named.values() if NAMES.get(one.dtype) in CASE_DTYPES), "fp32")
    M, N, shape = _extent(values, next(iter(found.named.values())).shape)
    call = Pass(found.inputs, found.outputs, (*found.inputs, *found.state), (), tuple(found.inputs[place] for place in found.in_place))
    case = WholeCase((op, M, N, shape), specs, call, found.flops, "" if problem.takes_dtype else dtype, problem.spec(values))
    return Layout(found.given, found.leaves, found.returned, found.kinds, found.in_place, found.inputs, found.outputs, case, found.own)


def moved(tree: Any, device: torch.device) -> Any:
    """Inputs on a device."""
    return tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, tree)


@dataclass(frozen=True, slots=True)
class _Traced:
    given: TreeSpec
    leaves: tuple[object, ...]
    returned: TreeSpec
    kinds: tuple[object, ...]
    in_place: tuple[int, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    state: tuple[str, ...]
    named: dict[str, torch.Tensor]
    flops: int
    own: str


def _traced(problem: Problem, values: Mapping[str, Value], dtype: torch.dtype) -> _Traced:
    if not problem.recorded:  # a function of a package launches kernels, which need memory
        from torch._subclasses.fake_tensor import FakeTensorMode

        for around in (nullcontext,) if DYNAMO in sys.modules else (_soon, nullcontext):
            with suppress(Exception), around():  # the call with values shows the cause
                return _trace(problem, values, dtype, FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"))
    with nullcontext() if DYNAMO in sys.modules else _asked():
        return _trace(problem, values, dtype, nullcontext(), torch.device("cuda" if torch.cuda.is_available() else "cpu"))


@contextmanager
def _soon() -> Iterator[None]:
    """Leaves out what takes torch's modes seconds in a new process.

    They start CUDA to find out whether there is a GPU, and ask again at each operator; NVML tells that, once. See also `_stand_in`.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    looking, without_gpu = vars(FakeTensorMode)["avoid_device_init"], not _has_gpu()
    type.__setattr__(FakeTensorMode, "avoid_device_init", without_gpu)
    try:
        with _stand_in():
            yield
    finally:
        type.__setattr__(FakeTensorMode, "avoid_device_init", looking)


@contextmanager
def _asked() -> Iterator[None]:
    """Lets the mode that counts operations ask Dynamo's stand-in before a function is called, which may need Dynamo itself."""
    from torch.utils.flop_counter import FlopCounterMode

    with ExitStack() as end:
        with _stand_in(end), FlopCounterMode(display=False):
            torch.zeros(1)
        yield


@contextmanager
def _stand_in(end: ExitStack | None = None) -> Iterator[None]:
    """A stand-in for Dynamo: torch's modes import it to read its settings, and to have their own functions left alone.

    They keep the answer, until this ends or `end` does.
    """
    asked: list[Any] = []

    def disable(function: Any, *_: object, **__: object) -> Any:
        asked.append(function)
        return function

    def forget() -> None:
        for function in asked:
            vars(function).pop("__dynamo_disable", None)

    with ExitStack() as own:
        (end or own).callback(forget)
        (stand_in := ModuleType(DYNAMO)).__dict__.update(config=_settings(), disable=disable)
        sys.modules |= {DYNAMO: stand_in, SETTINGS: _settings()}
        try:
            yield
        finally:
            del sys.modules[DYNAMO], sys.modules[SETTINGS]


@cache
def _has_gpu() -> bool:
    """What `torch.cuda.is_available` finds without a start of CUDA."""
    before = os.environ.get(BY_NVML)
    os.environ[BY_NVML] = "1"
    try:
        return torch.cuda.is_available()
    finally:
        del os.environ[BY_NVML]
        os.environ |= {BY_NVML: before} if before is not None else {}


@cache
def _settings() -> ModuleType:
    """Dynamo's settings, without its package."""
    spec = spec_from_file_location(SETTINGS, f"{torch.__path__[0]}/_dynamo/config.py")
    if spec is None or spec.loader is None:
        raise ImportError(SETTINGS)
    sys.modules[SETTINGS] = found = module_from_spec(spec)
    try:
        spec.loader.exec_module(found)
    finally:
        del sys.modules[SETTINGS]
    return found


def _trace(problem: Problem, values: Mapping[str, Value], dtype: torch.dtype, mode: Any, device: torch.device) -> _Traced:
    from torch.utils.flop_counter import FlopCounterMode

    with mode:
        tree = moved(drawn(problem, values, 0, dtype, device), device)
        paths, given = tree_flatten_with_path(arguments(tree))
        reference = problem.reference(device)
        inputs = _input_names(reference, [path for path, leaf in paths if isinstance(leaf, torch.Tensor)])
        tensors = [leaf for _, leaf in paths if isinstance(leaf, torch.Tensor)]
        if not tensors:
            raise UsageError("inputs returns no tensor")
        for path, leaf in paths:
            if type(leaf).__module__.startswith("numpy"):
                raise UsageError(f"inputs returns {type(leaf).__name__} at {keystr(path)}; give a tensor")
        versions = [tensor._version for tensor in tensors]
        before = [tensor.clone() for tensor in tensors] if problem.recorded else []  # a kernel of another language counts no version
        args, named = tree_unflatten([leaf for _, leaf in paths], given)
        counter, operators = FlopCounterMode(display=False), Operators()
        with counter, nullcontext() if problem.recorded else operators, torch.no_grad():
            out = reference(*args, **named)
        written = {place for place, version in enumerate(versions) if tensors[place]._version != version}
        written |= {place for place, kept in enumerate(before) if not _equal_bits(kept, tensors[place])}
        in_place = tuple(sorted(written))
        out_paths, returned = tree_flatten_with_path(out)
        changed_ones = {place: tensors[place] for place in in_place}
        kinds = tuple(_kind(leaf, changed_ones, returned=problem.returned) for _, leaf in out_paths)
        results = [(path, leaf) for (path, leaf), kind in zip(out_paths, kinds, strict=True) if kind in (TENSOR, NUMBER)]
        outputs = _output_names([path for path, _ in results], inputs)
        for name, (_, leaf) in zip(outputs, results, strict=True):
            if problem.recorded and any(_in_memory(leaf, tensor) for tensor in tensors):
                what = "take the others, as in MODULE:lambda x: FUNCTION(x)[0]" if len(outputs) > 1 else "add .clone(), which is timed too"
                raise UsageError(f"returns its input's memory as {name}; {what}")
        changed = tuple(f"{inputs[place]}_after" for place in in_place)
        if not outputs + changed:
            raise UsageError("the reference returns no tensor and changes none of its inputs")
        state = _state(reference, {*inputs, *outputs, *changed})
        leaves = tuple(TENSOR if isinstance(leaf, torch.Tensor) else leaf for _, leaf in paths)
        found = [leaf if isinstance(leaf, torch.Tensor) else _number(leaf, device) for _, leaf in results]
        tables = [*zip(inputs, tensors, strict=True), *zip(outputs, found, strict=True)]
        tables += [*((name, tensors[place]) for name, place in zip(changed, in_place, strict=True)), *state.items()]
        return _Traced(
            given,
            leaves,
            returned,
            kinds,
            in_place,
            inputs,
            outputs + changed,
            tuple(state),
            dict(tables),
            counter.get_total_flops(),
            operators.own(args, out),
        )


def _kind(leaf: object, changed: Mapping[int, torch.Tensor], *, returned: bool) -> object:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout != torch.strided or leaf.is_nested:
            kind = "nested" if leaf.is_nested else "sparse"
            raise UsageError(f"the reference returns a {kind} tensor; give dense ones, as by .to_dense()")
        if returned and (place := next((place for place, tensor in changed.items() if leaf is tensor), None)) is not None:
            return place
        return NOTHING if any(leaf is tensor or leaf._base is tensor for tensor in changed.values()) else TENSOR
    if leaf is None:
        return NOTHING
    if isinstance(leaf, bool | int | float):
        return NUMBER
    raise UsageError(f"the reference returns {type(leaf).__name__}; give tensors or numbers")


def _equal_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other)))


def _in_memory(leaf: Any, given: torch.Tensor) -> bool:
    """True for a view of the tensor."""
    return isinstance(leaf, torch.Tensor) and bool(leaf.numel()) and leaf.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()


def _number(leaf: Any, device: torch.device) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf
    return torch.tensor(leaf, device=device, dtype=torch.float64 if isinstance(leaf, float) else None)


def _state(reference: object, taken: set[str]) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module, which a call reads."""
    if not isinstance(reference, torch.nn.Module):
        return {}
    named = [*reference.named_parameters(), *reference.named_buffers()]
    return {name if name not in taken else f"{name}_of_module": tensor.detach() for name, tensor in named}


def _input_names(reference: Callable[..., Any], paths: Sequence[Any]) -> tuple[str, ...]:
    """The names of tensors among the arguments: those of the reference's parameters."""
    names: list[str] = []
    with suppress(TypeError, ValueError):
        names = list(signature(reference.forward if isinstance(reference, torch.nn.Module) else reference).parameters)
    found = []
    for side, *rest in paths:
        first, *others = rest
        key = first.idx if side.idx == 0 else 0
        name = (names[key] if key < len(names) else f"x{key}") if side.idx == 0 else str(first.key)
        found.append("_".join([name, *(_word(one) for one in others)]))
    return _distinct(found)


def _output_names(paths: Sequence[Any], taken: Sequence[str]) -> tuple[str, ...]:
    words = ["_".join(map(_word, path)) for path in paths]
    found = [(word if word and not word[0].isdigit() else f"y{word}") for word in words]
    return _distinct([f"{name}_out" if name in taken else name for name in found])


def _word(key: Any) -> str:
    return str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))))


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name if names.count(name) == 1 else f"{name}_{names[:place].count(name)}" for place, name in enumerate(names))


def _spec(name: str, follows: bool, one: torch.Tensor) -> TensorSpec:
    """The spec of a tensor, which has the dtype of the case if it `follows`."""
    if one.dtype not in NAMES:
        raise UsageError(f"{name} is {one.dtype}; softbench has {', '.join(TENSOR_DTYPES)}")
    return TensorSpec(tuple(map(int, one.shape)), CASE_DTYPE if follows else NAMES[one.dtype])


def _extent(values: Mapping[str, Value], shape: Sequence[int]) -> tuple[int, int, str]:
    """M, N and shape of a case: its parameters of these names, or the shape of its first tensor."""
    sizes = [max(1, int(size)) for size in shape]
    if named := [name for name in SIZES if name in values]:
        known = {name: int(values[name]) for name in named}
        if below := next((name for name, size in known.items() if size < 1), ""):
            raise UsageError(f"{below}={known[below]}: M and N are sizes from 1 on; give another parameter another name")
        other = prod(sizes) // next(iter(known.values())) if prod(sizes) % next(iter(known.values())) == 0 else 1
        return known.get("M", other), known.get("N", other), ""
    M, N = prod(sizes[:-1]), sizes[-1] if sizes else 1
    text = str(Shape(tuple(sizes), len(sizes) - 1)) if 2 < len(sizes) <= MAX_DIMENSIONS else ""
    return min(M, MAX_EXTENT), min(N, MAX_EXTENT), text


def op_of(problem: Problem, values: Mapping[str, Value]) -> str:
    """The op of a case of these values."""
    return op_text(problem.name, {name: value for name, value in values.items() if name not in SIZES and value != problem.parameters[name]})


def _apart(out: Any, due: Any, at: str = "") -> str:
    """Where an output has another tree than is due, in words."""
    if type(out) is type(due) and isinstance(due, dict | list | tuple) and len(out) == len(due):
        keys = list(due) if isinstance(due, dict) else range(len(due))
        if not isinstance(due, dict) or set(out) == set(due):
            for key in keys:
                if tree_flatten(out[key])[1] != tree_flatten(due[key])[1]:
                    return _apart(out[key], due[key], f"{at}[{key!r}]")
    return f"returns {_described(out)}{at and f' at {at}'} where the reference returns {_described(due)}"


def _described(tree: Any) -> str:
    if isinstance(tree, dict):
        return f"a dict of {', '.join(map(str, tree))}"
    if isinstance(tree, tuple | list):
        return f"a {type(tree).__name__} of {len(tree)}"
    return "a tensor" if tree is TENSOR or isinstance(tree, torch.Tensor) else "a number" if tree is NUMBER else type(tree).__name__
