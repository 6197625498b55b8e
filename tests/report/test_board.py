"""The board: what it says is what the results files and `softbench compare` say; it works from disk, at every width, by keyboard."""

import re
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from softbench.report.board.model import Board, GroupKey, collect
from softbench.results import compare
from softbench.results.csv import read_csv, to_csv
from softbench.results.runs import FoundRun, find

EXHIBIT = Path(__file__).parents[2] / "results"
KEY = GroupKey("softmax", "forward", "fp32", "H200")


def found(number):
    return FoundRun(Path(f"{number}.csv"), f"run-{number}", "H200", "", f"2027-01-{number:02}T00:00:00+00:00")


@pytest.fixture
def board_of(make_row):
    """A board of runs, each given by the microseconds of its backends in one case, or by the status of a failed one."""

    def make(*runs, threshold=0.05, timers=(), **changes):
        made = Board(threshold)
        for number, cells in enumerate(runs, 1):
            changes |= {"timer": timers[number - 1]} if timers else {}
            rows = []
            for name, us in cells.items():
                row = make_row(name, us if isinstance(us, float) else 1.0, labels="", **changes)
                ends = {"low_us": row.median_us * 0.995, "high_us": row.median_us * 1.005}
                lost = {"status": us, "median_us": None, "gbps": None}
                rows.append(replace(row, **(ends if isinstance(us, float) else lost)))
            made.add(found(number), rows)
        return made

    return make


def fastest(board):
    (case,) = board.groups[KEY].values()
    return case.fastest


def test_the_fastest_is_that_of_the_newest_result_of_each_backend(board_of):
    board = board_of({"copy": 10.0, "a": 12.0, "b": 13.0}, {"copy": 10.0, "b": 11.0}, {"copy": 10.0, "a": "wrong"})
    assert fastest(board) == [(0, ("a",)), (1, ("b",))]
    assert fastest(board_of({"a": 10.0, "b": 10.01})) == [(0, ("a", "b"))]  # a tie
    assert fastest(board_of({"a": 10.0}, {"a": "failed"})) == [(0, ("a",)), (1, ())]
    assert fastest(board_of({"a": 10.0}, {"a": "unavailable"})) == [(0, ("a",))]  # another machine may lack a package


def test_results_of_older_runs_are_compared_without_the_drift_of_copy(board_of):
    slow_machine, fast_machine = {"copy": 20.0, "a": 22.0}, {"copy": 10.0, "b": 12.0}
    assert fastest(board_of(slow_machine, fast_machine))[-1][1] == ("a",)
    assert fastest(board_of({"a": 22.0}, fast_machine))[-1][1] == ("b",)  # nothing tells the drift


def test_a_share_of_copy_is_of_one_timer(board_of, make_row):
    board = Board()
    rows = [make_row("copy", 10.0, labels="", timer="queued"), make_row("a", 12.0, labels="", timer="do_bench", of_copy=0.8)]
    board.add(found(1), [replace(rows[0], grade="yardstick"), rows[1]])
    (case,) = board.groups[KEY].values()
    assert [point.of_copy for point in case.series["a"]] == [None]


def test_a_time_that_may_be_the_hosts_is_not_compared_with_queued_ones(board_of):
    runs = {"copy": 10.0, "a": 11.0, "c": 12.0}, {"copy": 10.0, "b": 12.0, "c": 12.5}
    assert [names for _, names in fastest(board_of(*runs))] == [("a",)]
    assert [names for _, names in fastest(board_of(*runs, timers=("do_bench", "queued")))] == [("a",), ("b",)]


def test_changes_have_a_kind_and_need_the_threshold(board_of):
    runs = [{"copy": 10.0, "a": 20.0, "b": 20.0, "c": 20.0}, {"copy": 20.0, "a": 40.0, "b": 48.0, "c": "wrong"}]
    runs.append({"copy": 10.0, "a": 18.0, "b": 24.0, "c": 20.0})
    changes = [(one.run, one.before, one.backend, one.kind, list(one.notes)) for one in board_of(*runs).changes]
    assert changes == [
        (1, 0, "b", "slower", []),
        (1, 0, "c", "lost", ["now wrong"]),
        (2, 1, "a", "faster", []),
        (2, 1, "c", "back", []),
    ]
    assert [(one.backend, one.kind) for one in board_of(*runs, threshold=0.15).changes] == [("b", "slower"), ("c", "lost"), ("c", "back")]


