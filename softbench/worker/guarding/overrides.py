"""Which operators of torch have a kernel that is not torch's own: those of FlagGems, `torch._native`, `softbench.use` and others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

import torch

KEYS = ("CPU", "CUDA")
NAMESPACE = "aten::"
PACKAGES = ("site-packages", "dist-packages")


def active() -> dict[str, list[str]]:
    """The overridden operators of aten in this process, by the package or file that registered the kernel. Empty without overrides.

    Source: what the dispatcher says of each kernel. It calls a kernel inactive that another one replaced.
    """
    found: dict[str, set[str]] = {}
    for name, key in _operators():
        text = torch._C._dispatch_dump(name)
        kernel = re.search(rf"^{key}: registered at (.+?)(:\d+)? ::", text, re.MULTILINE)
        if kernel and (f"\n{key} (inactive): " in text or kernel[1].endswith(".py")):
            found.setdefault(_owner(kernel[1]), set()).add(name.removeprefix(NAMESPACE))
    return {owner: sorted(found[owner]) for owner in sorted(found)}


def _operators() -> Iterator[tuple[str, str]]:
    for key in KEYS:
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            if name.startswith(NAMESPACE):
                yield name, key


def _owner(where: str) -> str:
    """The package of a registered kernel, such as `flag_gems` or `torch._native`; else the name of its file, without folders."""
    parts = PurePath(where).parts
    for folder in PACKAGES:
        if folder in parts:
            inside = parts[len(parts) - parts[::-1].index(folder) :]
            return ".".join(inside[: 2 if inside[0] == "torch" else 1])
    return PurePath(where).name
