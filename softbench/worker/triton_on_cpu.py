"""Lets Triton kernels of plugins and of the gallery run without a GPU, in Triton's interpreter: checked on a few rows, never timed.

The interpreter itself lacks four things that kernels use. Autotuners and launch heuristics ask a driver; code around a launch enters
`torch.cuda.device`; a conversion to bfloat16 truncates, where a GPU rounds to nearest, so right results exceed their bound; and operators
take the bits of bfloat16 for integers.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from importlib import resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from softbench.plugins.backendbench_solutions import files_of
from softbench.plugins.source import PluginSource

VARIABLE = "TRITON_INTERPRET"
REASON = "Triton's interpreter, as there is no GPU"
ROWS = 32  # the interpreter takes about a millisecond for each program
IMPORTS = re.compile(r"(?:^|;)\s*(?:from\s+|import\s+(?:[^\n#;]*,\s*)?)triton\b", re.MULTILINE)
KERNEL = re.compile(r"\bjit\b")
"""Without it a file only asks whether Triton is there, or calls kernels of a package, which need a GPU."""
DEVICE = {
    "multiprocessor_count": 132,
    "max_shared_mem": 232448,
    "max_num_regs": 65536,
    "warpSize": 32,
    "mem_clock_rate": 2619000,
    "mem_bus_width": 5120,
    "sm_clock_rate": 1980000,
}
"""Properties of an H100, for heuristics that choose a launch by them."""
LAUNCHED = SimpleNamespace(
    n_regs=32, n_spills=0, metadata=SimpleNamespace(shared=0, num_warps=4), _init_handles=lambda: None, shared=0, num_warps=4
)
"""What `kernel.warmup(...)` returns, as tutorials ask a compiled kernel for its registers."""


def prepare(source: PluginSource) -> tuple[str, int] | None:
    """Select the interpreter if a plugin's file, or one beside it, has Triton kernels, and there is no GPU. Before the plugin's import.

    Returns what `softbench.plugins.traits.interpreted` says of its backends, or None if it is not selected.
    """
    if (
        torch.cuda.is_available()
        or (file := source.file or _of_gallery(source)) is None
        or os.environ.get(VARIABLE, "1") != "1"
        or "triton" in sys.modules
    ):
        return None
    with suppress(OSError):
        files = files_of(file) if file.is_dir() else [file, *_imported(file)]
        texts = [one.read_text(errors="replace") for one in files]
        if not any(IMPORTS.search(text) and KERNEL.search(text) for text in texts):
            return None
    os.environ[VARIABLE] = "1"
    try:
        from triton.runtime import driver, interpreter
    except ImportError:  # the plugin's own import gives the reason
        return None
    driver.set_active(_Driver())
    torch.cuda.device = cast(Any, lambda device: nullcontext())  # type: ignore[misc]
    torch.cuda.current_device = lambda: 0
    _mend_bfloat16(interpreter)
    run = interpreter.InterpretedFunction.run
    interpreter.InterpretedFunction.run = lambda self, *given, warmup=False, **named: (
        LAUNCHED if warmup else run(self, *given, warmup=False, **named)
    )
    return REASON, ROWS


def _of_gallery(source: PluginSource) -> Path | None:
    """The file of a strategy of `softbench.backends.gallery`; None for another source."""
    module, _, stem = source.target.partition(":")
    return Path(str(resources.files("softbench.kernels.gallery"))) / f"{stem}.py" if module == "softbench.backends.gallery" else None


def _imported(file: Path) -> list[Path]:
    """The Python files beside a plugin that its text imports by name."""
    lines = re.findall(r"^\s*(?:from\s+(\w+)|import\s+([^\n#;]+))", file.read_text(errors="replace"), re.MULTILINE)
    named = {part.split()[0].partition(".")[0] for one, several in lines for part in (one or several).split(",") if part.strip()}
    return [beside for name in named if (beside := file.with_name(f"{name}.py")).is_file()]


class _Bfloat16:
    """What the interpreter holds of bfloat16, as values and as bits. Conversions round to nearest, ties to even."""

    def __init__(self, interpreter: Any) -> None:
        from triton import language

        self.handle, self.kind, self.wide_kind = interpreter.TensorHandle, language.bfloat16, language.float32

    def rounded(self, values: Any) -> Any:
        import numpy

        bits = values.astype(numpy.float32).view(numpy.uint32).astype(numpy.uint64)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)
        return self.handle(numpy.where(numpy.isnan(values), numpy.uint16(0x7FC0), nearest), self.kind)

    def widened(self, handle: Any) -> Any:
        import numpy

        return (numpy.asarray(handle.data).astype(numpy.uint32) << 16).view(numpy.float32)

    def wide(self, handle: Any) -> Any:
        return self.handle(self.widened(handle), self.wide_kind) if handle.dtype.scalar == self.kind else handle


def _mend_bfloat16(interpreter: Any) -> None:
    """Let conversions to bfloat16 round to nearest, and operators compute with its values, not with its bits."""
    builder, of16 = type(interpreter.interpreter_builder), _Bfloat16(interpreter)

    def rounding(convert: Callable[..., Any]) -> Callable[..., Any]:
        def converted(self: Any, src: Any, dst_type: Any, *mode: Any) -> Any:
            of, to = src.dtype.scalar, dst_type.scalar
            if to == of16.kind and of != of16.kind and not of.is_fp8():
                return of16.rounded(src.data)
            return convert(self, src if to in (of16.kind, of16.wide_kind) else of16.wide(src), dst_type, *mode)

        return converted

    def of_values(apply: Callable[..., Any]) -> Callable[..., Any]:
        def applied(self: Any, *given: Any) -> Any:
            if given[0].dtype.scalar != of16.kind:
                return apply(self, *given)
            *handles, operator = given
            found = operator(*map(of16.widened, handles))
            return of16.handle(found, of16.kind) if found.dtype == bool else of16.rounded(found)

        return applied

    dot, fma = builder.create_dot, builder.create_fma
    builder.create_dot = lambda self, one, other, *rest: dot(self, of16.wide(one), of16.wide(other), *rest)
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, rounding(getattr(builder, name)))
    for name in ("unary_op", "binary_op", "ternary_op"):
        setattr(builder, name, of_values(getattr(builder, name)))
    of_three = of_values(lambda self, x, y, z, operator: fma(self, x, y, z))
    builder.create_fma = lambda self, x, y, z: of_three(self, x, y, z, lambda a, b, c: a * b + c)
    _mend_reductions(interpreter, of16)


def _mend_reductions(interpreter: Any, of16: _Bfloat16) -> None:
    """Let reductions and scans of bfloat16 compute with its values, and round each sum, as a GPU does."""
    import numpy
    from triton import language

    reduces, scans = interpreter.ReduceOps, interpreter.ScanOps
    extreme_of, sum_of = reduces.min_max, reduces.sum

    def extreme(self: Any, given: Any, *operators: Any, **named: Any) -> Any:
        one = given[0] if isinstance(given, tuple) else given
        if one.dtype.scalar != of16.kind:
            return extreme_of(self, given, *operators, **named)
        found = extreme_of(self, self.to_tensor(of16.widened(one.handle), of16.wide_kind), *operators, **named)
        value, *places = found if isinstance(found, tuple) else (found,)
        kind = language.block_type(of16.kind, value.shape) if value.type.is_block() else of16.kind
        value = language.tensor(of16.rounded(value.handle.data), kind)
        return (value, *places) if places else value

    def summed(self: Any, given: Any) -> Any:
        if given.dtype.scalar != of16.kind:
            return sum_of(self, given)
        values = of16.widened(given.handle)
        for axis in range(values.ndim) if self.axis is None else [self.axis]:
            while values.shape[axis] > 1:
                values = of16.widened(of16.rounded(sum(numpy.split(values, 2, axis))))
        return self.to_tensor(of16.rounded(values.sum(self.axis, keepdims=self.keep_dims)).data, of16.kind)

    def scanned(scan: Callable[..., Any], operator: Callable[..., Any]) -> Callable[..., Any]:
        def applied(self: Any, given: Any) -> Any:
            if given.dtype.scalar != of16.kind:
                return scan(self, given)
            values, step = numpy.moveaxis(of16.widened(given.handle), self.axis, 0), 1
            while step < len(values):
                values = numpy.concatenate((values[:step], of16.widened(of16.rounded(operator(values[step:], values[:-step])))))
                step *= 2
            return [self.to_tensor(numpy.ascontiguousarray(numpy.moveaxis(of16.rounded(values).data, 0, self.axis)), of16.kind)]

        return applied

    reduces.min_max, reduces.sum = extreme, summed
    scans.cumsum, scans.cumprod = scanned(scans.cumsum, numpy.add), scanned(scans.cumprod, numpy.multiply)


class _Driver:
    """The answers of a driver: an H100 whose every launch takes no time, so that an autotuner takes its first configuration."""

    utils = SimpleNamespace(get_device_properties=lambda device: dict(DEVICE))

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda call, quantiles=(0.5,), **options: [0.0] * len(quantiles)