def test_what_was_measured_otherwise_stands_apart(board_of):
    assert [key.card for key in board_of({"a": 10.0}, l2="warm").groups] == ["H200, warm L2"]
    assert [key.card for key in board_of({"a": 10.0}, timer="graph").groups] == ["H200, CUDA graphs"]


def test_the_verdicts_are_those_of_compare():
    """`judged` repeats the cells of `frontier`, and no other run between them has any of those."""
    files = [EXHIBIT / "h200" / f"{name}.csv" for name in ("frontier", "judged")]
    a, b = (read_csv(file)[0] for file in files)
    board = Board()
    for file, rows in zip(files, (a, b), strict=True):
        board.add(find([file])[0][0], rows)
    shown = {(one.backend, case, one.kind) for one in board.changes for case, _ in one.cases}
    pairs = [pair for pair in compare.pairs(a, b, board.threshold) if pair.verdict in (compare.FASTER, compare.SLOWER)]
    assert shown == {(pair.backend, pair.case, pair.verdict) for pair in pairs}
    assert len(shown) > 5


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The board of the exhibit, with the pages of two small runs."""
    from softbench.cli.board import _write_page
    from softbench.report.board import site as board_site

    out = tmp_path_factory.mktemp("board")
    board, problems = collect([EXHIBIT])
    board_site.check_folder(out)
    for run in board.runs:
        if run.cells <= 60:
            _write_page(run, out)
    return board_site.write(board, out, "Softmax & <others>", [*problems, "x.csv: is <b>empty</b>"], "softbench board")


VIEWS = ("now", "operations", "history", "changes", "runs")


@pytest.mark.parametrize("width", [420, pytest.param(1400, marks=pytest.mark.slow)])
def test_each_view_of_the_exhibit_works_from_disk_and_says_what_it_shows(browser, site, width):
    assert site.stat().st_size < 200_000
    for view in VIEWS:
        browser.open(site, f"view={view}", width=width)
        assert browser.find("#view .help").text
        assert browser.find('nav a[aria-current="page"]').text.lower() == view
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        assert not re.search(r"\b(nan|undefined|null|infinity)\b", browser.run("return document.body.innerText"), re.IGNORECASE)
        assert browser.console() == []
        assert browser.requests() == [site.as_uri()]


def test_the_first_screen_says_who_is_fastest_and_what_changed(browser, site):
    browser.open(site)
    assert re.match(
        r"cuda is fastest in \d+ of \d+ cases and ties for the fastest in \d+ more\. It has \d+% of copy", browser.find(".answer").text
    )
    assert browser.find(".answer").rect["y"] < 300
    assert "faster" in browser.find(".changes").text
    assert browser.find("h1").text == "Softmax & <others>"


def test_a_choice_is_in_the_address_and_keys_reach_it(browser, site):
    browser.open(site)
    select = browser.find('select[name="op"]')
    browser.run("arguments[0].focus()", select)
    browser.keys("c")
    browser.find('select[name="op"]:has(option:checked[value="cross_entropy"])')
    address = browser.run("return location.hash")
    assert "op=cross_entropy" in address
    assert browser.run("return document.activeElement === arguments[0]", select)
    browser.open(site, address.removeprefix("#").replace("view=now", "view=history"))
    assert browser.find("#chart canvas")
    name = browser.find("td a.name, th a.name").text
    browser.click("td a.name, th a.name")
    assert browser.find("svg.spark")  # of the new view
    assert browser.find("h2").text == f"History of {name}"
    assert len(browser.all("svg.spark")) > 1
    browser.run("location.hash = 'view=runs'")
    browser.find('nav a[aria-current="page"][href*="view=runs"]')
    browser.driver.set_window_size(900, 1000)  # without the chart
    assert browser.console() == []


def test_history_says_which_run_had_another_timer(browser, site):
    browser.open(site, "op=softmax&direction=forward&dtype=fp32&card=NVIDIA%20H200&view=history")
    assert "several timers" in browser.find("#view").text
    assert "timer do_bench → queued" in browser.find("#view table").text


def test_board_follows_the_system_to_a_dark_page(browser, site):
    from selenium.webdriver.support.wait import WebDriverWait

    browser.open(site, "view=history")
    assert browser.find("#theme").text == "Dark page"
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    WebDriverWait(browser.driver, 10).until(lambda _: browser.find("#theme").text == "Light page")  # the page gets an event
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_as_of_an_older_run_later_ones_do_not_count(browser, site):
    browser.open(site, "op=softmax&direction=forward&dtype=bf16&card=NVIDIA%20H200&upto=run-20261121-193729")
    assert "compile" in browser.find("#view table").text
    assert browser.all(".changes") == []
    browser.open(site, "op=softmax&direction=forward&dtype=bf16&card=NVIDIA%20H200&view=changes")
    newest = [date.fromisoformat(text) for text in re.findall(r"(\S+) \S+ after", browser.find(".changes").text)]
    assert newest == sorted(newest, reverse=True)


def test_runs_link_their_pages_and_files_that_were_not_read_are_named(browser, site):
    browser.open(site, "view=runs")
    assert "1 file not read:\nx.csv: is <b>empty</b>" in browser.find(".note").text
    links = browser.run("return [...document.querySelectorAll('td a')].map((a) => a.getAttribute('href'))")
    assert len(links) == 2
    assert all((site.parent / link).is_file() for link in links)


def test_the_command_names_bad_files_and_shows_the_others(main, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    for suffix in (".csv", ".json.gz"):
        shutil.copy(EXHIBIT / "h200" / f"odd{suffix}", folder)
    (folder / "people.csv").write_text("name\nA\n")
    text = (folder / "odd.csv").read_text()
    (folder / "damaged.csv").write_text(text.replace("run-20261129-010300", "run-20261128-010300").replace(",ok,", ",fine,", 1))
    code, out, err = main("board", "--no-pages")
    assert (code, out) == (0, "board/index.html\n")
    assert [line.split(": ")[1] for line in err.splitlines()[:2]] == ["results/people.csv", "results/damaged.csv"]
    assert err.splitlines()[2:] == ["softbench: 1 run, 0 with a page; 2 files could not be read, or only in part"]
    assert main("board", "--no-pages", "--title", "T")[0] == 0  # its own index is replaced


def test_the_command_replaces_no_other_site_and_needs_a_result(main, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.html").write_text("<h1>Mine</h1>")
    code, _, err = main("board", EXHIBIT / "h200" / "odd.csv", "-o", "docs")
    assert (code, (tmp_path / "docs" / "index.html").read_text()) == (2, "<h1>Mine</h1>")
    assert err == "softbench: -o docs: its index.html is no board; name another folder, or remove that file\n"
    (tmp_path / "results").mkdir()
    assert main("board")[::2] == (2, "softbench: results: no run with a result; softbench run writes them\n")
    assert main("board", "-o", "board.html")[::2] == (
        2,
        "softbench: -o board.html: is a file; name a folder, and the board is its index.html\n",
    )
    assert not (tmp_path / "board").exists()


def test_two_cards_of_one_file_have_their_own_page(main, tmp_path):
    rows, _ = read_csv(EXHIBIT / "h200" / "odd.csv")
    other = [replace(row, unit="host-5bce98/1/11112222") for row in rows[:6]]
    (tmp_path / "two.csv").write_text(to_csv([*rows[:6], *other]))
    assert main("board", "two.csv", "--pages")[0] == 0
    assert sorted(file.name for file in (tmp_path / "board" / "runs").iterdir()) == [
        "run-20261129-010300-11112222.html",
        "run-20261129-010300-6801ad28.html",
    ]
