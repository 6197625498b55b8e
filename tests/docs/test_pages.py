"""README and docs: links resolve, and README leads to every page; sentences are short; words that the gate prints are defined."""

import re
from pathlib import Path
from statistics import mean

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


VAGUE = re.compile(
    r"\b(nobody|somebody|whoever|that (?:is|are) none|is no fault|of them all|what is (?:told|kept|held|said|asked))\b", re.I
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*|\d[\d.,]*")
MAX_MEAN, MAX_WORDS = 15, 35


def paragraphs(text):
    """Prose without code blocks, tables, headings and pictures; a list item is a paragraph."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    block = []
    for line in [*text.splitlines(), ""]:
        item = re.match(r"\s*(?:[-*]|\d+\.) (.*)", line)
        if not line.strip() or line.startswith(("|", "#", "    ", "![", "<")) or item:
            yield " ".join(block)
            block = [item[1]] if item else []
        else:
            block.append(line)
    yield " ".join(block)


def sentences(text):
    for paragraph in paragraphs(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "code", paragraph))
        for sentence in re.split(r"(?<=[.!?])\s+", plain):
            if len(WORD.findall(sentence)) > 3:
                yield sentence


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_sentence_is_long_or_vague(file):
    for sentence in sentences(file.read_text()):
        assert len(WORD.findall(sentence)) <= MAX_WORDS, sentence
        assert not VAGUE.search(sentence), sentence


def test_sentences_are_short_on_average():
    lengths = [len(WORD.findall(sentence)) for file in FILES for sentence in sentences(file.read_text())]
    assert mean(lengths) <= MAX_MEAN


def test_readme_stays_a_front_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


PRINTED = {
    **{"gated cell": "gated cells", "advisory cell": "(advisory", "launch-bound": "advisory: launch-bound"},
    **{"first look": "in the first look"},
    **{"ambiguous cell": "ambiguous cell", "undecided cell": "undecided cells", "outlying process": " outlying left out"},
    **{"false alarm": "false alarms: ", "fresh pair": "fresh process pair", "sitting": "between sittings"},
}
"""Terms, and the text with which the gate prints them."""


@pytest.mark.parametrize("term", PRINTED)
def test_a_term_that_the_gate_prints_is_in_the_glossary(term):
    sources = [file.read_text() for folder in ("gate", "report") for file in (ROOT / "softbench" / folder).rglob("*.py")]
    assert any(PRINTED[term] in source for source in sources)
    assert f"\n| {term} | " in (ROOT / "docs" / "glossary.md").read_text()
