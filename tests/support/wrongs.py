"""Runs the wrong plugins on CPU and GPU: bugs on their check case, tricks through building, checking and timing, and all before a judge."""

import ctypes
import importlib.util
import os
import sys
import time
from functools import cache
from pathlib import Path

import cross_entropies
import log_softmaxes
import logprobs
import masked_softmaxes
import pytest
from ways import slug

from softbench.core.case import Case, Direction
from softbench.core.messages import BuildCase, CheckOutputs, Failure, RenewInputs, TimeBatch, VerifyOutputs
from softbench.core.outcome import Grade
from softbench.plugins.source import FILE, PluginSource
from softbench.processes.slot import load_request
from softbench.processes.worker_pool import Lost
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.judged import confinement

PLUGINS = Path(__file__).parents[1] / "plugins"
BATCHES = 12  # a fingerprint of few values misses some changes: with this many batches, one changes the values it reads


def module_of(path):
    spec = importlib.util.spec_from_file_location(f"plugin_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def load(path):
    return module_of(path).backends


BUGS = load(PLUGINS / "wrong" / "bugs.py")
HONEST = load(PLUGINS / "correct" / "variants.py")
ARITHMETIC = load(PLUGINS / "correct" / "arithmetic.py")
HABITS = load(PLUGINS / "correct" / "habits.py")
VALUES = load(PLUGINS / "wrong" / "values.py")
CALLS = load(PLUGINS / "wrong" / "calls.py")
HIDDEN = module_of(PLUGINS / "wrong" / "hidden.py")
BATCH_TRICKS = load(PLUGINS / "wrong" / "batch_tricks.py")
TRICKS = load(PLUGINS / "wrong" / "tricks.py")
WRONG_WAYS = load(PLUGINS / "wrong" / "operations.py")
RIGHT_WAYS = load(PLUGINS / "correct" / "operations.py")
LATER = {"wrong-first-buffer"}
"""Wrong ways that are right in the check before timing."""
LIMITED = {
    *(f"right-{slug(name)}" for name in log_softmaxes.LIMITED),
    *(f"right-ce-{slug(name)}" for name in cross_entropies.LIMITED),
    *(f"right-logprob-{slug(name)}" for name in logprobs.LIMITED | logprobs.LIMITED_BACKWARD),
    *(f"right-masked-{slug(name)}" for name in masked_softmaxes.LIMITED),
}
"""Right ways that may be of low precision."""


def grade(backend, item, direction, dtype, device):
    """Class and detail of a check case, or `skipped` and the reason."""
    found = CheckCaseRunner(backend, device).run(item, direction, dtype, 0)
    return (found, "") if isinstance(found, str) else (found.grade.value, found.detail)


@cache
def honest_ones_pass(item, direction, dtype):
    """True if all honest backends pass a check case, on the CPU."""
    return all(grade(honest, item, direction, dtype, "cpu") == ("pass", "") for honest in HONEST)


def tried(pool, backend, device, case=None, path=PLUGINS / "wrong" / "tricks.py", pause=0.0):
    """Stage and verdict that a backend of a plugin file ends with in a worker of its own: `("check" | "time", grade, reason)`.

    `pause`: seconds that its inputs wait to be used, and its outputs to be verified, as for other workers' batches.
    """
    worker = pool.spawn(backend)
    case = case or Case(64, 256, "fp32", Direction.FORWARD, device)
    timer = ("queued", "cold") if device == "cuda" else ("torch.utils.benchmark", "")

    def ask(request):
        reply = pool.ask(worker, request, 60, request.op)
        assert not isinstance(reply, Failure | Lost), reply
        return reply

    try:
        ask(load_request(PluginSource("file", path.stem, str(path), path.name), device, backend))
        ask(BuildCase(case, 0))
        found = ask(CheckOutputs()).accuracy
        if found.grade is not Grade.PASS:
            return "check", found.grade.value, found.detail
        for _ in range(BATCHES):
            ask(RenewInputs(timer[1]))
            time.sleep(pause)
            ask(TimeBatch(0.2, 0.5, *timer))
            time.sleep(pause)
            found = ask(VerifyOutputs()).accuracy
            if found.grade is not Grade.PASS:
                return "time", found.grade.value, found.detail
        return "time", found.grade.value, found.detail
    finally:
        pool.discard(worker)


CASE = Case(16, 96, "fp32", Direction.FORWARD, "cpu")
LANDLOCK = max(0, ctypes.CDLL(None).syscall(confinement.LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
confined = pytest.mark.skipif(LANDLOCK < 6 or os.uname().machine != "x86_64", reason="this kernel has no landlock 6, or no seccomp table")


def judged(judge, file, name, case=CASE):
    """The judgement of a backend of a file in `tests/plugins`."""
    path = PLUGINS / file
    return judge.judge(PluginSource(FILE, path.stem, str(path), path.name), case, name)
