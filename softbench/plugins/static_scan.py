"""The static scan: reads a plugin's source for its backends' names without running it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from softbench.core.case import NAME, OPERATION
from softbench.core.errors import UsageError
from softbench.core.text import one_line
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import FILE, PluginSource, module_file, source_of

ASSIGNED = ("backend", "backends")
"""The names under which a file has its backends."""
LOAD = "not imported, as that runs its code; --load imports it"


def require_python(plugins: Iterable[Path]) -> None:
    """Read the plugins that the user names.

    Raises:
        UsageError: one does not exist, or is not Python, with its line.
    """
    for source in map(source_of, plugins):
        if broken := at(source)[0].broken:
            raise UsageError(f"--plugin {source.shown}: {broken.removeprefix('import: ')}")


def at(source: PluginSource) -> list[BackendInfo]:
    """The infos of a plugin source by static scan; at least one, with the source's label."""
    file = Path(source.target)
    if file.is_dir():
        return [_unread(source)]
    targets: Collection[str] = ASSIGNED
    if source.kind != FILE:
        module, _, attribute = source.target.partition(":")
        found_file, targets = module_file(module), (attribute,)
        if found_file is None or found_file.suffix != ".py":
            return [_unread(source)]
        file = found_file
    try:
        tree = ast.parse(file.read_bytes())
    except OSError as error:
        return [BackendInfo(source.label, source, broken=f"import: {error.strerror}", loaded=False)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # errors of `ast.parse` for other texts than Python
        at = f"{file.name}:{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else file.name
        line = f"{type(error).__name__}{f': {error.msg}' if isinstance(error, SyntaxError) else ''} ({at})"
        return [BackendInfo(source.label, source, broken=f"import: {one_line(line)}", loaded=False)]
    if source.function:
        return [BackendInfo(source.label, source, summary=f"{_summary(tree, source.function)} ({LOAD})".strip(), loaded=False)]
    found = _backends(tree, targets) or (_functions(tree, source.label) if source.kind == FILE else {})
    if not found:
        return [_unread(source)]
    names = {name: f"{source.alias}.{name}" if len(found) > 1 else source.alias for name in found} if source.alias else {}
    return [BackendInfo(names.get(name, name), source, summary=f"{text} ({LOAD})".strip(), loaded=False) for name, text in found.items()]


def _summary(tree: ast.Module, function: str) -> str:
    """The first line of the docstring of a function at the top level; empty if there is none."""
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    return one_line((ast.get_docstring(named[0]) or "").partition("\n")[0]) if named else ""


def _unread(source: PluginSource) -> BackendInfo:
    text = f"its source does not state its backends' names; {source.label} selects all of them ({LOAD})"
    return BackendInfo(source.label, source, summary=text, loaded=False)


def _backends(tree: ast.Module, targets: Collection[str]) -> dict[str, str]:
    """Names and first docstring lines of the objects assigned to one of the targets; empty if one cannot be read."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found: dict[str, str] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not any(isinstance(t, ast.Name) and t.id in targets for t in node.targets):
            continue
        for made in node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]:
            made_of = classes.get(made.func.id) if isinstance(made, ast.Call) and isinstance(made.func, ast.Name) else None
            name = _name(made_of) if made_of else ""
            if made_of is None or not name:
                return {}
            found[name] = one_line((ast.get_docstring(made_of) or "").partition("\n")[0])
    return found


def _functions(tree: ast.Module, label: str) -> dict[str, str]:
    """The backend of a file that defines the function of the default operation and assigns no backend; else empty."""
    targets = {getattr(target, "id", "") for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == OPERATION and not targets.intersection(ASSIGNED):
            return {label: one_line((ast.get_docstring(node) or ast.get_docstring(tree) or "").partition("\n")[0])}
    return {}


def _name(made_of: ast.ClassDef) -> str:
    """The class's `name = "..."` if that is a valid name, else an empty text."""
    for target, value in _assigned(made_of):
        if isinstance(target, ast.Name) and target.id == "name" and isinstance(value, ast.Constant):
            return value.value if isinstance(value.value, str) and NAME.fullmatch(value.value) else ""
    return ""


def _assigned(made_of: ast.ClassDef) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a class's body assigns, and to what; also each of `name, compiles = "mine", True`."""
    for node in made_of.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                yield from zip(target.elts, value.elts, strict=True)
            else:
                yield target, value
