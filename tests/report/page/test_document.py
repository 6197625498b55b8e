"""The page of results in a browser: what it shows, that it asks for nothing, and that clicks and keys work."""

import base64
import csv
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from softbench.core.text import three_digits
from softbench.gate.run_files import read_report
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State, Verdict
from softbench.report.page import comparison, details, document, overview
from softbench.report.page.source import Source, names, read_source
from softbench.results import compare
from softbench.results.csv import read_csv, to_csv
from softbench.results.document import beside, load, packed

RESULTS = Path(__file__).parents[3] / "results" / "h200"
MANY = 1050
SAMPLES_OF_PART = 50_000
MAX_BYTES_OF_1000 = 5e6
PARTS = ("overview", "curves", "heat", "cells", "wrong", "environment")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def many(folder):
    """A CSV of 1050 cells without JSON: one case of a committed file at many N. Beside it lies `few.csv` with 20 of them."""
    rows, _ = read_csv(RESULTS / "frontier.csv")
    first = [row for row in rows if row.case == rows[0].case]
    lines = [replace(row, N=N) for N in range(64, 64 * MANY, 64) for row in first]
    for name, count in (("many", MANY), ("few", 20)):
        (folder / f"{name}.csv").write_text(to_csv(lines[:count]))
    return folder / "many.csv"


@pytest.fixture(scope="module")
def part(folder):
    """The cells of a committed file of one dtype and M, with their samples."""
    rows, _ = read_csv(RESULTS / "frontier.csv")
    (folder / "part.csv").write_text(to_csv([row for row in rows if (row.dtype, row.M) == ("bf16", 4096)]))
    stored = load(RESULTS / "frontier.json.gz")
    cells = [cell for cell in stored["cells"] if (cell["case"]["dtype"], cell["case"]["M"]) == ("bf16", 4096)]
    (folder / "part.json.gz").write_bytes(packed(stored | {"cells": cells}))
    return folder / "part.csv"


@pytest.fixture(scope="module")
def results(many, part):
    """The path of a results file by its name."""
    return lambda name: {"many": many, "few": many.with_name("few.csv"), "part": part}.get(name, RESULTS / f"{name}.csv")


@pytest.fixture(scope="module")
def page(folder, results):
    """Makes the page of a results file once. That of `part` has too many samples to show all."""
    made = {}

    def of(name):
        if name not in made:
            file = results(name)
            with pytest.MonkeyPatch.context() as patch:
                if name == "part":
                    patch.setattr(details, "SAMPLES", SAMPLES_OF_PART)
                made[name] = document.write([read_source(file, read_csv(file)[0])], folder / f"{name}.html")
        return made[name]

    return of


@pytest.fixture(scope="module")
def csv_of(results):
    """The lines of a results file."""

    def of(name):
        with results(name).open() as file:
            return list(csv.DictReader(file))

    return of


