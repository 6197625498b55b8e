"""The forkserver: what it may import before it forks workers."""

import subprocess
import sys

import pytest

CALLS_THE_DRIVER = "torch.utils.cpp_extension"  # with a toolkit it calls torch.cuda.is_available when it is imported


def test_forkserver_imports_nothing_that_calls_the_driver():
    code = f"import sys, softbench.worker.serve; sys.exit({CALLS_THE_DRIVER!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.gpu
def test_worker_forked_after_the_import_can_use_the_gpu():
    code = """
import os, softbench.worker.serve, torch
child = os.fork()
if not child:
    os._exit(int(torch.ones(1, device="cuda").item()) - 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
