"""The English of README and docs: short sentences, no vague words, a front page that stays one."""

import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
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
