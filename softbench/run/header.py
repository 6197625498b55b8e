"""The header of a run document."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from softbench.core.case import YARDSTICK
from softbench.plan.plan import Plan
from softbench.results import store


def header(plan: Plan, command: str, version: str) -> dict[str, Any]:
    """The run document without its cells: command, versions, settings, machine and backends."""
    settings = plan.settings
    return {
        "command": command,
        "softbench": version,
        "git_commit": _git_commit(),
        "device_name": plan.device_name,
        "backends": [info.name for info in plan.infos],
        "origins": {info.name: info.origin.shown for info in plan.infos},
        "sources": {info.name: info.source for info in plan.infos},
        "yardstick": YARDSTICK,
        "relative_to": settings.relative_to,
        "settings": {**settings.measuring(), "timeout": settings.timeout, "memory_share": settings.memory_share},
        "environment": plan.facts,
        "fingerprint": store.fingerprint(settings.measuring(), plan.facts, version, plan.cases, [info.name for info in plan.infos]),
    }


def _git_commit() -> str | None:
    """The commit of softbench's checkout, with `+` if files differ; None outside a checkout."""
    here = Path(__file__).resolve().parents[1]
    if not (here.parent / ".git").exists():
        return None
    with suppress(OSError, subprocess.SubprocessError):
        git = ["git", "-C", str(here.parent), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None
