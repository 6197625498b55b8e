"""The page of results in a browser: what it shows, that it asks for nothing, and that clicks and keys work."""

import base64
import csv
import gzip
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from documents import packed
from sampled import sampled

from softbench.gate.run_files import read_report
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import GateReport, Rules, State, Verdict
from softbench.report.page import comparison, data, document, overview
from softbench.report.page.source import Source, names, read_source
from softbench.results import compare
from softbench.results.csv import read_csv, to_csv
from softbench.results.document import beside, load

RESULTS = Path(__file__).parents[3] / "results" / "h200"
MANY = 1050
SAMPLES_OF_PART = 50_000
MAX_BYTES_OF_1000 = 1e6
PARTS = ("overview", "curves", "map", "cells", "wrong", "environment")


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
                    patch.setattr(data, "SAMPLES", SAMPLES_OF_PART)
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
    opened(browser, file)
    for part in PARTS:
        browser.click(f"#tab-{part}")
        browser.find(f"#part-{part}")
        (shown,) = [section for section in browser.all("main > section") if section.is_displayed()]
        assert browser.run("return arguments[0].innerText", shown).strip()
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert not re.search(r"\b(nan|undefined|null)\b", browser.run("return document.body.innerText"))
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    values = browser.run(
        "return arguments[0].map((name) => page.data.cells[name].map((value) => value === Infinity ? 'inf' : value))", names
    )
    for name, column in zip(names, values, strict=True):
        assert all(same(value, row[name]) for value, row in zip(column, rows, strict=True)), name
    browser.click("#tab-cells")
    texts = shown_rows(browser)
    assert 20 < len(texts) < 100
    for line, row in zip(texts, rows, strict=False):
        assert line["backend"] == row["backend"]
        assert line["GB/s"].endswith(" (L2)") == ("L2-resident" in row["labels"])
        assert not row["gbps"] or float(line["GB/s"].removesuffix(" (L2)")) == pytest.approx(float(row["gbps"]), rel=0.006)
    assert browser.console() == []
    assert browser.requests() == [file.as_uri()]


def opened(browser, file, part="", **settings):
    """Open a page, and wait until its script has read the data."""
    browser.open(file, part, **settings)
    browser.find("html[data-ready]")


def same(value, text):
    """True if a value of the page's data is what the CSV has."""
    if value is None or value == "":
        return text == ""
    return float(value) == float(text) if isinstance(value, int | float) or value == "inf" else value == text.lstrip("'")


def shown_rows(browser):
    """The rows of the table of cells that are elements, by the names of the columns."""
    names = browser.run("return page.all('#cell-list thead button').map((head) => head.textContent)")
    lines = browser.run("return page.all('#cell-list tr[data-row]').map((row) => [...row.cells].map((cell) => cell.textContent))")
    return [dict(zip(names, line, strict=True)) for line in lines]


def order(browser):
    """The numbers of all cells that no filter hides, in the table's order."""
    return browser.run("return page.cells.list().rows()")


@pytest.mark.slow
def test_filters_and_sorting_follow_clicks_and_keys(browser, page, csv_of):
    opened(browser, page("part"), "cells")
    rows = csv_of("part")
    browser.find("select[data-column=backend]")
    browser.run("page.find('select[data-column=backend]').focus()")
    browser.keys("qua")
    assert {rows[cell]["backend"] for cell in order(browser)} == {"quack"}
    assert browser.find("#shown").text == f"{sum(row['backend'] == 'quack' for row in rows)} of {len(rows)} cells"
    browser.click("#search")
    browser.keys("backward 8192")
    assert {(line["pass"], line["shape"]) for line in shown_rows(browser)} == {("backward", "4096x8192")}
    browser.click("#filters button[type=reset]")
    browser.click("#doubtful")
    marked = [number for number, row in enumerate(rows) if {"noisy", "launch-bound"} & set(row["labels"].split())]
    assert order(browser) == marked
    browser.click("#doubtful")
    browser.run("page.all('#cell-list thead button').find((head) => head.textContent === 'GB/s').click()")
    ordered = [float(rows[cell]["gbps"]) if rows[cell]["gbps"] else None for cell in order(browser)]
    lacking = ordered.count(None)
    assert ordered[: len(rows) - lacking] == sorted(filter(None, ordered))
    assert ordered[len(rows) - lacking :] == [None] * lacking
    browser.run("page.all('#cell-list thead button').find((head) => head.textContent === 'GB/s').click()")
    assert browser.find("th[aria-sort]").get_attribute("aria-sort") == "descending"
    assert float(rows[order(browser)[0]]["gbps"]) == max(filter(None, ordered))
    assert browser.console() == []


