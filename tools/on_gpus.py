"""What a release must show on GPUs, in a limited time: python tools/on_gpus.py --seconds 560 [--steps PATTERN ...] [--out FOLDER]

A step is one command with an estimate of its seconds on an H200. Steps that need all GPUs of the host come first, one at a time. The others
are dealt to the GPUs, in their order, one at a time on each. A step whose estimate is over the time left is left out. A step is
interrupted after twice its estimate, and when the time is over, so that softbench still writes its results. Ctrl-C interrupts all. CUDA
libraries are built before.

FOLDER has the output of each step in STEP.log and its files in STEP/. `--pack FILE` makes a .tar.gz of FOLDER. `--list` prints the steps.
The steps `losses`, `losses-few` and `judged-honest` need liger-kernel and quack-kernels, and `fleet-ray` needs softbench[ray]. The step
`cards` needs no GPU, but nvcc and cuobjdump.
Exit code 1: a step failed, was interrupted or was left out.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
OURS = "copy,triton,cuda"
DEFAULT = "softbench run --output {out}"
HONEST = (
    "softbench run --M 4096 --N 1024,16384 --dtype bf16 --backends naive,torch,fx,jit-script,jit-trace,compile,compile:max-autotune"
    ",compile:reduce-overhead,compile-torch,triton,triton-op,triton-custom-op,triton-compiled,triton-row,triton-tile,cuda,cuda-op,cudnn"
    ",liger,quack"
)
SHORT = (
    f"softbench run --backends {OURS} --M 1048576 --N 5,7,8,9,13,33,60,65,77,127,129,191,193,197 --dtype bf16,fp32"
    " --direction forward,backward --profile off --output {out}"
)
LOSSES = "softbench run --op cross_entropy,logprob --backends copy,triton,cuda --dtype bf16 --direction forward"
MASKED = "softbench run --op masked_softmax --backends torch,compile,triton,cuda --dtype bf16 --direction forward,backward --output {out}"
MASKS = {
    "causal": (105, "--shape gpt2,llama,long --set scale=0.125,causal=true"),
    "sink": (100, "--shape gpt-oss --set scale=0.125,causal=true,sink=true"),
    "boolean": (30, "--shape bert --set scale=0.125,mask=boolean,mask_axes=BN"),
    "additive": (30, "--shape openfold --set mask=additive,mask_axes=HSN"),
}
PYTEST = "python3 -m pytest -v --tb=short -p no:cacheprovider -p no:benchmark -m"
END_SECONDS = 15
"""From the interrupt to the kill."""
LOOK_SECONDS = 0.05
PATIENCE = 2
"""Times its estimate, after which a step is interrupted."""
BUILD = """
from concurrent.futures import ThreadPoolExecutor
import torch
from softbench.kernels.cuda import build
name = build.architecture_of(torch.cuda.get_device_capability())
with ThreadPoolExecutor() as pool:
    list(pool.map(lambda function: build.build(name, function), build.ALL))
"""


@dataclass(frozen=True)
class Step:
    """A command. `{out}` in it is the step's folder. `every`: it needs all GPUs of the host, and at least two."""

    name: str
    seconds: float
    command: str
    every: bool = False


