"""The static scan: reads a plugin file's source for its backends' names without running it."""

from __future__ import annotations

import ast
from pathlib import Path

from softbench.core.text import one_line
from softbench.core.validate import NAME
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource

LOAD = "not imported, as that runs its code; with --load it is"


def at(source: PluginSource) -> list[BackendInfo]:
    """The infos of a plugin source by static scan; at least one, with the source's label."""
    if source.kind != "file":
        return [BackendInfo(source.label, source, summary=LOAD, loaded=False)]
    try:
        tree = ast.parse(Path(source.target).read_bytes())
    except OSError as error:
        return [BackendInfo(source.label, source, broken=f"import: {error.strerror}", loaded=False)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # errors of `ast.parse` for other texts than Python
        file = Path(source.target).name
        line = f"SyntaxError: {error.msg} ({file}:{error.lineno})" if isinstance(error, SyntaxError) else f"{type(error).__name__} ({file})"
        return [BackendInfo(source.label, source, broken=f"import: {one_line(line)}", loaded=False)]
    found = _backends(tree) or _functions(tree, source.label)
    if not found:
        return [BackendInfo(source.label, source, summary=f"its source does not state its backends' names; {LOAD}", loaded=False)]
    names = {name: f"{source.alias}.{name}" if len(found) > 1 else source.alias for name in found} if source.alias else {}
    return [BackendInfo(names.get(name, name), source, summary=f"{text} ({LOAD})".strip(), loaded=False) for name, text in found.items()]


def _backends(tree: ast.Module) -> dict[str, str]:
    """Names and first docstring lines of the objects assigned to `backend` or `backends`; empty if one cannot be read."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not any(isinstance(t, ast.Name) and t.id in ("backend", "backends") for t in node.targets):
            continue
        for made in node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]:
            made_of = classes.get(made.func.id) if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) else None
            name = _name(made_of) if made_of else ""
            if made_of is None or not name:
                return {}
            found[name] = one_line((ast.get_docstring(made_of) or "").partition("\n")[0])
    return found


def _functions(tree: ast.Module, label: str) -> dict[str, str]:
    """The backend of a file that defines the function `softmax` and assigns no backend; else empty."""
    targets = {getattr(target, "id", "") for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "softmax" and not targets & {"backend", "backends"}:
            return {label: one_line((ast.get_docstring(node) or ast.get_docstring(tree) or "").partition("\n")[0])}
    return {}


def _name(made_of: ast.ClassDef) -> str:
    """The class's `name = "..."` if that is a valid name, else an empty text."""
    for node in made_of.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if any(isinstance(target, ast.Name) and target.id == "name" for target in targets) and isinstance(value, ast.Constant):
            return value.value if isinstance(value.value, str) and NAME.fullmatch(value.value) else ""
    return ""
