"""A plugin seen without being run: its backends' names from the source of a file, as far as they stand there; of a package, its source."""

from __future__ import annotations

import ast
from pathlib import Path

from softbench.core.text import one_line
from softbench.core.validate import NAME
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource

LOAD = "not imported, as that runs its code; with --load it is"


def at(source: PluginSource) -> list[BackendInfo]:
    """The infos that can be told of a plugin from outside; always at least one, under the source's own label."""
    if source.kind != "file":
        return [BackendInfo(source.label, source, summary=LOAD, loaded=False)]
    try:
        tree = ast.parse(Path(source.target).read_bytes())
    except OSError as error:
        return [BackendInfo(source.label, source, broken=f"import: {error.strerror}", loaded=False)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # what `ast.parse` has for texts that are no Python
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) and error.lineno else type(error).__name__
        return [BackendInfo(source.label, source, broken=f"import: {one_line(line)}", loaded=False)]
    found = _backends(tree)
    if not found:
        return [BackendInfo(source.label, source, summary=f"its backends' names do not stand in its source; {LOAD}", loaded=False)]
    names = {name: f"{source.alias}.{name}" if len(found) > 1 else source.alias for name in found} if source.alias else {}
    return [BackendInfo(names.get(name, name), source, summary=f"{text} ({LOAD})".strip(), loaded=False) for name, text in found.items()]


def _backends(tree: ast.Module) -> dict[str, str]:
    """Name and first line of the docstring of what the module assigns to `backend` or `backends`; none where one of them cannot be read."""
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


def _name(made_of: ast.ClassDef) -> str:
    """The class's `name = "..."`, where that is a name."""
    for node in made_of.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if any(isinstance(target, ast.Name) and target.id == "name" for target in targets) and isinstance(value, ast.Constant):
            return value.value if isinstance(value.value, str) and NAME.fullmatch(value.value) else ""
    return ""
