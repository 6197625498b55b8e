"""Is any call slower inside `softbench.use()`? `softbench gate` judges it, on 200 cells of 256 bytes to 537 MB a tensor.

    python tools/use_ab.py                          on the GPU: 200 cells with a cold L2, and 200 with a warm L2
    python tools/use_ab.py --l2 warm --M 64         one of both, and some of the cells

With a cold L2 a flush before each call hides the host time of the calls. With a warm L2 calls follow each other, so that small cells take
as long as the host does. Options of `softbench gate` are passed on. This file is the plugin too: `torch-use` is the backend `torch` inside
the block. The exit code is the worse one of both gates. 0: no cell is slower; 1: one is; 3: that is not known.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import softbench
from softbench.backends.torch_eager import Functional
from softbench.core.case import Case
from softbench.plugins.backend import Call

SETTINGS = """
processes = 6
rounds = 6
warmup_ms = 0.5
batch_ms = 2
l2 = "{l2}"
sweep = [
{sweeps}
]
"""

SWEEPS = """
  # Small: the host determines their time, so these are advisory
  { op = ["softmax", "log_softmax"], M = [64, 1024], N = [128, 512], dtype = ["bf16", "fp32"], direction = ["forward", "backward"] },
  { M = [1, 8], N = [128, 4096], dtype = ["bf16", "fp32"], direction = "forward" },
  { M = [8, 48], N = 1024, dtype = ["bf16", "fp32"], direction = "backward" },
  { op = ["softmax", "log_softmax"], M = 64, N = [256, 8192], dtype = "bf16", direction = "both" },
  # Few long rows
  { M = [1, 8], N = [262144, 1048576], dtype = ["bf16", "fp32"], direction = "forward" },
  { M = [48, 192], N = 262144, dtype = ["bf16", "fp32"], direction = "backward" },
  # Attention: batch x heads x queries, and keys
  { M = [25216, 98304], N = [1024, 2048], dtype = ["bf16", "fp16"], direction = ["forward", "backward"] },
  { M = 98304, N = 512, dtype = ["bf16", "fp16"], direction = ["forward", "backward"] },
  # From 2**24 elements on
  { M = [8192, 16384], N = [2048, 3000, 5003], dtype = ["bf16", "fp32"], direction = ["forward", "backward"] },
  { op = ["softmax", "log_softmax"], M = [4096, 8192], N = [8192, 16384], dtype = ["bf16", "fp32"], direction = ["forward", "backward"] },
  # Autograd took 100 to 300 us on the host of an H200, so these calls take the device longer
  { M = 98304, N = [1024, 2048], dtype = ["bf16", "fp16"], direction = "both" },
  { op = ["softmax", "log_softmax"], M = 8192, N = [8192, 16384], dtype = ["bf16", "fp32"], direction = "both" },"""
"""Of both modes. By torch's device time on an H200, calls take longer than the host, or so little that they are advisory."""

LIMITS = {
    "cold": """
  # Around the limits of the rule: torch took 13 to 110 us on an H200
  { M = [2048, 3072], N = [1536, 2048, 5003], dtype = ["bf16", "fp32"], direction = ["forward", "backward"] },
  { op = ["softmax", "log_softmax"], M = [1024, 4096], N = 4096, dtype = ["bf16", "fp32"], direction = ["forward", "backward"] },
  { M = [1, 8], N = [50257, 128256], dtype = ["bf16", "fp32"], direction = "forward" },
  { M = [25216, 98304], N = 197, dtype = ["bf16", "fp16"], direction = "forward" },""",
    "warm": """
  # Around the limit of the rule where torch is slower than the host: from 15.4 to 22.1 million elements
  { op = ["softmax", "log_softmax"], M = [3072, 4096], N = [5003, 5400], dtype = ["bf16", "fp16", "fp32"], direction = "forward" },
  { op = "log_softmax", M = 16384, N = [2048, 3000, 5003], dtype = ["bf16", "fp32"], direction = ["forward", "backward"] },
  # Small
  { op = ["softmax", "log_softmax"], M = [8, 256], N = 256, dtype = ["bf16", "fp32"], direction = ["forward", "backward"] },""",
}
"""Of one mode. With a warm L2 a call and two events took an H200's host 17 to 25 us. Times of shorter calls differed by 15 % from process
to process."""


def config_of(l2: str) -> str:
    """The gate's configuration for a mode."""
    return SETTINGS.format(l2=l2, sweeps=SWEEPS + LIMITS[l2])


class InsideUse(Functional):
    """torch.nn.functional.softmax inside softbench.use()."""

    name = "torch-use"
    entered = False

    def prepare(self, case: Case) -> Call:
        """The block lasts as long as the worker, which runs no other backend."""
        if not InsideUse.entered:
            softbench.enable()
            InsideUse.entered = True
        return super().prepare(case)


backend = InsideUse()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--l2", choices=("cold", "warm", "both"), default="both")
    parser.add_argument("--margin", default="3", help="percent; what counts as noise")
    parser.add_argument("--output", type=Path, default=Path("results/use"))
    given, others = parser.parse_known_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    codes = []
    for l2 in ("cold", "warm") if given.l2 == "both" else (given.l2,):
        config = given.output / f"{l2}.toml"
        config.write_text(config_of(l2))
        print(f"{l2} L2:", flush=True)
        command = [sys.executable, "-m", "softbench", "gate", "--candidate", InsideUse.name, "--reference", "torch"]
        command += ["--plugin", __file__, "--config", str(config), "--margin", given.margin, "--output", str(given.output / l2)]
        command += ["--json", str(given.output / f"{l2}.json"), *others]
        codes.append(subprocess.run(command, check=False).returncode)
    return max(codes, key=lambda code: (code == 1, abs(code)))  # negative: a signal ended it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
