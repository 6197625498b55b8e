"""The program: its commands, and the place where every expected error becomes one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from softbench import __version__
from softbench.cli import baseline, board, check, doctor, export, gallery, gate, inspect, judge, listing, merge, report, results, run, runs
from softbench.cli.actions import end
from softbench.cli.options import RUN_EPILOG
from softbench.cli.panels import LineGroup
from softbench.core.errors import SoftbenchError
from softbench.core.files import not_written
from softbench.core.text import one_line

ORDER = (
    *("run", "check", "show", "runs", "plot", "report", "board", "compare", "merge", "export"),
    *("gate", "baseline", "judge", "list", "gallery", "doctor", "inspect"),
)


class InOrderOfUse(LineGroup):
    """The commands in the order in which a user meets them; Typer puts groups of commands last."""

    def list_commands(self, ctx: Any) -> list[str]:  # typer brings its own click in some versions
        return sorted(super().list_commands(ctx), key=ORDER.index)


app = typer.Typer(
    cls=InOrderOfUse,
    help="Compare kernels of an operation on the GPU: checked, isolated, interleaved, in GB/s.",
    epilog=f"{RUN_EPILOG} gate, baseline and compare: 3 inconclusive or not comparable.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help takes half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for commands in (run, check, results, runs, report, board, merge, export, gate, baseline, judge, listing, gallery, doctor, inspect):
    commands.register(app)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("-V", "--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"softbench {__version__}")
        raise typer.Exit


def _as_typed(text: str) -> str:
    """A message about `--op` names `--problem`, if the user typed that name of the option."""
    typed = {word.partition("=")[0] for word in sys.argv[1:]}
    return re.sub(r"--op(?![\w-])", "--problem", text) if "--problem" in typed and "--op" not in typed else text


def main() -> NoReturn:
    """The console script."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - stays open until the process ends
        getattr(sys, name).reconfigure(errors="replace")  # a character that the locale lacks must not end a run
    try:
        app(standalone_mode=True)
        sys.stdout.flush()
    except SoftbenchError as error:
        end(error.exit_code, one_line(_as_typed(str(error)), 2000))
    except BrokenPipeError:  # `softbench show | head`
        end(141)
    except OSError as error:  # of an output stream
        failed = not_written("the output", error)
        end(failed.exit_code, str(failed))
    sys.exit(0)


if __name__ == "__main__":
    main()