@pytest.mark.parametrize("name", ["odd", *(pytest.param(name, marks=pytest.mark.slow) for name in ("many", "frontier", "strategies"))])
def test_page_has_the_numbers_of_the_csv_and_no_request(browser, page, csv_of, name):
    file, rows = page(name), csv_of(name)
    assert file.stat().st_size <= MAX_BYTES_OF_1000 * max(1, len(rows) / 1000)
    browser.open(file)
    for part in PARTS:
        browser.click(f"#tab-{part}")
        (shown,) = [section for section in browser.all("main > section") if section.is_displayed()]
        assert shown.get_attribute("id") == f"part-{part}"
        assert browser.run("return arguments[0].innerText", shown).strip()
    assert not re.search(r"\b(nan|undefined|null)\b", browser.run("return document.body.innerText"))
    data = browser.run("return page.data")
    texts = browser.run("return page.all('#cell-table tbody tr').map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert len(texts) == len(rows) == len(data["cells"])
    for values, line, row in zip(data["cells"], texts, rows, strict=True):
        found = dict(zip(data["columns"], values, strict=True))
        assert all(same(found[name], text) for name, text in row.items())
        assert line[0] == row["backend"]
        assert line[8] == bandwidth(row)
    assert browser.console() == []
    assert browser.requests() == [file.as_uri()]


def bandwidth(row):
    """The text of a row's bandwidth, which is marked if it is not the memory's."""
    return three_digits(float(row["gbps"])) + " (L2)" * ("L2-resident" in row["labels"]) if row["gbps"] else ""


def same(value, text):
    """True if a value of the page's data is what the CSV has."""
    if value is None or value == "":
        return text == ""
    return float(value) == float(text) if isinstance(value, int | float) or value == "inf" else value == text.lstrip("'")


def shown_rows(browser):
    """The texts of the rows that no filter hides."""
    rows = "page.all('#cell-table tbody tr').filter((row) => !row.hidden)"
    return browser.run(f"return {rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")


def test_filters_and_sorting_follow_clicks_and_keys(browser, page, csv_of):
    browser.open(page("part"), "cells")
    rows = csv_of("part")
    browser.run("page.find('select[data-column=backend]').focus()")
    browser.keys("qua")
    assert {line[0] for line in shown_rows(browser)} == {"quack"}
    assert browser.find("#shown").text == f"{sum(row['backend'] == 'quack' for row in rows)} of {len(rows)} cells"
    browser.click("#search")
    browser.keys("backward 8192")
    assert {(line[1], line[3]) for line in shown_rows(browser)} == {("backward", "4096x8192")}
    browser.click("#filters button[type=reset]")
    browser.click("#doubtful")
    marked = [row for row in rows if {"noisy", "launch-bound"} & set(row["labels"].split())]
    assert len(shown_rows(browser)) == len(marked)
    browser.click("#doubtful")
    browser.click("th[data-sort=gbps] button")
    ordered = [line[8] for line in shown_rows(browser)]
    lacking = sum(not row["gbps"] for row in rows)
    assert [float(text.split()[0]) for text in ordered[: len(rows) - lacking]] == sorted(
        float(three_digits(float(row["gbps"]))) for row in rows if row["gbps"]
    )
    assert ordered[len(rows) - lacking :] == [""] * lacking
    browser.click("th[data-sort=gbps] button")
    assert browser.find("th[data-sort=gbps]").get_attribute("aria-sort") == "descending"
    assert float(shown_rows(browser)[0][8]) == max(float(text.split()[0]) for text in ordered if text)
    assert browser.console() == []


def test_row_opens_to_samples_and_every_column(browser, page, csv_of, part):
    browser.open(page("part"), "cells")
    browser.click("#cell-table tr[data-c='5'] button.open")
    row = csv_of("part")[5]
    pairs = browser.run("return page.all('.detail dl div').map((pair) => [...pair.children].map((part) => part.textContent))")
    found = {name: text for name, text in pairs if name != "file"}
    assert found.keys() == {name for name, text in row.items() if text}
    assert all(text == row[name] or float(text) == float(row[name]) for name, text in found.items())
    command = browser.find(".detail .command").text
    assert command == "softbench run --backends copy,torch,triton-row --M 4096 --N 1024 --dtype bf16 --direction forward --timer do_bench"
    dots = len(browser.all(".detail .strip circle"))
    assert 100 < dots <= int(row["n"])
    browser.click(".detail summary")
    record = load(beside(part))["cells"][5]["outcome"]["timing"]["batches"][0]
    texts = [cell.text for cell in browser.all(".detail details tbody tr:first-child td")]
    assert texts[:4] == ["0", "0", str(record["position"]), str(len(record["samples_us"]))]
    assert f"{record['telemetry']['sm_clock_mhz']} MHz" in texts
    values, left = texts[-1].split(" (")
    assert left == f"{len(values.split())} of {len(record['samples_us'])} are shown)"
    assert {float(value) for value in values.split()} <= {float(f"{us:.4g}") for us in record["samples_us"]}
    browser.click("#cell-table tr[data-c='5'] button.open")
    assert browser.all(".detail") == []


def test_page_without_samples_says_so(browser, page):
    browser.open(page("few"), "cells")
    assert "few.json.gz is not beside few.csv" in browser.find(".note").text
    browser.click("#cell-table tr[data-c='1'] button.open")
    assert "few.json.gz is not beside few.csv" in browser.find(".detail").text


def test_points_speak_to_mouse_and_keyboard_alike(browser, page, csv_of):
    browser.open(page("part"), "curves")
    point = next(point for point in browser.all("figure.chart:not([hidden]) svg [data-c]") if "cuda" in point.get_attribute("aria-label"))
    row = csv_of("part")[int(point.get_attribute("data-c"))]
    browser.hover(point)
    text = browser.find("#tip").text
    assert text == point.get_attribute("aria-label")
    assert text.startswith(f"cuda, forward bf16 {row['M']}x{row['N']}")
    assert all(part in text for part in ("95 % interval", "of copy", "of its bound", "softbench run --backends copy,torch,cuda"))
    browser.run("page.find('figure.chart:not([hidden]) svg [data-c][tabindex=\"0\"]').focus()")
    first = browser.driver.switch_to.active_element.get_attribute("data-c")
    browser.keys("\ue014")  # the right arrow
    second = browser.driver.switch_to.active_element
    assert second.get_attribute("data-c") != first
    assert browser.find("#tip").text == second.get_attribute("aria-label")
    browser.keys("\ue007")  # Enter
    assert browser.find("tr.detail .command").text == second.get_attribute("aria-label").splitlines()[-1]
    assert browser.console() == []


def test_legend_hides_a_line_in_every_figure(browser, page):
    browser.open(page("part"), "curves")
    shown = "return page.all('figure.chart:not([hidden]) svg [data-c]').filter((point) => point.getClientRects().length).length"
    before = browser.run(shown)
    browser.click(".legend button[data-name=cuda]")
    assert browser.find(".legend button[data-name=cuda]").get_attribute("aria-pressed") == "false"
    hidden = before - browser.run(shown)
    assert hidden > 10
    browser.run("page.find('[name=slice]').focus()")
    browser.keys("\ue015")  # the next shapes
    assert browser.find(".legend button[data-name=cuda]").get_attribute("aria-pressed") == "false"
    browser.click(".legend button[data-name=cuda]")
    browser.run("page.find('[name=slice]').focus()")
    browser.keys("\ue013")
    assert browser.run(shown) == before


def test_tab_reaches_a_figure_whose_first_line_is_hidden(browser, page):
    browser.open(page("odd"), "curves")
    stops = "return page.all('figure.chart:not([hidden]) svg [data-c][tabindex=\"0\"]').map((point) => point.getClientRects().length)"
    first = browser.run("return page.data.cells[page.find('figure.chart:not([hidden]) svg [data-c][tabindex=\"0\"]').dataset.c][1]")
    browser.click(f".legend button[data-name^={first}]")
    assert browser.run(stops) == [1]


def test_skip_link_stays_on_the_shown_part(browser, page):
    browser.open(page("odd"), "cells")
    browser.run("page.find('.skip').focus()")
    browser.keys("\ue007")  # Enter
    assert browser.find("#cell-table").is_displayed()
    assert browser.driver.switch_to.active_element.get_attribute("id") == "main"


def test_dark_page_prints_light(browser, page):
    browser.open(page("odd"))
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.click("#theme")
    assert browser.run(paper) != "rgb(255, 255, 255)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.run(paper) == "rgb(255, 255, 255)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_heat_map_shows_the_speed_up_over_a_chosen_backend(browser, page, csv_of):
    browser.open(page("odd"), "heat")
    rows = csv_of("odd")
    place = next(place for place in browser.all(".heat td[data-c]"))
    row = rows[int(place.get_attribute("data-c"))]
    assert place.text.startswith("cuda +")
    browser.run("page.find('#heat-show').focus()")
    browser.keys("speed-up of the fastest over torch")
    assert place.text == f"{float(row['speedup']):.2f}x cuda"
    browser.click(".heat td[data-c]")
    assert browser.find(".detail .command").is_displayed()


def lines_of(table):
    """The texts of a table's cells, as a reader without a script gets them."""
    parts = (re.findall(r"<t[dh]\b.*?</t[dh]>", line, re.DOTALL) for line in re.findall(r"<tr\b.*?</tr>", table, re.DOTALL))
    return [[html.unescape(re.sub(r"<[^>]*>", "", part)).strip() for part in line] for line in parts]


def test_tables_are_complete_without_a_script(page, csv_of):
    text = re.sub(r"<(script|style)>.*?</\1>", "", page("odd").read_text(), flags=re.DOTALL)
    assert not re.search(r"<[a-z][^>]*\s(on\w+|style)=", text)
    rows = csv_of("odd")
    cells = next(
        lines for lines in map(lines_of, re.findall(r"<table\b.*?</table>", text, re.DOTALL)) if lines[0][:2] == ["backend", "pass"]
    )
    assert [(line[0], line[8]) for line in cells[1:]] == [(row["backend"], bandwidth(row)) for row in rows]
    assert "Without JavaScript the table is complete" in text
    assert len(re.findall("<svg", text)) == 8


def test_policy_forbids_all_but_the_own_style_and_script(page):
    text = page("odd").read_text()
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy and "http" not in policy
    for element in ("style", "script"):
        (inner,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", text)


MARKUP = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> {{ 7 * 7 }} ${7} \\u003c ]]> <!--"


