"""results/ is an exhibit: few small files, each on its card's page. A text that names a result names one that is there."""

import re
from pathlib import Path

import pytest

from softbench.results.csv import unvouched
from softbench.results.document import INTERRUPTED, SUFFIX

ROOT = Path(__file__).parents[2]
EXHIBIT = sorted(file for file in (ROOT / "results").glob("*/*") if file.is_file())
MOST_FILES, MOST_BYTES, MOST_PLAIN_JSON = 40, 8_000_000, 150_000
NAMED = re.compile(r"results/(h\d+/[\w.-]*\w)")
CODE = [file for name in ("softbench", "kernels", "tools") for file in ROOT.glob(f"{name}/**/*.py")]
TEXTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *CODE]


def test_the_exhibit_is_small():
    assert len(EXHIBIT) <= MOST_FILES
    assert sum(file.stat().st_size for file in EXHIBIT) <= MOST_BYTES
    assert [file.name for file in EXHIBIT if file.suffix == ".json" and file.stat().st_size > MOST_PLAIN_JSON] == []


def test_each_csv_has_its_document():
    csvs = {file.with_suffix("") for file in EXHIBIT if file.suffix == ".csv"}
    assert csvs == {file.with_name(file.name.removesuffix(SUFFIX)) for file in EXHIBIT if file.name.endswith(SUFFIX)}
    told = [(file, text) for file in EXHIBIT if file.suffix == ".csv" for text in unvouched(file)]
    assert [text for _, text in told if INTERRUPTED not in text] == []
    for file, _ in told:
        page = (ROOT / "docs" / "results" / f"{file.parent.name}.md").read_text()
        assert re.search(rf"^- \[{file.name}\].*, interrupted\)$", page, re.MULTILINE), (
            f"{file} is of an interrupted run, which its page hides"
        )


@pytest.mark.parametrize("card", ["h200", "h100"])
def test_a_page_is_short_and_links_every_file(card):
    page = ROOT / "docs" / "results" / f"{card}.md"
    text = page.read_text()
    assert len(text.splitlines()) <= 250
    assert page.stat().st_size <= 40_000
    for file in (ROOT / "results" / card).iterdir():
        assert f"(../../results/{card}/{file.name})" in text, f"{file.name} is committed and docs/results/{card}.md does not show it"


def test_a_named_result_is_there():
    gone = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in TEXTS
        for name in NAMED.findall(file.read_text())
        if name.count(".") and not name.endswith(".md") and not (ROOT / "results" / name).exists()
    }
    assert gone == set()
