"""The judge's process: it reads requests from stdin, judges, and writes an answer to each to stdout, as lines of JSON.

It is a process of its own because the command line never imports torch. The key that signs a verdict is not here.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from softbench.core.errors import SoftbenchError, UsageError
from softbench.core.json import JsonObject, from_json, to_json
from softbench.ops.registry import path_of
from softbench.processes import worker_pool
from softbench.processes.judge_process import Advanced, Found, JudgeCase, NotJudged
from softbench.processes.session import Session
from softbench.worker.compile_stats import built_libraries
from softbench.worker.judged.confinement import SYSTEM

if TYPE_CHECKING:
    from softbench.judge.judgement import Judge

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
KEPT_VARIABLES = (
    *(
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "LANG",
        "LC_*",
        "TZ",
        "LD_LIBRARY_PATH",
        "CC",
        "CXX",
        "VIRTUAL_ENV",
        "PYTHON*",
        "SOFTBENCH_*",
    ),
    *("CUDA*", "NVIDIA*", "OMP_*", "GOMP_*", "MKL_*", "KMP_*", "TORCH*", "TRITON*", "TEARDOWN_CUPTI", "HSA_*", "HIP_*"),
)
"""Patterns of the environment's variables that a plugin may see. Others may be secrets."""
OWN_PACKAGES = ("softbench", "softbench.configs", *(f"softbench.kernels.{name}" for name in ("automatic", "common", "cuda", "triton")))


def main() -> None:
    """Serve requests until stdin ends. Expected errors are answers."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    libc.prctl(PR_SET_DUMPABLE, 0)  # no process of the same user can trace it or read its memory
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that workers end and folders are removed
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else may print among the answers
    for name in set(os.environ) - {name for pattern in KEPT_VARIABLES for name in os.environ if fnmatchcase(name, pattern)}:
        del os.environ[name]
    worker_pool.keep(worker_pool.opened())  # its forkserver and this process import torch while the command line reads the problem
    Thread(target=import_module, args=("torch",), daemon=True).start()
    with ExitStack() as end:
        sessions: list[tuple[Session, Judge]] = []

        def tell(answer: Advanced | Found | NotJudged) -> None:
            answers.write(json.dumps(to_json(answer)) + "\n")

        for line in sys.stdin:
            request = from_json(JudgeCase, json.loads(line))
            try:
                sessions = sessions or [end.enter_context(opened(request))]
                tell(Found(judged(*sessions[0], request, lambda *now: tell(Advanced(*now)))))
            except SoftbenchError as error:
                tell(NotJudged(str(error), error.exit_code))


@contextmanager
def opened(request: JudgeCase) -> Iterator[tuple[Session, Judge]]:
    """A session and a judge on the device of a request, with its users' operations.

    Raises:
        UsageError: the device does not exist, or takes one process at a time.
        WorkersError: workers cannot be started.
    """
    with Session(request.device, request.timeout["import"]) as session:
        if session.exclusive:
            raise UsageError("the GPU takes one process at a time, and the judge needs two; see: nvidia-smi -c DEFAULT")
        import_module("torch")  # once its thread has ended: C code may read the environment while it changes
        os.environ.update(session.environment)
        from softbench.judge.judgement import Judge  # torch sees the session's device only
        from softbench.ops.registry import numerics
        from softbench.problems.load import load
        from softbench.problems.values import ProblemValues

        found = [numerics(load(file, every=not layouts, layouts=layouts).name) for file, layouts in request.operations.items()]
        read = [str(path) for one in found if isinstance(one, ProblemValues) for path in one.problem.reads]
        yield session, Judge(session.pool, session.environment, [*readable_folders(), *read], request.timeout)


def judged(session: Session, judge: Judge, request: JudgeCase, advance: Callable[[int, int, str], object]) -> JsonObject:
    """The judgement of a request, with its device. Raises UsageError if the plugin's process could read a private file."""
    source, case = request.source, replace(request.case, device=session.device)
    files = [file for file in (source.file, *map(path_of, request.operations)) if file]
    require_unreadable([Path(file) for file in request.private], [*judge.readable, *built_libraries()[1], *SYSTEM], files)
    found = judge.judge(source, case, request.backend, tuple(request.operations), advance)
    return {**found.document(case), "device": session.gpu.name if session.gpu else session.machine.cpu}


def readable_folders() -> list[str]:
    """The folders of Python, of its packages and of softbench."""
    found = [sys.prefix, sys.base_prefix, *(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))]
    for name in OWN_PACKAGES:
        spec = find_spec(name)
        found += spec.submodule_search_locations or () if spec else ()
    found += [str(Path(path).parent) for path in found if Path(path).parent.name == "kernels"]  # a checkout's sources are elsewhere
    found += [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    found += [str(place) for path in found if path.endswith("-packages") for place in _linked(Path(path))]
    return sorted({str(Path(path).resolve()) for path in found})


def _linked(packages: Path) -> list[Path]:
    """Where packages lie that are links in this folder: whole ones, or each file, as by `uv pip install --link-mode symlink`."""
    entries = list(packages.iterdir()) if packages.is_dir() else []
    facts = [entry / "METADATA" for entry in entries if entry.suffix == ".dist-info"]
    return [entry.resolve() for entry in entries if entry.is_symlink()] + [one.resolve().parents[1] for one in facts if one.is_symlink()]


def require_unreadable(files: Sequence[Path], folders: Sequence[str], given: Sequence[Path]) -> None:
    """Raise UsageError if one of the files lies in one of the folders, or beside one of the given files: the plugin and its operation."""
    for file in files:
        for folder in (*(one.parent for one in given), *map(Path, folders)):
            if file.resolve().is_relative_to(folder.resolve()):
                movable = " and ".join(dict.fromkeys(one.name for one in given if one.parent.resolve() == folder.resolve()))
                move = f"move {movable} to another folder, or " if movable else ""
                raise UsageError(f"{file}: the plugin may read {folder}; {move}name a --key outside of it")


if __name__ == "__main__":
    main()