@pytest.mark.slow
def test_a_long_table_scrolls_and_its_rows_are_reached_by_keys(browser, page, csv_of):
    opened(browser, page("many"), "cells")
    rows = csv_of("many")
    browser.run("page.find('.scroller').scrollTop = 1e7")
    browser.find(f"tr[data-row='{len(rows) - 1}']")
    assert len(browser.all("#cell-list tr[data-row]")) < 100
    browser.run("page.find('.scroller').scrollTop = 0")
    browser.find("tr[data-row='0'] button").click()
    browser.keys("\ue00c")  # Escape: the side panel closes, and the focus goes back
    for _ in range(3):
        browser.keys("\ue015")  # the down arrow
    browser.keys("\ue007")  # Enter
    assert browser.find("#panel h2").text == rows[3]["backend"]


def test_side_panel_has_samples_and_every_column(browser, page, csv_of, part):
    opened(browser, page("part"), "cells")
    browser.click("tr[data-row='5'] button")
    row = csv_of("part")[5]
    pairs = browser.run("return page.all('#panel .columns div').map((pair) => [...pair.children].map((part) => part.textContent))")
    found = {name: text for name, text in pairs if name != "file"}
    assert found.keys() == {name for name, text in row.items() if text}
    assert all(text == row[name] or float(text) == float(row[name]) for name, text in found.items())
    command = browser.find("#panel .command").text
    assert command == "softbench run --backends copy,torch,triton-row --M 4096 --N 1024 --dtype bf16 --direction forward --timer do_bench"
    dots = len(browser.all("#panel .strip circle"))
    assert 100 < dots <= int(row["n"])
    browser.click("#panel summary")
    record = load(beside(part))["cells"][5]["outcome"]["timing"]["batches"][0]
    texts = [cell.text for cell in browser.all("#panel details tbody tr:first-child td")]
    assert texts[:4] == ["0", "0", str(record["position"]), str(len(record["samples_us"]))]
    assert f"{record['telemetry']['sm_clock_mhz']} MHz" in texts
    values, left = texts[-1].split(" (")
    assert left == f"{len(values.split())} of {len(record['samples_us'])} are shown)"
    assert {float(value) for value in values.split()} <= {float(f"{us:.4g}") for us in record["samples_us"]}


def test_page_without_samples_says_so(browser, page):
    opened(browser, page("few"), "cells")
    assert "few.json.gz is not beside few.csv" in browser.find(".note").text
    browser.click("tr[data-row='1'] button")
    assert "few.json.gz is not beside few.csv" in browser.find("#panel").text


@pytest.mark.slow
def test_points_speak_to_mouse_and_keyboard_alike(browser, page, csv_of):
    """The fastest are named on the picture; a point says its cell, and opens it."""
    opened(browser, page("part"))
    figure = browser.find("#picture .canvas")
    browser.run("arguments[0].focus()", figure)
    browser.keys("\ue014")  # the right arrow
    first = browser.find("#tip").text
    browser.keys("\ue014")
    second = browser.find("#tip").text
    assert first != second
    assert all(part in second for part in ("95 % interval", "GB/s", "of its bound"))
    assert browser.run("return page.find('#said').textContent") == second
    ring = browser.find("#picture .ring")
    browser.hover(ring)  # several lines may have a point there
    assert browser.find("#tip").text.split()[1:4] == second.split()[1:4]
    browser.keys("\ue007")  # Enter
    assert second.startswith(browser.find("#panel h2").text)
    browser.keys("\ue00c")  # Escape
    assert browser.driver.switch_to.active_element.get_attribute("class") == "canvas"
    assert browser.console() == []


@pytest.mark.slow
def test_legend_hides_a_line_in_every_figure(browser, page):
    opened(browser, page("part"))
    ink = "return page.find('canvas').toDataURL()"
    before = browser.run(ink)
    browser.click(".legend button[data-name=torch]")
    assert browser.find(".legend button[data-name=torch]").get_attribute("aria-pressed") == "false"
    browser.run("return new Promise(requestAnimationFrame)")
    assert browser.run(ink) != before
    browser.click("#tab-curves")
    assert browser.find("#all-curves .legend button[data-name=torch]").get_attribute("aria-pressed") == "false"


