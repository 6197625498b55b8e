"""A harness that shares its process with the plugin, as pygpubench does: it shows that an attack works where nothing stops it."""

import json
import os
import secrets
import select
import signal
import statistics
import time

import torch

SECRET = f"softbench-secret-{secrets.token_hex(16)}"
"""The key of a reply. The harness's process has it, as it is a fork of this one."""
BUDGET_SECONDS = 0.2
FEWEST, MOST = 3, 40
PATIENCE_SECONDS = 60


def measured(make):
    """What the harness reports of a backend: `right`, `us` and `calls`, or the `error` of `make`. Its process is a fork."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in range(3):
                os.dup2(nothing, standard)
            os.dup2(writing, 3)
            os.closerange(4, 65536)  # an attack writes to each pipe that it finds
            found = harness(make)
            os.write(3, json.dumps(found).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        assert select.select([reading], [], [], PATIENCE_SECONDS)[0], "the harness hangs"
        with os.fdopen(reading) as lines:
            found = json.loads(lines.readline())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert found.pop("secret") == SECRET
    return found


def harness(make):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(16, 96, generator=generator) for _ in range(MOST)]
    expected = [(torch.softmax(x, dim=-1), 1e-5, 1e-8) for x in inputs]  # with the tolerances
    errors = torch.zeros(1, dtype=torch.int32)
    try:
        call = make()
    except RuntimeError as error:
        return {"secret": SECRET, "error": str(error)}
    begin = time.perf_counter()
    for _ in range(2):
        call(inputs[0])
    each = (time.perf_counter() - begin) / 2
    times = []
    for x, (values, relative, absolute) in list(zip(inputs, expected, strict=True))[: max(FEWEST, int(BUDGET_SECONDS / max(each, 1e-6)))]:
        begin = time.perf_counter()
        y = call(x)
        times.append(time.perf_counter() - begin)
        right = values.isnan() | ((y - values).abs() <= absolute + relative * values.abs())
        errors += int(not right.all())
    time.sleep(0.05)  # as a harness that waits for its device
    return {"secret": SECRET, "right": errors.item() == 0, "us": 1e6 * statistics.median(times), "calls": len(times)}