@pytest.fixture
def hostile(tmp_path):
    """A results file whose texts are markup and scripts, with a JSON that has a reason of a megabyte."""
    rows, _ = read_csv(RESULTS / "odd.csv")
    document_ = load(RESULTS / "odd.json.gz")
    texts = {"device": MARKUP, "reason": MARKUP, "labels": f"noisy {MARKUP}", "run": MARKUP, "relative_to": "<b>", "timer": "'-alert(1)-'"}
    changed = [replace(row, **texts) for row in rows]
    changed[0] = replace(changed[0], status="failed", grade="", reason="x" * 2_000_000 + MARKUP)
    name = "a<img src=x onerror=alert(1)>'\".csv"
    (tmp_path / name).write_text(to_csv(changed))
    read, _ = read_csv(tmp_path / name)
    cells = document_["cells"]
    cells[0]["outcome"] = {
        "kind": "failed",
        "status": "failed",
        "stage": "build",
        "reason": MARKUP * 10_000,
        "build": None,
        "accuracy": None,
    }
    cells[1]["outcome"]["profile"]["kernels"] = [MARKUP, "k" * 1_000_000]
    header = {"run": read[0].run, "command": MARKUP, "environment": {MARKUP: MARKUP, "list": [MARKUP]}, "git_commit": MARKUP}
    beside(tmp_path / name).write_bytes(packed(document_ | header))
    return tmp_path / name