@pytest.mark.slow
def test_terms_tell_their_meaning_to_the_keyboard(browser, page):
    from selenium.webdriver.support.wait import WebDriverWait

    opened(browser, page("odd"), "cells")
    browser.run("page.all('#cell-list thead button').find((head) => head.dataset.term === 'fraction of copy').focus()")
    told = WebDriverWait(browser.driver, 10).until(lambda _: browser.find("#tip").text)  # the page gets an event
    assert told.startswith("fraction of copy: The median of copy over")
    browser.click("tr[data-row='0'] button")
    named = {*browser.run("return page.all('[data-term]').map((term) => term.dataset.term)")}
    assert {"round", "doubtful", "class"} <= named
    assert named <= {*browser.run("return Object.keys(page.data.terms)")}


@pytest.mark.parametrize("tab", sampled(PARTS, lambda tab: tab == "cells"))
def test_small_screen_shows_a_result_of_each_tab(browser, page, tab):
    opened(browser, page("odd"), tab, width=420)
    tabs = [link.rect for link in browser.all("#tabs a")]
    assert all(rect["x"] >= 0 and rect["x"] + rect["width"] <= 420 for rect in tabs)
    wanted = {"overview": "canvas", "curves": "canvas", "map": ".map [data-c]", "cells": "tr[data-row] td:nth-child(3)"}
    place = browser.find(wanted.get(tab, f"#part-{tab} h3")).rect
    assert place["y"] < 600
    assert place["x"] + place["width"] <= 420


@pytest.mark.slow
def test_skip_link_stays_on_the_shown_part(browser, page):
    opened(browser, page("odd"), "cells")
    browser.run("page.find('.skip').focus()")
    browser.keys("\ue007")  # Enter
    assert browser.find("#cell-list").is_displayed()
    assert browser.driver.switch_to.active_element.get_attribute("id") == "main"


@pytest.mark.slow
def test_dark_page_prints_light_and_whole(browser, page, csv_of):
    opened(browser, page("odd"))
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.click("#theme")
    assert browser.run(paper) != "rgb(255, 255, 255)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(paper) == "rgb(255, 255, 255)"
    assert len(browser.all("#cell-list tr[data-row]")) == len(csv_of("odd"))
    assert len(browser.all("#all-curves canvas")) == 4
    browser.run("dispatchEvent(new Event('afterprint'))")
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.slow
def test_winner_map_shows_the_speed_up_over_a_chosen_backend(browser, page, csv_of):
    opened(browser, page("odd"), "map")
    rows = csv_of("odd")
    place = browser.find("#all-maps .map [data-c]")
    row = rows[int(place.get_attribute("data-c"))]
    assert "cuda" in place.text and "+" in place.text
    browser.run("page.find('#map-show').focus()")
    browser.keys("speed-up of the fastest over torch")
    place = browser.find("#all-maps .map [data-c]")
    assert f"{float(row['speedup']):.2f}x" in place.text
    place.click()
    assert browser.find("#panel .command").is_displayed()


@pytest.mark.slow
def test_a_field_has_the_colour_of_the_backend_that_it_names(browser, page):
    opened(browser, page("part"), "map")
    colour = (
        "const [light, dark] = page.data.looks[arguments[1]];"
        "return arguments[0].style.getPropertyValue('--own') === `light-dark(${light}, ${dark})`"
    )
    for place in browser.all("#all-maps .map [data-c]"):
        cell = int(place.get_attribute("data-c"))
        assert browser.run(colour, place, browser.run("return page.value(arguments[0], 'backend')", cell))


def test_two_files_without_a_ratio_say_why(tmp_path):
    rows, _ = read_csv(RESULTS / "frontier.csv")
    other = [replace(row, timer="queued", device="another card") for row in rows]
    a, b = Source("a.csv", rows), Source("b.csv", other)
    notes = comparison.compare(a, b, list(compare.pairs(rows, other))).notes
    assert "timed by do_bench in A, by queued in B" in notes[0]
    assert notes[1].endswith("B is another card.")


def test_text_is_complete_without_a_script(page):
    text = re.sub(r"<(script|style)\b.*?</\1>", "", page("strategies").read_text(), flags=re.DOTALL)
    assert not re.search(r"<[a-z][^>]*\s(on\w+|style)=", text)
    assert "Figures and tables need JavaScript" in text
    assert "423 cells" in text and "low-precision" in text