STEPS = (
    Step("fleet-caches", 230, f"{DEFAULT} --devices all --force", every=True),  # it fills the compilers' caches for the next three
    Step("fleet-one", 215, f"{DEFAULT} --devices 0", every=True),
    Step("fleet-shard", 125, f"{DEFAULT} --devices all --force", every=True),
    Step("fleet-ray", 130, f"trap 'ray stop' EXIT; ray start --head --include-dashboard=false && {DEFAULT} --ray auto --force", every=True),
    Step("fleet-replicate", 115, f"{DEFAULT} --backends torch,compile,triton,cuda --devices all --spread replicate", every=True),
    Step("frontier", 225, f"softbench run --config frontier --backends {OURS} --profile off --output {{out}}"
         " && softbench compare {out}/latest.csv results/h200/frontier.csv"),
    Step("losses", 110, "softbench run --config losses --backends copy,liger,quack,triton,cuda --output {out}"),
    Step("losses-odd", 20, f"{LOSSES} --M 4096 --N 32000,49152,50176,50257,128256 --output {{out}}"),
    Step("losses-few", 40, f"{LOSSES.replace('copy', 'copy,quack')} --M 1,4,8,64 --N 50257,128256 --output {{out}}"),
    Step("strided", 285, "softbench run --config strided --backends torch,compile,triton,cuda --output {out}"),
    Step("log-softmax", 76, "softbench run --op log_softmax --M 4096 --N 1024,16384,50257 --dtype bf16,fp32"
         " --direction forward,backward --output {out}"),
    *(Step(f"masked-{name}", seconds, f"{MASKED} {given}") for name, (seconds, given) in MASKS.items()),
    Step("judged", 2000, f"softbench run --config frontier --backends {OURS} --judge separate --output {{out}}"),
    Step("judged-honest", 650, f"code=0; {HONEST} --output {{out}}/run || code=1; {HONEST} --judge separate --output {{out}}/judged"
         " || code=1; softbench compare {out}/run/latest.csv {out}/judged/latest.csv; exit $code"),
    Step("tests-judge", 280, f"{PYTEST} gpu tests/gpu/test_judge_gpu.py -k 'not trick'"),
    Step("tests-tricks", 370, f"{PYTEST} gpu tests/gpu/test_judge_gpu.py -k trick"),
    Step("tests-losses", 125, f"{PYTEST} gpu -n 4 tests/gpu/test_cuda_losses_gpu.py tests/gpu/test_triton_losses_gpu.py"),
    Step("tests-operations", 180, f"{PYTEST} gpu -n 4 tests/gpu/test_operations_gpu.py tests/gpu/test_wrong_plugins_gpu.py"),
    Step("tests-api", 90, f"{PYTEST} gpu tests/gpu/test_api_gpu.py"),
    Step("tests-use", 30, f"{PYTEST} gpu -n 4 tests/gpu/test_use_gpu.py"),
    *(Step(f"use-ab-{l2}", 420, f"python3 tools/use_ab.py --l2 {l2} --output {{out}}") for l2 in ("cold", "warm")),
    Step("training", 400, "python3 tools/training_step.py --seconds 380 --json {out}/training-library.json"),
    Step("short", 55, SHORT),
    Step("sanitizers", 600, f"{PYTEST} gpu -n 16 tests/gpu/test_tools_gpu.py -k sanitizers"),
    Step("cards", 900, "python3 tools/cards.py plans && python3 tools/cards.py triton && python3 tools/cards.py cuda"),
)  # fmt: skip


