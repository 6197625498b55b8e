"""The rooms of the house: who may import whom, what must stay light, what must stay small."""

import ast
import json
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "softbench"

ROOMS = [
    {"model", "errors", "units", "toolchain", "generated"},  # vocabulary
    {
        "sweep",
        "config",
        "roofline",
        "labels",
        "sampling",
        "stats",
        "results",
        "compare",
        "costs",
        "store",
        "records",
        "registry",
        "glance",
        "protocol",
    }
    | {"inference", "evidence", "comparable", "gate", "against_baseline", "same_run", "baseline", "calibration"},  # pure core
    {
        "backends",
        "inputs",
        "reference",
        "correctness",
        "diagnostics",
        "guard",
        "rotation",
        "batches",
        "trial",
        "device_time",
        "telemetry",
        "timing",
        "environment",
        "catalogue",
        "compilations",
        "contract",
        "examine",
        "inspection",
        "worker",
        "nursery",
    },  # torch side
    {"boot", "pool", "lane", "plan", "ensemble", "runner", "checking", "doctor", "versus", "families", "inspecting"},  # conductor
    {"tables", "listing", "checks", "plots", "progress", "verdicts", "forest", "power"},  # views
    {"terminal", "commands", "cli", "cli_gate", "cli_baseline", "cli_inspect", "__main__"},  # door
]
"""A room may import from itself and from the rooms above it."""
HEAVY = {"torch", "triton", "numpy", "pandas", "matplotlib", "pynvml", "scipy"}
TORCH_SIDE = ROOMS[2] | {"kernels"}


def modules() -> dict[str, Path]:
    return {path.stem: path for path in PACKAGE.glob("*.py") if path.stem != "__init__"}


def imported(path: Path, *, top: bool) -> set[str]:
    """Modules that a file imports; `top`: only when it is itself imported, not inside functions or for type checkers."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if not top else iter(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" if node.module == "softbench" else node.module for alias in node.names}
    return found


def rooms_of(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path, top=False) if name.startswith("softbench.")}


def test_every_module_has_a_room():
    assert set(modules()) == set().union(*ROOMS) - {"backends"}


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_room_imports_only_from_rooms_above_it(name):
    level = next(i for i, room in enumerate(ROOMS) if name in room)
    allowed = set().union(*ROOMS[: level + 1]) | {"__version__"}
    assert rooms_of(modules()[name]) <= allowed


def test_the_parents_side_never_imports_the_torch_side():
    for name, path in modules().items():
        if name not in TORCH_SIDE:
            assert not rooms_of(path) & (TORCH_SIDE - {"backends"}), name
            assert not {module.split(".")[0] for module in imported(path, top=True)} & HEAVY, name
    for name in set(modules()) - TORCH_SIDE:
        assert "torch" not in {module.split(".")[0] for module in imported(modules()[name], top=False)}, name


def test_kernels_import_nothing_of_softbench():
    for path in (ROOT / "kernels").rglob("*.py"):
        assert not any(module.startswith("softbench") and "softbench.kernels" not in module for module in imported(path, top=False)), path


@pytest.mark.parametrize(
    "statement", ["import softbench.cli", "import softbench.runner", "import softbench.tables", "import softbench.registry"]
)
def test_the_parent_stays_light(statement):
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout))
    assert not loaded & HEAVY


def test_a_whole_run_never_imports_torch_in_the_parent(cli):
    code = (
        "import sys, atexit; atexit.register(lambda: print('HEAVY', sorted({'torch', 'numpy', 'pandas'} & set(sys.modules))));"
        "sys.argv = ['softbench', 'run', '--backends', 'torch', '--device', 'cpu', '--M', '4', '--N', '8', '--quick'];"
        "from softbench.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cli.folder, env=cli.env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "HEAVY []" in done.stdout


def test_help_feels_instant():
    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "softbench", "--help"], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)  # its own time: what else the machine does is not softbench's
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) <= 0.2


def test_no_module_is_longer_than_about_300_lines():
    lengths = {
        path: len(path.read_text().splitlines()) for folder in ("softbench", "kernels", "configs") for path in (ROOT / folder).rglob("*.py")
    }
    assert {str(path): length for path, length in lengths.items() if length > 310} == {}


def test_the_packages_of_pyproject_are_the_folders_there_are():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    mapped = tool["package-dir"]
    folders = {
        "softbench" + str(path.parent.relative_to(PACKAGE)).replace(".", "").replace("/", ".") for path in PACKAGE.glob("__init__.py")
    }
    folders |= {f"softbench.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py")}
    folders |= {f"softbench.kernels.{path.parent.name}" for path in (ROOT / "kernels").glob("*/__init__.py")} | {"softbench.configs"}
    assert set(tool["packages"]) == folders
    assert all((ROOT / folder / "__init__.py").is_file() for folder in mapped.values())
    assert not (ROOT / "kernels" / "__init__.py").exists()  # the import name `kernels` is another project's
