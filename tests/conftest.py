"""What the tests share: the command line, hand-made records, and the GPU marker."""

from __future__ import annotations

import atexit
import csv
import gc
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from forks import IMPORTS, INDUCTORS, Command, Forks, Imports, start_forkserver
from interpreted import interpreted

from softbench.core.case import Case, Direction
from softbench.core.errors import NotMeasurableError
from softbench.core.outcome import Accuracy, Batch, Build, Grade, Measured, Record, Timing
from softbench.ops import registry
from softbench.results.columns import Row
from softbench.results.document import load
from softbench.results.rows import row

TESTS = Path(__file__).parent
PLUGINS = TESTS / "plugins"
INTERPRETER = "TRITON_INTERPRET"
CHOSEN = os.environ.get(INTERPRETER)
SET_BY_INDUCTOR = {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} - os.environ.keys()
"""`softbench.run.info_cache` reads these variables."""
SLOW_FILES = (
    "processes/test_worker_pool.py",
    "adversarial/test_verdicts.py",
    "report/page/test_document.py",
    "judge/test_attacks.py",
    "cli/test_main.py",
    "judge/test_judgement.py",
    "kernels/test_operators.py",
    "cli/test_gate.py",
    "ops/test_ways.py",
    "kernels/test_packages.py",
    "test_architecture.py",
    "problems/test_kernelbench.py",
    "gate/test_packages.py",
    "ops/test_scaled_softmax.py",
    "kernels/triton/test_traceable.py",
    "cli/test_output.py",
    "gate/test_baseline_run.py",
    "api/test_assertions.py",
    "gate/test_self_test.py",
    "integration/test_faults.py",
    "report/test_plots.py",
    "kernels/automatic/test_masked_softmax.py",
    "kernels/common/test_cuda_library.py",
    "kernels/common/test_extension.py",
    "kernels/triton/test_losses.py",
    "cli/test_check.py",
    "worker/test_triton_on_cpu.py",
    "cli/test_judge.py",
    "integration/test_interrupt.py",
    "run/test_check.py",
    "problems/test_python_file.py",
    "api/test_measure.py",
    "tools/test_gate_action.py",
    "kernels/triton/test_plans.py",
    "integration/test_golden.py",
    "report/test_gate_report.py",
    "kernels/tuning/test_tuning.py",
    "worker/checking/test_contract_cases.py",
    "ops/test_masked_softmax.py",
    "gate/test_paired.py",
    "worker/timing/test_rotating_inputs.py",
    "gate/test_fresh_pairs.py",
    "gpu/test_checks_gpu.py",
    "gpu/test_invariant_gpu.py",
    "gpu/test_operations_gpu.py",
    "gpu/test_inspect_gpu.py",
    "gpu/test_tools_gpu.py",
    "gpu/test_triton_operator_gpu.py",
    "gpu/test_operators_gpu.py",
    "gpu/test_scaled_softmax_gpu.py",
    "gpu/test_triton_operator_compiled_gpu.py",
    "gpu/test_triton_losses_gpu.py",
)
"""The files whose tests take longest, about in the order of their time; those of a GPU last."""
OF_PAGES = ("report/page/test_document.py", "report/test_board.py", "report/test_embedded.py")
"""The files that have tests with a browser."""
SEARCHED: list[str] = []
"""The folders where Python searches for modules when all tests are collected, but for those of the tests."""
COMMANDS = cache(typer.main.get_command)
"""The command line, which typer would make anew for each call in this process."""


def gpus() -> list[str]:
    """The GPUs of CUDA_VISIBLE_DEVICES, else those the driver lists. Asking CUDA would fix the answer for the process."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    program = shutil.which("nvidia-smi")
    done = subprocess.run([program, "-L"], capture_output=True, text=True, check=False) if program else None
    return [str(i) for i in range(sum(line.startswith("GPU ") for line in done.stdout.splitlines()))] if done else []


def gpu_of(worker: str, devices: list[str]) -> str:
    """The GPU of a pytest-xdist process (`gw0`, `gw1`, ...)."""
    return devices[int(worker.removeprefix("gw")) % len(devices)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="store the outputs of tests/integration/test_golden.py anew")
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def by_cost(files: Sequence[Path]) -> list[Path]:
    """Slow files first, then the others in their order: a slow file that starts last would keep one process busy while the others wait."""
    order = {TESTS / name: i for i, name in enumerate(SLOW_FILES)}
    return sorted(files, key=lambda file: order.get(file, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process has all tests of pages, as each starts a browser."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return OF_PAGES[0] if file.endswith(OF_PAGES) else file

    return Scheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Before anything imports torch."""
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist would start files of few tests last, and those are the slow ones
        config.option.loadscopereorder = False
    worker, devices = os.environ.get("PYTEST_XDIST_WORKER"), gpus()
    count = 0 if worker else len(getattr(config.option, "tx", None) or ())
    if count:  # with a thread per core each, the processes would wait for each other
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    os.environ["SOFTBENCH_QUEUE"] = "off"  # tests share a device; their runs would wait for each other
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # as backends of softbench do that a test file may import
    if count and len(devices) <= 1 and not config.option.collectonly:
        shared = Imports(os.environ, many=True)
        os.environ[IMPORTS] = shared.address
        config.add_cleanup(shared.close)
        if not devices and set(config.option.tx) == {"popen"}:
            config.option.tx = [f"popen//python={shared.python()}"] * count
    if worker and len(devices) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu_of(worker, devices)
    if not count:
        gc.disable()  # until all is collected: no module of the tests' imports is garbage
    if worker:  # after all that modules register; freeing each module takes seconds, and Triton's bindings report what was not freed
        atexit.register(os._exit, 0)