def test_hostile_texts_stay_texts(browser, hostile):
    found = read_source(hostile, read_csv(hostile)[0])
    assert found.missing == ""
    verdict = Verdict(CellKey("cuda", "forward", "bf16", 1, 2), State.SLOWER, MARKUP, 1.2, (1.1, 1.3), MARKUP, MARKUP)
    report = GateReport(MARKUP, (verdict,), Rules(0.05), (MARKUP,), MARKUP)
    other = replace(found, name="b<script>", header={**found.header, "environment": {"gpu": MARKUP}})
    file = document.write([found, other], hostile.with_name("page.html"), MARKUP, report)
    assert file.stat().st_size < 5e6
    browser.open(file)
    for link in browser.all("#tabs a"):
        link.click()
    browser.click("#tab-cells")
    for cell in (0, 1):
        browser.click(f"#cell-table tr[data-c='{cell}'] button.open")
    assert browser.all(".detail .long")[0].text.endswith(f"(4000 of {len(MARKUP) * 10_000} characters; the run's JSON has all)")
    browser.click("#tab-curves")
    browser.hover(browser.all("figure.chart:not([hidden]) svg [data-c]")[3])
    assert "<img src=x" in browser.find("#tip").text
    assert "owned" not in browser.driver.title.replace("document.title='owned'", "")
    assert browser.run("return document.querySelectorAll('img, iframe, object, main script').length") == 0
    assert browser.console() == []
    assert browser.requests() == [file.as_uri()]


