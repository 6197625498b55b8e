"""`softbench gate init`: finds functions of a package that may be targets, by reading its files; nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from softbench.core.errors import UsageError

MOST = 20
"""Targets of a new file, at most: about what a pull request measures in three minutes."""
TENSORS = {
    **dict.fromkeys(("x", "X", "input", "inp", "a", "A", "hidden_states", "hidden", "logits", "scores", "residual", "gate", "up"), "[M,N]"),
    **dict.fromkeys(("w", "W", "weight", "b", "B", "bias", "gamma", "beta", "scale"), "[N]"),
    **dict.fromkeys(("target", "targets", "labels", "label"), ":int64[M]<N"),
}
"""The inputs of parameters with these names."""
ON_GPU = 'M = 4096\nN = [1024, 8192]\ndtype = "bf16"'
ON_CPU = 'M = 512\nN = [1024, 4096]\ndtype = "fp32"'
"""Sizes of the inputs that take long enough to be judged."""
KERNELS = ("triton", "cutlass", "cuda", "tilelang", "torch.utils.cpp_extension", "numba", "cupy", "pallas", "ctypes")
"""What a module imports that has or calls kernels; also a compiled module beside it, such as `._C`."""
REFERENCES = ("_ref", "_reference")
"""How the names of functions end that a package tests its kernels with."""
SKIPPED = ("test", "tests", "docs", "examples", "build", "dist", "setup.py", "conftest.py")


@dataclass(frozen=True, slots=True)
class Found:
    """A function that may be a target."""

    function: str
    inputs: str
    """Empty for a benchmark."""
    missing: str = ""
    """The first parameter whose value nothing tells; empty if there is none."""


def targets_text(folder: Path = Path()) -> tuple[str, int]:
    """The text of a file of targets for the package of a folder, and the number of its targets.

    Raises:
        UsageError: there is no package, or it has no such function.
    """
    found = scan(folder)
    if not found:
        raise UsageError(
            f"gate init: no function in {folder.resolve().name} looks like a kernel or a benchmark; write softbench.toml by hand: "
            "[[target]], then function = 'MODULE:NAME' and inputs = 'x[M,N]'"
        )
    gpu = any(file for name in ("nvidia[0-9]*", "kfd", "dxg") for file in Path("/dev").glob(name))
    ready = [one for one in found if not one.missing][:MOST]
    others = [one for one in found if one.missing]
    lines = [
        "# Functions that `softbench gate` measures in the working tree and in its merge base with the main branch.",
        "# Check the inputs: softbench took them from the names of parameters. M and N are numbers, lists or ranges such as 1024:16384:*4.",
        '# build = ["pip install --no-build-isolation ."]',
        "margin = 3                      # percent that may be slower",
        *(() if gpu else ("# Sizes for the CPU, as this machine has no GPU.",)),
    ]
    for one in ready:
        lines += ["", "[[target]]", f'function = "{one.function}"']
        if one.inputs:
            lines += [f'inputs = "{one.inputs}"', ON_GPU if gpu else ON_CPU]
    if others:
        lines += ["", "# Without inputs, as softbench does not know the named parameter:"]
        lines += [f'# function = "{one.function}"    # {one.missing}' for one in others]
    return "\n".join(lines) + "\n", len(ready)


def scan(folder: Path = Path()) -> list[Found]:
    """The functions of the package and the benchmarks of a folder, those of modules with kernels first, and of these the outer ones."""
    found: list[tuple[int, Found]] = []
    for file, module in _modules(folder):
        try:
            tree = ast.parse(file.read_text("utf-8", "replace"))
        except (SyntaxError, ValueError):
            continue
        found += [(rank, one) for rank, one in _of_module(tree, module)]
    for file in sorted((*folder.glob("**/bench*.py"), *folder.glob("**/test_bench*.py"))):
        if not any(part.startswith((".", "build", "results")) for part in file.relative_to(folder).parts):
            found += [(0, one) for one in _benchmarks(file, folder)]
    unique = {one.function: (rank, one) for rank, one in found}
    return [one for _, one in sorted(unique.values(), key=lambda each: (each[0], each[1].function.count(".")))]


def _modules(folder: Path) -> Iterator[tuple[Path, str]]:
    """The modules of the packages of a project, in `src` or beside pyproject.toml."""
    root = folder / "src" if (folder / "src").is_dir() else folder
    for package in sorted(root.iterdir()) if root.is_dir() else ():
        if not (package / "__init__.py").is_file() or package.name in SKIPPED or package.name.startswith("."):
            continue
        for file in sorted(package.rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            if not any(part in SKIPPED or part.startswith(("test", "_")) for part in parts if part != "__init__"):
                yield file, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _of_module(tree: ast.Module, module: str) -> Iterator[tuple[int, Found]]:
    """The functions of a module that take tensors, each with a rank: 1 if the module has kernels."""
    imports = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imports |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    kernels = any(name.startswith(KERNELS) or name.endswith(("_C", "_cuda")) for name in imports)
    if not kernels and not any(name.startswith("torch") for name in imports):
        return
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and not (node.name.startswith("_") or node.name.endswith(REFERENCES) or _is_kernel(node)):
            inputs, missing = _inputs(node.args, skip=0)
            if inputs or missing:
                yield 1 if kernels else 2, Found(f"{module}:{node.name}", inputs, missing)
        elif isinstance(node, ast.ClassDef):
            yield from _of_class(node, module)


def _of_class(node: ast.ClassDef, module: str) -> Iterator[tuple[int, Found]]:
    """An autograd function, or a module of torch."""
    bases = [ast.unparse(base) for base in node.bases]
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    if "forward" not in methods or node.name.startswith("_"):
        return
    inputs, missing = _inputs(methods["forward"].args, skip=1)  # without ctx or self
    missing = missing or ("" if inputs else "its inputs")
    if any("Function" in base for base in bases):
        yield 1, Found(f"{module}:{node.name}.apply", inputs, missing)
    elif any(base.endswith("Module") for base in bases):
        made = methods["__init__"].args if "__init__" in methods else None
        needs = made.args[1 : len(made.args) - len(made.defaults)] if made else []
        yield 2, Found(f"{module}:{node.name}({', '.join(one.arg for one in needs)}).forward", inputs, needs[0].arg if needs else missing)


def _is_kernel(node: ast.FunctionDef) -> bool:
    """True for a kernel of Triton and the like, which is not called, and for a contextmanager or a fixture."""
    shown = " ".join(ast.unparse(one) for one in node.decorator_list)
    return any(word in shown for word in ("jit", "kernel", "contextmanager", "fixture", "register_fake", "autotune", "heuristics"))


def _inputs(args: ast.arguments, skip: int) -> tuple[str, str]:
    """The inputs of the parameters without a default, and the first of them that is unknown."""
    named = [*args.posonlyargs, *args.args][skip:]
    required = named[: len(named) - len(args.defaults)]
    found: list[str] = []
    missing = ""
    for one in required:
        hint = ast.unparse(one.annotation) if one.annotation else ""
        shape = TENSORS.get(one.arg.strip("_")) if "Tensor" in hint or not hint else None
        shape = "[M,N]" if one.arg in ("b", "B") and found and found[-1].lower() == "a[m,n]" else shape  # of a binary function
        constant = {"eps": "1e-6", "epsilon": "1e-6", "dim": "-1"}.get(one.arg, "")
        if shape:
            found.append(f"{one.arg}{shape}")
        elif constant:
            found.append(constant)
        else:
            missing = missing or one.arg
    missing = missing or next((one.arg for one, given in zip(args.kwonlyargs, args.kw_defaults, strict=True) if given is None), "")
    if not any("[" in one for one in found):
        return "", missing if "Tensor" in " ".join(ast.unparse(one.annotation) for one in required if one.annotation) else ""
    return ", ".join(found), missing


def _benchmarks(file: Path, folder: Path) -> Iterator[Found]:
    """The benchmarks of a file: methods `time_...` of classes of asv, and tests with the fixture of pytest-benchmark."""
    try:
        tree = ast.parse(file.read_text("utf-8", "replace"))
    except (SyntaxError, ValueError):
        return
    place = file.relative_to(folder)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name.startswith("time_"):
                    yield Found(f"{place}:{node.name}.{one.name}", "")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test") and any(one.arg == "benchmark" for one in node.args.args):
            yield Found(f"{place}:{node.name}", "")
