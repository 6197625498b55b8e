"""`softbench tune`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from softbench.cli import options
from softbench.cli.actions import end, interruptible, try_file
from softbench.cli.panels import OUTPUT, PanelCommand
from softbench.core.errors import UsageError

_CODE = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module('softbench.kernels.tuning.measure', run_name='__main__')"
)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(cls=PanelCommand)(tune)


def tune(
    minutes: Annotated[float, options.option(OUTPUT, "How long to measure, up to 60.")] = 10.0,
    output: Annotated[
        Path | None,
        options.option(
            OUTPUT, "The table's file; by default CARD.json in ~/.cache/softbench/plans, which this user's launches read.", "--output", "-o"
        ),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure which launch plans of the CUDA and Triton kernels are the fastest on this GPU.

    It times plans on random shapes and writes a table that launches use from then on. Each result is kept: after an interrupt, or to
    measure longer, call it again. One length of seven is held out; the printed figures are of these. Triton's kernels compile on all
    cores.
    """
    if not 0 < minutes <= 60:
        raise UsageError(f"--minutes {minutes:g}: it must be more than 0 and at most 60")
    try_file(output, flag="--output")
    line = [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), str(60 * minutes), str(output or ""), "quiet" if quiet else ""]
    with interruptible():
        code = subprocess.call(line)  # it imports torch, which this process does not
    if code < 0:
        end(1, f"tune: signal {-code} ended the measurement; call tune again, and it continues after the last shape")
    raise typer.Exit(2 if code == 2 else min(1, code))
