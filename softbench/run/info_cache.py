"""Keeps what workers report about the machine and softbench's own backends, so that `list` and `--dry-run` need not import torch.

An entry belongs to one state of the environment: softbench's files, the interpreter and its packages, the compilers, the driver, and the
environment variables that these read. It is used for a day at most. A measurement always asks its workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import softbench
from softbench.core.files import replace_file
from softbench.core.json import from_json, to_json
from softbench.core.machine import Machine
from softbench.kernels.common.cuda_toolkit import cache_folder
from softbench.plugins.info import BackendInfo, info_from_json, info_to_json
from softbench.plugins.source import PluginSource

SECONDS = 24 * 3600.0
PROGRAMS = ("nvcc", "gcc", "clang", "cc", "g++", "clang++", "c++")
VARIABLES = ("CUDA", "NVIDIA", "HIP", "ROC", "TORCH", "PYTORCH", "TRITON", "HELION", "CUPY", "NUMBA", "OMP", "MKL", "PYTHON",
             "CC", "CXX", "PATH", "LD_", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")  # fmt: skip
"""Beginnings of the names of environment variables that decide which backends can run, and on which GPUs.

Slurm numbers the GPUs of each job from 0, so two jobs of a host may differ only in its own variables.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """What an earlier command found out."""

    machine: Machine
    infos: tuple[BackendInfo, ...]
    """Of all of softbench's own sources."""


def read(device: str, sources: Iterable[PluginSource]) -> Known | None:
    """The entry of this environment; None if there is none, if it is too old, or if it does not hold all of softbench's own sources.

    Args:
        device: the `--device` setting.
        sources: the plugin sources of the command; only softbench's own are looked up.
    """
    path = _path(device)
    own = {source.label: source for source in sources if source.own}
    try:
        if not 0 <= time.time() - path.stat().st_mtime < SECONDS:
            return None
        data = json.loads(path.read_text("utf-8"))
        found = tuple(info_from_json(info, own[label]) for label, infos in data["infos"].items() for info in infos)
        machine = from_json(Machine, data["machine"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Known(machine, found) if {info.origin.label for info in found} == set(own) else None


def write(device: str, machine: Machine, sources: Iterable[PluginSource], infos: Sequence[BackendInfo]) -> None:
    """Keep an entry, if the infos hold every one of softbench's own sources. A folder that cannot be written is no error."""
    own = [info for info in infos if info.origin.own]
    if not machine.gpus and any(Path("/dev").glob("nvidia[0-9]*")):  # a GPU that could not be used may be usable soon
        return
    if any(info.broken for info in own) or {info.origin.label for info in own} != {source.label for source in sources if source.own}:
        return
    by_label: dict[str, list[object]] = {}
    for info in own:
        by_label.setdefault(info.origin.label, []).append(info_to_json(info))
    path = _path(device)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob("*.json"):
            if time.time() - old.stat().st_mtime > SECONDS:
                old.unlink(missing_ok=True)
        replace_file(path, json.dumps({"machine": to_json(machine), "infos": by_label}))


def _path(device: str) -> Path:
    return cache_folder() / "infos" / f"{_environment()}-{device.replace(':', '')}.json"


def _environment() -> str:
    """A hash of all that decides which backends can run."""
    digest = hashlib.sha256(repr((softbench.__version__, sys.version, sys.executable, sys.path)).encode())
    for path in _files():
        with suppress(OSError):
            digest.update(repr((str(path), path.stat().st_mtime_ns, path.stat().st_size)).encode())
    digest.update(repr(sorted((name, value) for name, value in os.environ.items() if name.startswith(VARIABLES))).encode())
    with suppress(OSError):
        digest.update(Path("/proc/driver/nvidia/version").read_bytes())
    return digest.hexdigest()[:24]


def _files() -> Iterator[Path]:
    """Files and folders whose times and sizes belong to the environment; installing a package changes its folder."""
    yield from sorted(Path(softbench.__file__).parent.rglob("*.py"))
    yield from (Path(folder) for folder in sys.path if folder)
    yield from sorted(Path("/dev").glob("nvidia*"))
    yield from (Path(found) for name in PROGRAMS if (found := shutil.which(name)))
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")  # as `cuda_toolkit` looks for nvcc
    yield from (Path(home) / "bin" / "nvcc" for home in homes if home)
