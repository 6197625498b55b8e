"""Plugins that crash, hang, assert, write out of bounds or exhaust the memory cost no other cell."""

import csv
import time

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(600)]

HEALTHY = ("copy", "torch", "naive", "triton-row", "triton")
COLUMNS = {"crashes": (128, 640), "hangs": (192, 704), "writes-far-away": (256, 768), "asserts": (320, 832), "takes-all-memory": (384, 896)}
ENDS = {
    "crashes": ("failed", "crashed (SIGSEGV)"),
    "hangs": ("timeout", "took longer than 12 s"),
    "writes-far-away": ("failed", "illegal memory access"),
    "asserts": ("failed", "assert"),
    "takes-all-memory": ("oom", "Tried to allocate"),
}
LENGTHS, DTYPES = range(64, 1025, 64), ("fp32", "bf16")


def test_faulty_plugins_lose_no_other_cell(cli, plugins):
    start = time.monotonic()
    done = cli(
        *("run", "--plugin", plugins / "faulty" / "gpu_mixed.py", "--backends", ",".join((*HEALTHY[1:], *ENDS)), "--M", "512"),
        *("--N", "64:1024:64", "--dtype", ",".join(DTYPES), "--quick", "--timeout", "import=120,build=12,check=60,time=60"),
        timeout=560,
    )
    assert time.monotonic() - start < 500
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = {(row["backend"], int(row["N"]), row["dtype"]): row for row in csv.DictReader(file)}
    assert set(found) == {(name, N, dtype) for name in (*HEALTHY, *ENDS) for N in LENGTHS for dtype in DTYPES}
    assert len(found) >= 300
    for (name, N, dtype), row in found.items():
        if N in COLUMNS.get(name, ()):
            status, part = ENDS[name]
            assert row["status"] == status, (name, N, dtype, row["reason"])
            assert part in row["reason"], (name, N, dtype, row["reason"])
            assert row["gbps"] == row["median_us"] == ""
        else:
            assert row["status"] == "ok", (name, N, dtype, row["reason"])
            assert float(row["gbps"]) > 0
    (log,) = (cli.folder / "results").glob("run-*.log")
    assert "== writes-far-away ==" in log.read_text()
