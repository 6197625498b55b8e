"""The allowed imports between folders, and the limits on import time and on the length of functions."""

import ast
import graphlib
import re
import resource
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from softbench.ops import registry

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "softbench"

MAY_IMPORT = {
    "core": "",
    "plugins": "core",
    "ops": "core",
    "results": "core ops",
    "backends": "core plugins ops kernels",
    "processes": "core plugins ops",
    "plan": "core plugins ops",
    "problems": "core plugins ops kernels",
    "worker": "core plugins ops problems kernels",
    "run": "core plugins ops results processes plan kernels",
    "gate": "core plugins ops results plan run",
    "report": "core plugins ops results plan gate run",
    "judge": "core plugins ops problems processes worker",
    "api": "core plugins ops results plan gate run report",
    "cli": "core plugins ops results plan gate run report",
}
"""A package imports from itself and from these."""
KERNELS_MAY_IMPORT = {
    "common": "",
    "plans": "common",
    "cuda": "common plans",
    "triton": "common plans",
    "tuning": "common plans cuda triton",
    "automatic": "common cuda triton",
    "gallery": "",
}
"""The same of the packages in kernels/, which import nothing of softbench/."""
TORCH = {"ops", "backends", "problems", "worker", "judge"}
"""Packages whose modules run in workers or in the judge's process; the parent process never imports torch."""
HEAVY = {"torch", "triton", "numpy", "pandas", "matplotlib", "pynvml", "scipy"}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


@cache
def imported(path: Path, *, top: bool = False) -> set[str]:
    """Modules that a file imports; `top`: only those imported together with the file."""
    found: set[str] = set()
    for node in parsed(path).body if top else nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def softbench_packages(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path) if name.startswith("softbench.")} - {"__version__"}


