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


def test_readme_leads_to_every_page():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            waiting += [(file.parent / target.partition("#")[0]).resolve() for target in links(file) if ".md" in target]
    assert reached >= set(FILES)
