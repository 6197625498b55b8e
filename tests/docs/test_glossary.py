"""The words of the gate's output are defined: terms in the glossary, kinds of simulated noise in docs/gate.md."""

import re
from pathlib import Path

import pytest
from simulate_gate import NOISES, STORED

ROOT = Path(__file__).parents[2]
PRINTED = {
    **{"gated cell": "gated cells", "advisory cell": "(advisory", "launch-bound": "advisory: launch-bound"},
    **{"screening": "in the screening"},
    **{"ambiguous cell": "ambiguous cell", "undecided cell": "undecided cells", "outlying process": " outlying left out"},
    **{"A/A family": "A/A family", "false alarm": "false alarms: ", "fresh pair": "fresh process pair", "sitting": "between sittings"},
}
"""Terms, and the text with which the gate prints them."""


@pytest.mark.parametrize("term", PRINTED)
def test_a_term_that_the_gate_prints_is_in_the_glossary(term):
    sources = [file.read_text() for folder in ("gate", "report") for file in (ROOT / "softbench" / folder).rglob("*.py")]
    assert any(PRINTED[term] in source for source in sources)
    assert f"\n| {term} | " in (ROOT / "docs" / "glossary.md").read_text()


@pytest.mark.parametrize("name", {**NOISES, **STORED})
def test_each_kind_of_simulated_noise_is_described(name):
    kind = re.sub(r" [.\d]+ %$", "", name)
    assert f"`{kind}`" in (ROOT / "docs" / "gate.md").read_text()