def test_policy_forbids_all_but_the_own_style_and_script(page):
    text = page("odd").read_text()
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1])
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy and "http" not in policy
    for element in ("style", "script"):
        (inner,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        (packed,) = re.findall(rf'id="packed-{element}">([^<]*)<', text)
        for found in (inner.encode(), gzip.decompress(base64.b64decode(packed))):
            assert f"'sha256-{base64.b64encode(hashlib.sha256(found).digest()).decode()}'" in policy
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
    assert file.stat().st_size < 1e6
    opened(browser, file)
    for link in browser.all("#tabs a"):
        link.click()
    browser.click("#tab-cells")
    for cell in (1, 0):
        browser.click(f"#cell-list tr[data-row='{cell}'] button")
    assert browser.find("#panel .long").text.endswith(f"(4000 of {len(MARKUP) * 10_000} characters; the run's JSON has all)")
    browser.click("#panel .close")
    browser.click("#tab-overview")
    browser.run("page.find('#picture .canvas').focus()")
    browser.keys("\ue014")
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
    changed, same_ = (comparison.compare(*files, compare.pairs(rows, rows)) for files in ((a, b), (b, b)))
    assert changed.notes == (f"The environments differ: overrides is not recorded in A, {found} in B.",)
    assert (same_.drift, same_.notes) == ("copy is as fast in B as in A (median of 31 cases); verdicts are relative to copy.", ())
    assert ("Machine and versions", [("device", "cuda"), ("overrides", "flag_gems ['_softmax']")]) in overview.environment(b)


@pytest.mark.slow
def test_two_files_are_compared(browser, main):
    files = [RESULTS / f"{name}.csv" for name in ("losses", "losses-torch")]
    assert main("report", *files, "-o", "two.html")[:2] == (0, "two.html\n")
    opened(browser, Path("two.html").resolve())
    assert "copy is 0.2 % faster in B" in browser.find("#part-comparison .lead").text
    pairs = compare.pairs(*(read_csv(file)[0] for file in files))
    names = ("backend", "case", "verdict")
    shown = browser.run("return page.data.pairs.verdict.map((_, i) => arguments[0].map((name) => page.data.pairs[name][i]))", names)
    assert sorted(map(tuple, shown)) == sorted((pair.backend, str(pair.case), pair.verdict) for pair in pairs)
    assert shown[0][2] == compare.SLOWER
    browser.click("#pair-figure button")
    backend = browser.run("return page.find('#pair-backend').value")
    assert {line.text for line in browser.all("#pair-list tr[data-row] th")} == {backend}
    assert "The gate does not judge these files" in browser.find("#part-comparison").text
    browser.click("#tab-overview")
    keys = browser.run(
        "return page.all('#picture .key').map((key) => [key.textContent, page.find('line', key).getAttribute('stroke-dasharray')])"
    )
    assert keys == [["losses.csv", "6 4"], ["losses-torch.csv", ""]]
    labels = browser.run("return page.all('#picture .legend button').map((button) => button.textContent)")
    assert labels and len(labels) == len(set(labels))
    assert browser.all("#tab-gate") == []
    assert browser.console() == []


def test_results_without_any_time_make_a_page():
    rows, _ = read_csv(RESULTS / "odd.csv")
    times = ("median_us", "gbps", "of_copy", "speedup", "p20_us", "p80_us", "low_us", "high_us", "of_peak")
    lost = [replace(row, status="skipped", grade="", reason="too large", **dict.fromkeys(times)) for row in rows]
    for some in (lost, lost[:1], [row for row in rows if row.backend == "copy"]):
        text = document.html([Source("a.csv", some)], "softbench report")
        assert f"{len(some)} cell" in text
        assert "no backend but copy has a result" in text


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
    opened(browser, Path("page.html").resolve(), "gate")
    shown = browser.find("#part-gate").text
    assert report.summary in shown
    assert all(f"why {verdict.cell.N}" in shown for verdict in verdicts)
    assert len(browser.all("#gate-figure .dot")) == 3
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
    assert "takes one file, or two to compare, and not 3; of many runs: softbench board" in main("report", *["a.csv"] * 3)[2]
    Path("a.csv").write_text((RESULTS / "odd.csv").read_text())
    code, out, err = main("report", "a.csv")
    assert (code, out, Path("a.html").is_file()) == (0, "a.html\n", True)
    assert err.splitlines()[1] == "softbench: a.json.gz is not beside a.csv, and that file has the samples; the page has no samples of it"
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
