"""What the shell completes after Tab, without torch and within a moment."""

import os
import resource
import subprocess
import sys

import pytest

CODE = """
import atexit, sys
atexit.register(lambda: print("HEAVY", sorted({"torch", "numpy", "scipy", "matplotlib"} & set(sys.modules)), file=sys.stderr))
sys.argv = ["softbench"]
from softbench.cli.main import main
main()
"""
FORKS = """
import os, sys
import softbench.cli.main
for line in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.environ |= {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        print("LINE", line, flush=True)
        exec(os.environ["CODE"])
    os.waitpid(child, 0)
"""
PLUGIN = """
raise SystemExit("completion must not run a plugin")
def softmax(x): pass
"""


COMPLETED = {
    "softbench ": [
        *("run", "check", "show", "runs", "plot", "report", "board", "history", "compare", "merge", "export"),
        *("gate", "bisect", "baseline", "judge", "list", "gallery", "doctor", "tune", "inspect"),
    ],
    "softbench run --dev": ["--device", "--devices"],
    "softbench run --backends torch,nai": ["torch,naive"],
    "softbench run --plugin mine.py --backends min": ["mine"],
    "softbench check --dtype fp32,": ["fp32,fp16", "fp32,bf16"],
    "softbench run --config t": ["tutorial"],
    "softbench run --timer d": ["do_bench", "device"],
}


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """What a new shell would get for each line: forks of one process that has imported the command line, and no more."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "mine.py").write_text(PLUGIN)
    env = {**os.environ, "_SOFTBENCH_COMPLETE": "complete_bash", "CODE": CODE}
    done = subprocess.run([sys.executable, "-c", FORKS, *COMPLETED], cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == "HEAVY []\n" * len(COMPLETED)
    answers = (text.split("\n", 1) for text in done.stdout.split("LINE ")[1:])
    return {line: words.split() for line, words in answers}


@pytest.mark.parametrize("line", COMPLETED)
def test_names_are_completed_without_torch(completed, line):
    assert completed[line] == COMPLETED[line]


@pytest.mark.slow
def test_completion_takes_at_most_half_a_second_of_cpu():
    env = {**os.environ, "_SOFTBENCH_COMPLETE": "complete_bash", "COMP_WORDS": "softbench run --backends ", "COMP_CWORD": "3"}

    def seconds(call) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        call()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def once() -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, check=True))

    def import_typer() -> float:
        return seconds(lambda: subprocess.run([sys.executable, "-c", "import typer.main"], check=True))

    if any(once() <= 0.5 for _ in range(3)):
        return
    # Other processes on a core's second thread double the CPU time, also that of importing Typer, which takes .07 s without them.
    completions, imports = zip(*((once(), import_typer()) for _ in range(4)), strict=True)
    assert min(completions) <= 7 * min(imports)


def test_help_offers_the_installation_of_completion(main):
    assert "--install-completion" in main("--help")[1]