def test_overrides_of_torch_are_shown_and_marked():
    """A result of `torch` may then be that of other kernels."""
    rows, found = read_csv(RESULTS / "odd.csv")[0], {"flag_gems": ["_softmax"]}
    a, b = (
        Source("a", rows, {"environment": {"device": "cuda"}}),
        Source("b", rows, {"environment": {"device": "cuda", "overrides": found}}),
    )
    assert comparison.compare(a, b).notes[1:] == (f"The environments differ: overrides is not recorded in A, {found} in B.",)
    assert comparison.compare(b, b).notes == ("copy is as fast in B as in A (median of 31 cases); verdicts are relative to copy.",)
    assert ("Machine and versions", [("device", "cuda"), ("overrides", "flag_gems ['_softmax']")]) in overview.environment(b)


@pytest.mark.slow
def test_two_files_are_compared_and_more_are_a_trend(browser, main):
    files = [RESULTS / f"{name}.csv" for name in ("losses", "losses-torch")]
    assert main("report", *files, "-o", "two.html")[:2] == (0, "two.html\n")
    browser.open(Path("two.html").resolve(), "comparison")
    texts = browser.run("return page.all('#part-comparison tbody tr').map((row) => [...row.cells].map((cell) => cell.textContent))")
    pairs = compare.pairs(*(read_csv(file)[0] for file in files))
    assert sorted(line[:2] + line[-1:] for line in texts) == sorted([pair.backend, str(pair.case), pair.verdict] for pair in pairs)
    changes = [[*map(float, re.findall(r"[\d.]+", line[5]))] for line in texts if line[5]]
    assert changes
    assert all(low <= value <= high for value, low, high in changes)
    browser.click("#tab-cells")
    assert [line[1] for line in shown_rows(browser)] == ["losses.csv"] * 195 + ["losses-torch.csv"] * 150
    browser.click("#tab-gate")
    assert "a baseline needs 5 processes" in browser.find("#part-gate .note").text
    assert browser.all("#tab-trend") == []
    assert main("report", *files, *files, "-o", "many.html")[0] == 0
    browser.open(Path("many.html").resolve(), "trend")
    assert "losses.csv" in browser.find("#part-trend").text
    browser.click("#part-trend summary")
    shown = [[cell.text for cell in row.find_elements("css selector", "td")] for row in browser.all("#part-trend details tbody tr")]
    assert [row for row in shown if row[0] == "quack"] and all(len(row) == 2 + 4 and all(row[:2]) for row in shown)
    assert browser.console() == []


def test_results_without_any_time_make_a_page():
    rows, _ = read_csv(RESULTS / "odd.csv")
    times = ("median_us", "gbps", "of_copy", "speedup", "p20_us", "p80_us", "low_us", "high_us", "of_peak")
    lost = [replace(row, status="skipped", grade="", reason="too large", **dict.fromkeys(times)) for row in rows]
    for some in (lost, lost[:1], [row for row in rows if row.backend == "copy"]):
        text = document.html([Source("a.csv", some)], "softbench report")
        assert f"{len(some)} cell" in text
        assert "No case has a fastest backend" in text