def choose(interpreter: str | None) -> None:
    """Set or remove the variable that chooses Triton's interpreter."""
    if interpreter is None:
        os.environ.pop(INTERPRETER, None)
    else:
        os.environ[INTERPRETER] = interpreter


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Without a GPU, importing own_kernels chooses Triton's interpreter, also for modules that are imported later."""
    try:
        return (yield)
    finally:
        choose(CHOSEN)


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    added = [(one, dict(one)) for one in (registry._added, registry._numerics)]
    yield
    for one, before in added:  # a test's operations end with it
        one.clear()
        one.update(before)
    choose(CHOSEN)
    for name in SET_BY_INDUCTOR:
        os.environ.pop(name, None)


def pytest_collection_finish() -> None:
    own = {"", *map(str, (TESTS.parent, TESTS / "support", TESTS.parent / "tools"))}
    SEARCHED[:] = [folder for folder in sys.path if folder not in own]
    if torch := sys.modules.get("torch"):  # the first gradient from a given one imports sympy, which changes filters of warnings
        x = torch.zeros(1, requires_grad=True)
        torch.autograd.grad(2 * x, x, torch.ones(1))
    gc.enable()
    gc.freeze()  # each full collection of garbage would look at all modules and tests again
    atexit.register(gc.unfreeze)  # otherwise Triton's bindings report that all is leaked
    generic = sys.modules.get("softbench.kernels.triton.generic")
    if generic is not None and (CHOSEN == "1") != generic.INTERPRETED:
        raise pytest.UsageError(f"a test module imported own_kernels before the kernels and so chose {INTERPRETER}; exchange the imports")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.slow and "slow" not in config.option.markexpr:
        slow = [item for item in items if item.get_closest_marker("slow")]  # `keywords` has the names of folders too
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    place = {file: i for i, file in enumerate(by_cost(list(dict.fromkeys(item.path for item in items))))}
    items.sort(key=lambda item: place[item.path])
    marked = [item for item in items if item.get_closest_marker("gpu") and isinstance(item, pytest.Function)]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a CUDA GPU; torch {torch.__version__} sees none"))


def on_a_quiet_machine(code: int) -> int:
    """The exit code of a command as if no other program used the processors: they may be in use while the tests run."""
    return 0 if code == NotMeasurableError.exit_code else code


