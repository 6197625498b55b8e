"""The site has each page of docs/ in its navigation, and each public name in its reference. CONTRIBUTING.md says how it is built."""

import inspect
import pkgutil
import re
from pathlib import Path

import generate_docs

import softbench
import softbench.kernels

ROOT = Path(__file__).parents[2]
OTHERS = {"index.md", "changelog.md", "contributing.md", "first-comparison.md"}
"""Pages that tools/docs_site.py makes of other files."""


def test_each_page_stands_once_in_the_navigation():
    pages = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(pages | OTHERS)


def reference():
    """The names in the reference."""
    text = "\n".join(file.read_text() for file in (ROOT / "docs" / "api").iterdir())
    return re.findall(r"^::: (\S+)$", text, re.MULTILINE)


def test_each_public_name_is_in_the_reference():
    names = reference()
    errors = {name for name in softbench.__all__ if name.endswith("Error")}
    public = {*softbench.__all__, *softbench.kernels.__all__} - errors - {"__version__"}
    assert public <= {name.rpartition(".")[2] for name in names}
    assert "softbench.core.errors" in names


def test_each_name_of_the_reference_and_each_field_is_explained():
    for name in reference():
        found = pkgutil.resolve_name(re.sub("^kernels", "softbench.kernels", name))
        assert found.__doc__, name
        if inspect.isclass(found):
            assert list(generate_docs.docs_of(found)) or not getattr(found, "__annotations__", None)
