"""A solution of FlashInfer-Trace as a module: a JSON file with source texts and an entry point."""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Mapping
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from softbench.core.case import safe_name
from softbench.core.errors import UsageError

LANGUAGES = ("python", "triton", "tilelang")


def read(path: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """A JSON object that has these keys. Raises UsageError."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}") from None
    lacking = [key for key in keys if not isinstance(found, dict) or key not in found]
    if lacking:
        kinds = {"axes": "is a definition: give it with --problem flashinfer:", "sources": "is a solution: give it with --plugin"}
        hint = next((f"; it {text}" for key, text in kinds.items() if isinstance(found, dict) and key in found and key not in keys), "")
        raise UsageError(f"lacks {', '.join(lacking)}, which FlashInfer-Trace has there{hint}")
    return dict(found)


def solution(path: Path) -> ModuleType:
    """The module of a solution's file, with its entry point as `run`. Raises UsageError."""
    found = read(path, ("definition", "spec", "sources"))
    spec = found["spec"]
    if (language := spec.get("language")) not in LANGUAGES:
        raise UsageError(f"its language is {language}; softbench loads {', '.join(LANGUAGES)}")
    file, _, name = str(spec.get("entry_point", "")).partition("::")
    texts = {str(one["path"]).removesuffix(".py").replace("/", "."): str(one["content"]) for one in found["sources"]}
    module = module_of(path, texts, file.removesuffix(".py").replace("/", "."))
    if not callable(run := getattr(module, name, None)):
        raise UsageError(f"its entry point {file} has no function {name}")

    def entry(*given: Any) -> Any:
        return run(*given)

    entry.__module__ = module.__name__
    entry.__doc__ = str(found.get("description") or "")
    vars(entry).update(destination=bool(spec.get("destination_passing_style", True)), definition=safe_name(str(found["definition"])))
    module.run = entry  # type: ignore[attr-defined]
    return module


def module_of(path: Path, texts: Mapping[str, str], main: str) -> ModuleType:
    """The module of this name among source texts that import each other. Raises UsageError if there is none."""

    class Source(ExecutionLoader):
        def get_filename(self, fullname: str) -> str:
            return f"{path}:{fullname}.py"

        def get_source(self, fullname: str) -> str:
            text, name = texts[fullname], self.get_filename(fullname)
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)  # compilers of kernels ask for lines
            return text

    class Finder(MetaPathFinder):
        def find_spec(self, name: str, place: Any, target: Any = None) -> Any:
            return spec_from_loader(name, Source()) if name in texts else None

    if main not in texts:
        raise UsageError(f"has no source {main}.py; it has {', '.join(texts)}")
    sys.meta_path.insert(0, Finder())
    spec = spec_from_loader(main, Source())
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[main] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module
