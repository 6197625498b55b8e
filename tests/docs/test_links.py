"""Links and anchors of README and docs resolve, and README leads to every page."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[(?:[^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def links(file):
    return [target for target in LINK.findall(CODE.sub("", file.read_text())) if "://" not in target]


def anchors(file):
    heads = re.findall(r"^#+ (.+)$", CODE.sub(lambda match: match[0].strip("`"), file.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_relative_links_and_anchors_resolve(file):
    for target in links(file):
        path, _, anchor = target.partition("#")
        found = (file.parent / path).resolve() if path else file
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


NAMED = re.compile(r"`((?:softbench|kernels|tests|tools|configs|docs)/[\w./-]+)`")
ROOMS = ("", "worker", "run")
"""Folders of softbench/ whose rooms docs/architecture.md names without them."""


@pytest.mark.parametrize("file", [file for file in FILES if file.name != "CHANGELOG.md"], ids=lambda file: str(file.relative_to(ROOT)))
def test_files_that_a_page_names_are_there(file):
    for name in NAMED.findall(file.read_text()):
        assert (ROOT / name).exists(), name


def test_files_of_the_architecture_are_there():
    named = re.findall(r"`((?:\w+/)+\w+\.\w+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 40
    for name in named:
        assert (ROOT / name).exists() or any((ROOT / "softbench" / room / name).exists() for room in ROOMS), name


@pytest.mark.parametrize("name", ["triton", "cuda"])
def test_files_of_a_design_are_there(name):
    named = re.findall(r"`(\w+\.(?:py|cuh|cu))", (ROOT / "docs" / "kernels" / f"{name}.md").read_text())
    assert len(named) > 10
    for file in named:
        assert (ROOT / "kernels" / name / file).exists(), file


def test_readme_leads_to_every_page():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += [(file.parent / target.partition("#")[0]).resolve() for target in links(file) if ".md" in target]
    assert reached >= set(FILES)