@pytest.mark.slow
def test_gate_json_is_shown_and_a_wrong_one_is_refused(browser, main):
    verdicts = [
        Verdict(CellKey("cuda", "forward", "bf16", 4096, N), state, f"why {N}", ratio, (ratio - 0.02, ratio + 0.02), "c", "20 rounds", 0.05)
        for N, state, ratio in ((1024, State.SLOWER, 1.12), (2048, State.SAME, 1.0), (4096, State.FASTER, 0.9))
    ]
    report = GateReport("new against old", tuple(verdicts), Rules(0.05), ("a note",), "do this")
    Path("gate.json").write_text(json.dumps(report.document()))
    assert read_report(Path("gate.json")) == report
    assert main("report", RESULTS / "odd.csv", "--gate", "gate.json", "-o", "page.html")[0] == 0
    browser.open(Path("page.html").resolve(), "gate")
    shown = browser.find("#part-gate").text
    assert report.summary in shown
    assert all(f"why {verdict.cell.N}" in shown for verdict in verdicts)
    assert len(browser.all("#part-gate svg")) == 1
    Path("gate.json").write_text('{"verdicts": [3]}')
    code, _, err = main("report", RESULTS / "odd.csv", "--gate", "gate.json", "-o", "other.html")
    assert (code, err.count("\n"), Path("other.html").exists()) == (2, 1, False)
    assert "give the file of softbench gate --json FILE" in err


def test_names_have_the_folders_that_part_them():
    assert names([Path("old/latest.csv"), Path("new/latest.csv")]) == ["old/latest.csv", "new/latest.csv"]
    assert names([Path("old/a.csv"), Path("new/b.csv")]) == ["a.csv", "b.csv"]
    assert names([Path("a.csv"), Path("a.csv"), Path("b.csv")]) == ["a.csv (1)", "a.csv (2)", "b.csv"]


def test_page_says_if_the_gate_judged_another_run():
    rows = read_csv(RESULTS / "odd.csv")[0][:24]
    cells = [CellKey(rows[1].backend, *rows[1].case), CellKey("other", "forward", "bf16", 1, 2)]
    report = GateReport("a", tuple(Verdict(cell, State.SAME, "", 1.0, (0.9, 1.1), "rounds") for cell in cells), Rules(0.05))
    text = document.html([Source("a.csv", rows)], "softbench report", report)
    assert "lack 1 of the 2 cells below: the gate judged another run" in text
    assert "Its interval covers rounds." in text
    own = replace(report, verdicts=report.verdicts[:1])
    assert "judged another run" not in document.html([Source("a.csv", rows)], "softbench report", own)


@pytest.mark.slow
def test_report_refuses_what_it_cannot_read_or_write(main):
    assert main("report", "-")[::2] == (2, "softbench: report -: reads files only, because the samples lie beside the CSV; name the file\n")
    assert main("report", "none.csv")[0] == 2
    Path("a.csv").write_text((RESULTS / "odd.csv").read_text())
    code, out, err = main("report", "a.csv")
    assert (code, out, Path("a.html").is_file()) == (0, "a.html\n", True)
    assert err == "softbench: a.json.gz is not beside a.csv, and that file has the samples; the page has no samples of it\n"
    for taken in ("a.csv", "a.json.gz"):
        before = Path(taken).read_text() if Path(taken).exists() else None
        assert "give a name that ends in .html" in main("report", "a.csv", "-o", taken)[2]
        assert (Path(taken).read_text() if Path(taken).exists() else None) == before
    assert main("report", "a.csv", "-o", "-")[0] == 2 and not Path("-").exists()
    assert "cannot be written" in main("report", "a.csv", "-o", "none/a.html")[2]
    Path("a.json.gz").write_bytes(packed({"run": "another", "cells": []}))
    assert "a.json.gz: is of another, and a.csv is of" in main("report", "a.csv")[2]


@pytest.mark.slow
def test_run_writes_the_page_beside_its_results(cli):
    done = cli("run", "--backends", "torch", "--device", "cpu", "--M", "4", "--N", "8", "--quick", "--report")
    assert done.returncode == 0, done.stderr
    (page,) = (cli.folder / "results").glob("run-*.html")
    assert f"wrote results/{page.name}" in done.stderr
    assert page.read_text() == (cli.folder / "results" / "latest.html").read_text()
    assert page.with_suffix(".csv").name in page.read_text()
