"""The glossary gives each term one meaning, also the labels."""

from softbench.report import glossary
from softbench.results.columns import LABELS


def test_each_term_has_one_meaning():
    assert len(glossary.meanings()) == sum(map(len, glossary.sections().values()))


def test_meanings_are_plain_text_and_contain_the_labels():
    found = glossary.meanings()
    assert found["extra"] == "A backend that --backends all leaves out."
    assert all(found[label] == text for label, text in LABELS.items())
