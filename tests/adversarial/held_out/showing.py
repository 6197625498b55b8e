"""Where a wrong kernel is wrong: by more than twice the error of torch's functions, in the calls that it shows."""

import copy
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

sys.path.insert(0, str(Path(__file__).parent))
from making import (
    attention,
    gradient,
    log_gradient,
    log_softmax,
    logprob_gradient,
    logprob_of,
    loss_gradient,
    loss_of,
    rms_gradient,
    rms_norm,
    seen,
    wide,
)

PROBLEMS = {path.stem: path for path in (Path(__file__).parent / "problems").glob("*.py")}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def scores(parameters, x, *rest):
    """z of masked softmax, and the sink."""
    z, rest = wide(x) * float(parameters.get("scale", 1)), list(rest)
    if "mask" in parameters:
        mask = rest.pop(0)
        z = z + mask if parameters["mask"] == "additive" else z.masked_fill(~mask, -torch.inf)
    return z.masked_fill(~seen(x), -torch.inf) if "causal" in parameters else z, *rest


def masked_gradient(parameters, dy, y, share=None):
    dy = dy.masked_fill(~seen(dy), 0) if "causal" in parameters else dy
    g, p = wide(dy), wide(y)
    dot = (p * g).sum(-1, keepdim=True)
    dx = (p * (g - dot) * float(parameters.get("scale", 1))).to(y.dtype)
    return dx if share is None else (dx, -share * dot[..., 0])


def scaled(parameters, x, scale=None):
    return wide(x) * (float(parameters.get("scale", 1)) if scale is None else scale[:, None])


def loss_parameters(parameters):
    names = {"label_smoothing": "e", "z_loss": "z_loss", "softcap": "softcap", "ignore_index": "ignore"}
    return {names[name]: float(value) for name, value in parameters.items()}


def fused(parameters, x, target):
    loss, lse = loss_of(x, target, **loss_parameters(parameters))
    return loss, loss_gradient(x, target, lse, torch.ones_like(lse), **loss_parameters(parameters))


def both(parameters, x, dy):
    y = torch.softmax(wide(x.detach()), -1)
    return y.to(x.dtype), gradient(dy, y).to(x.dtype)


RIGHT = {
    ("softmax", "forward"): lambda p, *given: torch.softmax(scaled(p, *given), -1).to(given[0].dtype),
    ("softmax", "backward"): lambda p, dy, y: gradient(dy, y),
    ("softmax", "both"): both,
    ("log_softmax", "forward"): lambda p, x: log_softmax(x),
    ("log_softmax", "backward"): lambda p, dy, y: log_gradient(dy, y),
    ("cross_entropy", "forward"): lambda p, *given: loss_of(*given, **loss_parameters(p)),
    ("cross_entropy", "backward"): lambda p, *given: loss_gradient(*given, **loss_parameters(p)),
    ("cross_entropy", "fused"): fused,
    ("logprob", "forward"): lambda p, *given: logprob_of(*given),
    ("logprob", "backward"): lambda p, *given: logprob_gradient(*given),
    ("masked_softmax", "forward"): lambda p, *given: attention(*scores(p, *given)).to(given[0].dtype),
    ("masked_softmax", "backward"): masked_gradient,
    ("rms_norm", "forward"): lambda p, *given: rms_norm(*given, **{name: float(value) for name, value in p.items()}),
    ("rms_norm", "backward"): lambda p, *given: rms_gradient(*given),
}


def problem(name):
    spec = importlib.util.spec_from_file_location(name, PROBLEMS[name])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tensors(value):
    """The tensors of nested tuples and lists; other values are left out."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors(part)] if isinstance(value, (tuple, list)) else []


def different(got, own, own_float, exact):
    """Elements outside twice the error of torch's functions: of the element in the dtype of the case, and of the row in float32."""
    if got.shape != own.shape or got.dtype != own.dtype:
        return max(1, own.numel())
    if not got.is_floating_point():
        return int((got != own).sum())
    element, row = ((t.double() - exact).abs().nan_to_num(0, 0) for t in (own, own_float))
    error = torch.maximum(element, row.amax(-1, keepdim=True) if row.dim() > 1 else row)
    least = torch.finfo(own.dtype)
    allowed = 2 * error + least.eps * exact.abs() + least.eps * least.smallest_normal
    same = (got == exact) | (got.isnan() & exact.isnan())
    return int((~same & ~((got.double() - exact).abs() <= torch.where(exact.isfinite(), allowed, 0))).sum())


def converted(given, dtype):
    return [t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in copy.deepcopy(given)]


def truth_of(backend):
    """The operation, in float64 for inputs in float64."""
    parameters = dict(part.split("=") for part in backend.sets.split(",") if part)
    parameters = {name: value for name, value in parameters.items() if name not in ("out_dtype", "sink", "mask_axes")}
    of_rows = RIGHT.get((backend.op, backend.direction))
    if backend.op in PROBLEMS:
        return problem(backend.op).reference
    if backend.over:
        return lambda *given: of_rows({}, *(t.movedim(given[-1], -1) for t in given[:-1])).movedim(-1, given[-1])
    if "out_dtype" in backend.sets and backend.direction == "forward":
        return lambda x: of_rows(parameters, wide(x))
    if "out_dtype" in backend.sets:
        return lambda dy, y: of_rows(parameters, dy, y).to(torch.float64 if y.dtype == torch.float64 else DTYPES[backend.at["dtype"]])
    return lambda *given: of_rows(parameters, *given)


def wrong_elements(backend):
    """How many elements of outputs and inputs are wrong after the calls that a bug shows. All outputs are held until the last call."""
    torch.manual_seed(0)
    truth, held = truth_of(backend), []
    writes = backend.op in PROBLEMS and getattr(problem(backend.op), "destination", False)
    for given in backend.show():
        plain = [copy.deepcopy(t.detach()) if isinstance(t, torch.Tensor) else t for t in given]
        case = SimpleNamespace(M=given[0].shape[0], N=given[0].shape[-1], dtype=backend.at["dtype"], direction=backend.direction)
        function = backend.over_dim(backend.direction) if backend.over else backend.prepare(case)
        kinds = [copy.deepcopy(plain), converted(plain, torch.float32), converted(plain, torch.float64)]
        own, *others = [tensors(truth(*kind)) + tensors(kind) for kind in kinds]
        got = [torch.full_like(t, 7) for t in own[: len(own) - len(tensors(plain))]]
        got = function(*given, *got) or got if writes else tensors(function(*given))
        held.append((got + [t.detach() for t in tensors(given)], own, *others))
    return sum(different(*three) for kinds in held for three in zip(*kinds, strict=True))