class Gpus:
    """The steps, dealt to GPUs of the host until the time is over."""

    def __init__(self, names: list[str], out: Path, end: float) -> None:
        """`names`: of the GPUs, as in CUDA_VISIBLE_DEVICES."""
        self.names, self.out, self.end = names, out, end
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.cores = sorted(os.sched_getaffinity(0))
        self.ended: dict[str, tuple[str, float]] = {}
        """By step: what became of it, and its seconds."""

    def run(self, steps: list[Step]) -> None:
        for step in (step for step in steps if step.every):
            if len(self.names) < 2:
                self.ended[step.name] = "left out: it needs two GPUs", 0
            else:
                self._step(step, None)
        waiting = [step for step in steps if not step.every]
        threads = [threading.Thread(target=self._work, args=(number, waiting)) for number in range(len(self.names))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, number: int, waiting: list[Step]) -> None:
        if len(self.cores) >= len(self.names):  # of this thread and its steps, so that none slows the host work of another GPU
            os.sched_setaffinity(0, self.cores[number :: len(self.names)])
        while True:
            with self.lock:
                if not waiting:
                    return
                step = waiting.pop(0)
            self._step(step, self.names[number])

    def _step(self, step: Step, gpu: str | None) -> None:
        start = time.monotonic()
        left = self.end - start
        if self.stop.is_set() or step.seconds > left:
            self.ended[step.name] = "left out: interrupted" if self.stop.is_set() else f"left out: {left:.0f} s were left", 0
            return
        try:
            what = self._run(step, gpu, min(PATIENCE * step.seconds, left))
        except OSError as error:  # such as a full disk
            what = f"failed: {error}"
        self.ended[step.name] = what, time.monotonic() - start

    def _run(self, step: Step, gpu: str | None, seconds: float) -> str:
        folder = self.out / step.name
        folder.mkdir(parents=True, exist_ok=True)
        with (self.out / f"{step.name}.log").open("w") as log:
            command = step.command.format(out=shlex.quote(str(folder)))
            print(command, file=log, flush=True)
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=ROOT, env=self._environment(gpu), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        in_time = self._wait(process, seconds, self.stop)
        if not in_time:
            os.killpg(process.pid, signal.SIGINT)
            self._wait(process, END_SECONDS, threading.Event())
        with suppress(OSError):  # also what a step left behind would disturb the next one; no other process has its number until `wait`
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        return "interrupted" if not in_time else "ok" if code == 0 else f"exit code {code}"

    @staticmethod
    def _wait(process: subprocess.Popen[bytes], seconds: float, stop: threading.Event) -> bool:
        """True if the process has ended in this time and before `stop`. It is not reaped."""
        end = time.monotonic() + seconds
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if time.monotonic() > end or stop.wait(LOOK_SECONDS):
                return False
        return True

    def _environment(self, gpu: str | None) -> dict[str, str]:
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        own = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **own}


def gpus() -> list[str]:
    """The GPUs of CUDA_VISIBLE_DEVICES, else those the driver lists. Asking CUDA would fix the answer for the process."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    program = shutil.which("nvidia-smi")
    done = subprocess.run([program, "-L"], capture_output=True, text=True, check=False) if program else None
    return [str(i) for i in range(sum(line.startswith("GPU ") for line in done.stdout.splitlines()))] if done else []


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """In the context a signal that ends a process sets `stop`. The steps have sessions of their own, which no terminal reaches."""
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.is_file() else []
    return lines[-1][:100] if lines else ""


def main(steps: tuple[Step, ...] = STEPS, names: list[str] | None = None, build: str = BUILD) -> int:
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", nargs="+", default=["*"], metavar="PATTERN", help="names of steps, or patterns such as 'masked-*'")
    parser.add_argument("--seconds", type=float, default=3600, help="for all, the build included")
    parser.add_argument("--out", type=Path, default=ROOT / "on-gpus")
    parser.add_argument("--pack", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    unknown = [pattern for pattern in given.steps if not any(fnmatch(step.name, pattern) for step in steps)]
    if unknown:
        parser.error(f"--steps {unknown[0]}: no step has this name; --list prints all")
    chosen = [step for pattern in given.steps for step in steps if fnmatch(step.name, pattern)]
    chosen = list(dict.fromkeys(chosen))
    if given.list:
        print(*(f"{step.name:32} {step.seconds:4.0f} s  {step.command}" for step in chosen), sep="\n")
        return 0
    names = gpus() if names is None else names
    if not names:
        parser.error("this machine has no NVIDIA GPU or no nvidia-smi, or CUDA_VISIBLE_DEVICES names none")
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    host = Gpus(names, out, start + given.seconds)
    with stopped_by_signals(host.stop):
        host.run(chosen)
    if given.pack:
        with tarfile.open(given.pack, "w:gz") as pack:
            pack.add(out, arcname=out.name)
    for step in chosen:
        what, seconds = host.ended[step.name]
        print(f"{step.name:32} {seconds:5.0f} s  {what:24} {last_line(out / f'{step.name}.log') if seconds else ''}")
    return 0 if all(what == "ok" for what, _ in host.ended.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
