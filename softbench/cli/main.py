"""The program: its commands, and the place where every expected error becomes one line and an exit code."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from softbench import __version__
from softbench.cli.panels import RUN_EPILOG, LineGroup, PanelCommand
from softbench.core.errors import SoftbenchError, UsageError

COMMANDS = {
    "run": ("run", "Check and time every backend on every shape"),
    "check": ("check", "Check every backend on difficult cases"),
    "show": ("results", "Show the table of a results file, or of some of its cells"),
    "runs": ("runs", "List the runs in a folder and below it, the newest first"),
    "plot": ("results", "Draw how close each backend comes to copy over N or M, or another kind of figure"),
    "report": ("report", "Write the results as one HTML page"),
    "board": ("board", "Write a static site of many runs"),
    "history": ("history", "Show the time of one target over the commits of stored results, as an HTML page"),
    "compare": ("results", "Compare two results files cell by cell"),
    "merge": ("merge", "Merge shards of a sweep, or one sweep measured by several cards, into one results file with all raw samples"),
    "export": ("export", "Write results in the format of another tool"),
    "gate": ("gate", "Judge whether a backend became slower"),
    "bisect": ("bisect", "Find the commits that made something slower, with the gate as the test of each commit"),
    "baseline": ("baseline", "Baselines of the gate"),
    "judge": ("judge", "Judge one untrusted plugin on one case, in a process that cannot reach the judge"),
    "list": ("listing", "List the backends with their sources, and whether they can run here"),
    "gallery": ("gallery", "List one operation as it is written in each language"),
    "doctor": ("doctor", "Check the requirements of a run"),
    "tune": ("tune", "Measure which launch plans of the CUDA and Triton kernels are the fastest on this GPU"),
    "inspect": ("inspect", "Show the code that a backend generates for one case"),
}
"""The module and the first sentence of each command, in the order in which a user meets them."""


class LaterGroup(LineGroup):
    """The commands, each imported when it is asked for: the list of commands needs none of them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given | {"commands": {name: PanelCommand(name, help=text) for name, (_, text) in COMMANDS.items()}})
        self._loaded: set[str] = set()

    def list_commands(self, ctx: Any) -> list[str]:  # typer brings its own click in some versions
        return [*COMMANDS]

    def get_command(self, ctx: Any, name: str) -> Any:
        if name in COMMANDS and name not in self._loaded:
            program = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
            program.callback()(lambda: None)  # otherwise a single command is no group
            import_module(f"softbench.cli.{COMMANDS[name][0]}").register(program)
            found: Any = typer.main.get_command(program)
            self.commands |= found.commands
            self._loaded |= {*found.commands}
        return super().get_command(ctx, name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str()) for name, command in self.commands.items()])


app = typer.Typer(
    cls=LaterGroup,
    help="Compare kernels of an operation on the GPU: checked, isolated, interleaved, in GB/s.",
    epilog=f"{RUN_EPILOG} gate, baseline and compare: 3 inconclusive or not comparable.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help takes half the time
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("-V", "--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"softbench {__version__}")
        raise typer.Exit


def _as_typed(text: str) -> str:
    """A message about `--op` names `--problem`, if the user typed that name of the option."""
    typed = {word.partition("=")[0] for word in sys.argv[1:]}
    return re.sub(r"--op(?![\w-])", "--problem", text) if "--problem" in typed and "--op" not in typed else text


def _end(code: int, message: str = "") -> NoReturn:
    from softbench.cli.actions import end

    end(code, message)


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
        from softbench.core.text import one_line

        _end(error.exit_code, one_line(_as_typed(str(error)), 2000))
    except BrokenPipeError:  # `softbench show | head`
        _end(141)
    except OSError as error:  # of an output stream, or a folder that may not be searched for a given file
        from softbench.core.files import FULL, not_written

        if error.filename is not None and error.errno not in FULL:
            _end(UsageError.exit_code, f"{error.filename}: {error.strerror}")
        failed = not_written("the output", error)
        _end(failed.exit_code, str(failed))
    sys.exit(0)


if __name__ == "__main__":
    main()
