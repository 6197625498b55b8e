"""The check cases find bugs that normal values do not show, by class: strides, the caller's state, leaks, late calls, the first row."""

import gc
import os
import random
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sampled import sampled
from wrongs import HIDDEN

from softbench.core.outcome import Grade
from softbench.worker.checking.check_case import CheckCaseRunner

BUGS = HIDDEN.backends


@pytest.fixture
def restored():
    """The process as it was, whatever the bug does to it."""
    environment, directory, filters, errors = dict(os.environ), Path.cwd(), list(warnings.filters), np.geterr()
    thresholds, limit, interval, threads, state = (
        *(gc.get_threshold(), sys.getrecursionlimit(), sys.getswitchinterval(), torch.get_num_threads()),
        random.getstate(),
    )
    handler, mask = signal.getsignal(signal.SIGUSR1), os.umask(0o022)
    yield
    os.umask(mask)
    for kept in HIDDEN.KEPT:
        for end in {"set", "close"} & set(dir(kept)):
            getattr(kept, end)()
    HIDDEN.KEPT.clear()
    HIDDEN.BY_CALL.clear()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    warnings.filters[:] = filters
    np.seterr(**errors)
    gc.enable()
    gc.set_threshold(*thresholds)
    sys.setrecursionlimit(limit)
    sys.setswitchinterval(interval)
    signal.signal(signal.SIGUSR1, handler)
    random.setstate(state)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_flush_denormal(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(False)
    torch.set_printoptions(profile="default")
    torch.set_autocast_enabled("cpu", False)
    torch.autograd.set_detect_anomaly(False)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("bug", sampled(BUGS, lambda bug: BUGS.index(bug) % 24 == 0 and "leak" not in bug.name), ids=lambda bug: bug.name)
def test_a_hidden_bug_is_found_for_its_reason(bug):
    """By default each 24th, without leaks: test_contract_cases.py has one."""
    runner = CheckCaseRunner(bug, "cpu", operation=bug.op)
    for (name, direction), item in runner.items.items():
        if direction is not bug.direction or item.gpu_only or (bug.along and item.dim is None):
            continue
        found = runner.run(name, direction, "fp32", 0)
        if not isinstance(found, str) and found.grade is Grade.WRONG:
            assert bug.rule in found.detail
            return
    pytest.fail("not found")