class Cli:
    """Runs `python -m softbench` in a scratch folder. A mark in the environment finds every process left behind.

    With -P Python does not search the scratch folder for modules, as with the installed `softbench`. So all tests have one environment to
    `softbench.run.info_cache`, and `list` asks workers in the first of them only.

    A call forks the command from a process with its imports (`forks`), unless the test changed a variable that imports read. `alone` and
    `start` are new processes; `start_fork` is a fork.
    """

    def __init__(self, folder: Path, forks: Callable[[], Forks] | None = None) -> None:
        self.folder, self.forks = folder, forks
        self.used: Forks | None = None
        self.mark = uuid.uuid4().hex
        kept = {name: value for name, value in os.environ.items() if name != INDUCTORS}
        self.env = {**kept, "SOFTBENCH_TEST_MARK": self.mark, "COLUMNS": "80"}

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-P", "-m", "softbench", *map(str, arguments)]

    def __call__(self, *arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        if self.forks and (forks := self.forks()).suit(self.env):
            self.used = forks
            done = forks.run([str(argument) for argument in arguments], self.folder, self.env, timeout)
            done.returncode = on_a_quiet_machine(done.returncode)
            return done
        return self.alone(*arguments, timeout=timeout)

    def alone(self, *arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """In a new process."""
        done = subprocess.run(
            self.command(*arguments), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        done.returncode = on_a_quiet_machine(done.returncode)
        return done

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments),
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the children of a shell's background job ignore it
        )

    def start_fork(self, *arguments: object) -> Command:
        """As `start`, from the forking process. Only another fork has the same hash of its source files, which `--resume` compares."""
        assert self.forks
        self.used = self.forks()
        return self.used.start([str(argument) for argument in arguments], self.folder, self.env)

    def left_behind(self) -> list[str]:
        """Command lines of live processes that this one started, directly or indirectly."""
        found = self.used.left() if self.used else []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found

    def document(self) -> dict:
        return load(self.folder / "results" / "latest.json.gz")

    def rows(self, pattern: str = "latest.csv") -> list[dict[str, str]]:
        """The lines of the results file of this name; none if there is no such file."""
        return [row for file in (self.folder / "results").glob(pattern) for row in csv.DictReader(file.read_text().split("\n"))]


@pytest.fixture(scope="session")
def forks() -> Iterator[Callable[[], Forks]]:
    """The process from which commands are forked; it starts when it is needed."""
    with ExitStack() as end:

        @cache
        def running() -> Forks:
            address = os.environ.get(IMPORTS) or end.enter_context(closing(Imports(os.environ))).address
            return end.enter_context(closing(Forks(address)))

        yield running


@pytest.fixture
def run_interpreted(forks: Callable[[], Forks]) -> Callable[..., None]:
    """Runs code that prints `fine` under Triton's interpreter: `run_interpreted(code, timeout=120)`."""
    return lambda code, **given: interpreted(forks(), code, **given)


def fork_pools(forks: Callable[[], Forks], patch: pytest.MonkeyPatch) -> None:
    """Forks the forkservers of this process too, where its environment is that of the forking process."""
    from softbench.processes import launch, worker_pool

    def start(log: Path, environment: dict[str, str], under: object = None, python: str = "") -> object:
        running = forks()
        suits = running.suit(dict(os.environ))
        if under or not suits:
            return launch.start_forkserver(log, environment, under, python)
        return start_forkserver(running.orders, log, environment, python=python)

    patch.setattr(worker_pool, "start_forkserver", start)


@pytest.fixture(autouse=True)
def _forked_pools(request: pytest.FixtureRequest, forks: Callable[[], Forks], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In all tests but those of `processes`, which start forkservers, and those of GPUs. A test's kept pool ends with it."""
    if not (request.path.is_relative_to(TESTS / "processes") or request.node.get_closest_marker("gpu")):
        fork_pools(forks, monkeypatch)
    yield
    if module := sys.modules.get("softbench.processes.worker_pool"):
        while module._kept:
            module._kept.pop()[0].close(gently=False)


@pytest.fixture
def forked_pools(forks: Callable[[], Forks], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in a test of `processes`."""
    fork_pools(forks, monkeypatch)


@pytest.fixture(scope="module")
def forked(forks: Callable[[], Forks]) -> Iterator[Callable[[], list[str]]]:
    """The same for the fixtures of a module. Yields a function that lists the processes that are left."""
    with pytest.MonkeyPatch.context() as patch:
        fork_pools(forks, patch)
        yield lambda: forks().left()


@pytest.fixture
def cli(tmp_path: Path, forks: Callable[[], Forks], request: pytest.FixtureRequest) -> Iterator[Cli]:
    runner = Cli(tmp_path, None if request.node.get_closest_marker("gpu") else forks)
    yield runner
    assert runner.left_behind() == []


@pytest.fixture
def main(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Calls the command line within this process, in a scratch folder; returns exit code, stdout and stderr.

    Plugins of earlier tests added their folders to `sys.path`. Without these and the tests' own, `softbench.run.info_cache` has one
    environment for all calls, which is that of `cli` too.
    """
    monkeypatch.setattr(sys, "path", [*SEARCHED])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setattr(typer.main, "get_command", COMMANDS)

    def call(*arguments: object) -> tuple[int, str, str]:
        from softbench.cli import main as cli

        monkeypatch.setattr(sys, "argv", ["softbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return (on_a_quiet_machine(int(ended.value.code or 0)), *capsys.readouterr())

    return call


@pytest.fixture
def fresh_compiler() -> None:
    """torch.compile has compiled nothing yet."""
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def plugins() -> Path:
    return PLUGINS


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """Makes a measured record; `medians` are the latencies of its rounds in microseconds."""

    def make(
        backend: str, medians: list[float], *, N: int = 256, grade: Grade = Grade.PASS, direction: Direction = Direction.FORWARD
    ) -> Record:
        batches = tuple(Batch(0, turn, 0, (us * 0.97, us, us * 1.03)) for turn, us in enumerate(medians))
        outcome = Measured(Build(0.5, "cold"), Accuracy(grade, 0.25, ""), Timing(batches, "queued"))
        return Record(backend, Case(4096, N, "fp32", direction), outcome, "source")

    return make


@pytest.fixture
def make_row(make_record: Callable[..., Record]) -> Callable[..., Row]:
    """Makes the row of a record with three rounds of `us`, without a yardstick and a reference; `changes` are those of its fields."""

    def make(backend: str, us: float = 10.0, *, N: int = 256, direction: Direction = Direction.FORWARD, **changes: object) -> Row:
        record = make_record(backend, [us] * 3, N=N, grade=Grade.YARDSTICK if backend == "copy" else Grade.PASS, direction=direction)
        return replace(row(record, None, None, device="H200", run="r"), **changes)

    return make


@pytest.fixture
def pick() -> str:
    """The name of a second operation, which this process knows; its tensors are those of softmax."""
    registry.add(replace(registry.operation("softmax"), name="pick"), "pick.py")
    return "pick"