def test_softbench_holds_packages_only():
    assert {path.name for path in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == {*MAY_IMPORT, "kernels"}


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_package_imports_only_what_it_may(name):
    for path in (PACKAGE / name).rglob("*.py"):
        assert softbench_packages(path) <= {name, *MAY_IMPORT[name].split()}, path


def test_parent_process_imports_torch_nowhere():
    for name in set(MAY_IMPORT) - TORCH:
        for path in (PACKAGE / name).rglob("*.py"):
            assert not {module.split(".")[0] for module in imported(path, top=True)} & HEAVY, path
            assert "torch" not in {module.split(".")[0] for module in imported(path)}, path


def test_nothing_that_a_worker_or_a_file_says_is_unpickled():
    for path in PACKAGE.rglob("*.py"):
        assert not {name.partition(".")[0] for name in imported(path)} & {"pickle", "marshal", "shelve", "multiprocessing", "dill"}, path
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec") or path.name == "targets.py", path  # the expression of --candidate
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("load", "read_pickle"):
                assert ast.unparse(node.func) not in ("torch.load", "numpy.load", "np.load", "pandas.read_pickle"), path


@cache
def modules() -> dict[str, Path]:
    """The package's modules, by dotted name; a package is its `__init__.py`."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
        if "kernels" not in path.parts
    }


def layers(arrows: dict[str, set[str]]) -> dict[str, int]:
    """Each name's layer, 1 for those that import no other. Raises CycleError, which names a circle."""
    order = graphlib.TopologicalSorter(arrows)
    depth: dict[str, int] = {}
    for name in order.static_order():
        depth[name] = 1 + max((depth[other] for other in arrows.get(name, ())), default=0)
    return depth


@cache
def kernel_modules() -> dict[str, Path]:
    """The modules of kernels/, such as `triton.dispatch`; a package is its `__init__.py`."""
    folder = ROOT / "kernels"
    return {".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path for path in folder.rglob("*.py")}


def kernels_imported(path: Path, *, top: bool = False) -> set[str]:
    """Modules of kernels/ that one of them imports, which is by relative imports; `top`: as for `imported`."""
    known, package = kernel_modules(), path.parent.name
    found: set[str] = set()
    for node in parsed(path).body if top else nodes(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join(([package] if node.level == 1 else []) + ([node.module] if node.module else []))
            found |= {name if name in known else base for name in (f"{base}.{alias.name}".lstrip(".") for alias in node.names)}
    return found


def test_kernels_import_only_what_they_may():
    assert {path.parent.name for path in (ROOT / "kernels").glob("*/__init__.py")} == {*KERNELS_MAY_IMPORT}
    for path in kernel_modules().values():
        package = path.parent.name
        assert {name.split(".")[0] for name in kernels_imported(path)} <= {package, *KERNELS_MAY_IMPORT[package].split()}, path


@pytest.mark.parametrize("top", [True, False])
def test_kernels_have_nine_layers_at_most_and_no_circle(top):
    """Imports inside functions count in the second case: they delay a circle and do not remove it. There may be more layers of them."""
    depth = layers(
        {name: kernels_imported(path, top=top) - {name} for name, path in kernel_modules().items() if path.name != "__init__.py"}
    )
    assert not top or {name: layer for name, layer in depth.items() if layer > 9} == {}


def test_modules_have_nine_layers_at_most_and_no_circle():
    known = modules()
    depth = layers({name: (imported(path, top=True) & known.keys()) - {name} for name, path in known.items()})
    assert {name: layer for name, layer in depth.items() if layer > 9} == {}


def test_packages_import_each_other_in_no_circle():
    folders = [PACKAGE / name for name in MAY_IMPORT]
    layers({folder.name: set().union(*map(softbench_packages, folder.rglob("*.py"))) - {folder.name, "kernels"} for folder in folders})


def test_functions_fit_a_screen():
    for path in modules().values():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 60, (path, node.name)


def test_kernels_import_nothing_of_softbench():
    for path in (ROOT / "kernels").rglob("*.py"):
        own = {module for module in imported(path) if module.startswith("softbench") and "softbench.kernels" not in module}
        assert own <= ({"softbench"} if path.parent.name == "gallery" else set()), path  # a plugin calls softbench.build


def test_parent_stays_light():
    modules = ("cli.main", "run.run", "run.doctor", "report.tables", "plugins.select", "api.measure", "api.result")
    code = f"import sys, {', '.join(f'softbench.{one}' for one in modules)}; print(sorted({HEAVY} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_whole_run_never_imports_torch_in_the_parent(cli):
    """Its forkserver is forked from the process that has torch: another process than this parent imports it in any case."""
    orders = cli.forks().orders.fileno()
    code = (
        f"import sys, atexit, socket; sys.path.append({str(ROOT / 'tests' / 'support')!r}); import forks;"
        "from softbench.processes import worker_pool;"
        f"orders = socket.socket(fileno={orders});"
        "worker_pool.start_forkserver = lambda log, environment, *others: forks.start_forkserver(orders, log, environment, *others);"
        "atexit.register(lambda: print('HEAVY', sorted({'torch', 'numpy', 'pandas'} & set(sys.modules))));"
        "sys.argv = ['softbench', 'run', '--backends', 'torch', '--device', 'cpu', '--M', '4', '--N', '8', '--quick'];"
        "from softbench.cli.main import main; main()"
    )
    given = {"cwd": cli.folder, "env": cli.env, "capture_output": True, "text": True, "timeout": 120, "check": False}
    done = subprocess.run([sys.executable, "-c", code], pass_fds=[orders], **given)
    assert done.returncode in (0, 5), done.stderr  # 5: other programs use the processors now
    assert "HEAVY []" in done.stdout


def test_help_takes_at_most_a_fifth_of_a_second():
    def seconds(*options: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *options], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # CPU time: other processes on the machine do not count
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    if any(seconds("-m", "softbench", "--help") <= 0.2 for _ in range(6)):
        return
    # Other processes on a core's second thread double the CPU time, also that of importing Typer, which takes .07 s without them.
    helps, imports = zip(*((seconds("-m", "softbench", "--help"), seconds("-c", "import typer.main")) for _ in range(6)), strict=True)
    assert min(helps) <= 2.5 * min(imports)


def test_pyproject_lists_every_package():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapped = tool["package-dir"]
    folders = {".".join(path.parent.relative_to(ROOT).parts) for path in PACKAGE.rglob("__init__.py")}
    folders |= {f"softbench.kernels.{path.parent.name}" for path in (ROOT / "kernels").glob("*/__init__.py")} | {"softbench.configs"}
    assert set(tool["packages"]) == folders
    assert all((ROOT / folder / "__init__.py").is_file() for folder in mapped.values())
    assert not (ROOT / "kernels" / "__init__.py").exists()  # the import name `kernels` is another project's


def test_only_traits_reads_a_backends_traits():
    traits = {
        "compiles",
        "compilations",
        "build_seconds",
        "interpreted",
        "summary",
        "advice",
        "extra",
        "reuses_output",
        "generated",
        "over_dim",
    }
    for path in modules().values():
        if path.name == "traits.py":
            continue
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                assert not (isinstance(node.args[1], ast.Constant) and node.args[1].value in traits), (path, node.lineno)


MAY_NAME = {
    "core/case.py": "the operation of older files, which name none",
    "ops/registry.py": "the names of all operations",
    "problems/own_kernel.py": "the functions of torch that softbench.kernels has too",
    "worker/guarding/caller_state.py": "torch's settings of matrix products",
    "worker/timing/matrix_products.py": "torch's settings of matrix products",
}
"""Modules that name an operation in code, with the reason. `backends` and `kernels` compute operations, and `ops/NAME.py` is one."""
NAMED = re.compile("|".join(registry.NAMES))


def in_code(inside: Sequence[ast.AST]) -> Iterator[str]:
    """The identifiers and strings that name an operation, without docstrings."""
    texts = {id(node.value) for node in inside if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in inside:
        for _, value in ast.iter_fields(node):
            if isinstance(value, str) and id(node) not in texts and NAMED.search(value):
                yield f"{getattr(node, 'lineno', 0)}: {value}"


def test_no_other_module_names_an_operation():
    found = {}
    for path in modules().values():
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "backends" and not (parts[0] == "ops" and path.stem in registry.NAMES) and (lines := list(in_code(nodes(path)))):
            found["/".join(parts)] = lines
    assert set(found) == set(MAY_NAME), found
    assert len(found["core/case.py"]) == 1  # OPERATION itself


def test_names_in_docstrings_are_not_code():
    named = "from softbench.ops.softmax import spec", "def softmax(): 'softmax'", "y = torch.log_softmax(x, f'a softmax')"
    assert len(list(in_code(tuple(ast.walk(ast.parse("'softmax'\nx = 1\n'softmax'\n" + "\n".join(named))))))) == 4


def test_other_packages_import_no_module_of_an_operation():
    of_operations = tuple(f"softbench.ops.{name}" for name in registry.NAMES)
    for path in modules().values():
        if not path.is_relative_to(PACKAGE / "ops"):
            assert not any(name.startswith(of_operations) for name in imported(path)), path
