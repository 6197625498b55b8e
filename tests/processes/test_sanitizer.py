"""What compute-sanitizer reports, told in the user's words."""

import pytest

from softbench.processes.sanitizer import Sanitizer

READ = """========= Invalid __global__ read of size 4 bytes
=========     at rows(const float *, float *, long)+0x2f0 in rows.cu:6
=========     by thread (0,0,0) in block (4,0,0)
=========     Access to 0x7f3ea2813fec is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3ea2800000 of size 81,900 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
"""
SHARED = """========= Invalid __shared__ write of size 16 bytes
=========     at void staged<float>(float *)+0x10
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x400 is out of bounds
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (READ, "reads 4 bytes of global memory out of bounds, 1 byte after an allocation of 81,900 bytes, in kernel rows at rows.cu:6"),
        (SHARED, "writes 16 bytes of shared memory out of bounds, in kernel staged<float>"),
        ("========= Misaligned address\n", "Misaligned address"),
    ],
)
def test_the_first_new_error_is_told(tmp_path, text, told):
    sanitizer = Sanitizer("compute-sanitizer")
    assert sanitizer.command(tmp_path, ["python"])[-1] == "python"
    log = tmp_path / "sanitizer-12.log"
    log.write_text("========= COMPUTE-SANITIZER\n")
    assert sanitizer.found() == ""
    with log.open("a") as file:
        file.write(text)
    assert sanitizer.found() == f"{told}; compute-sanitizer found it"
    assert sanitizer.found() == ""
