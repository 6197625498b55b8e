"""Names and texts of plugins and files stay data: they leave no folder, start no formula, colour no terminal, mark up no report."""

import csv
import gzip
import math
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer

from softbench.cli import actions
from softbench.core.case import NAME, safe_name
from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Record, Skipped
from softbench.core.text import one_line, printable
from softbench.gate import run_files
from softbench.plugins import static_scan
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource
from softbench.report import check_report, markup, plots
from softbench.results import rows as results
from softbench.results.columns import Row
from softbench.results.csv import read_csv, to_csv
from softbench.run.check import CheckReport, Finding

HOSTILE = '=HYPERLINK("http://x","y")\x1b[31m|`x`| <b> @all\r\n../../y'

PLUGIN = """
import os
from pathlib import Path
Path("it-ran").touch()
class Hostile:
    name = "hostile"
    def __init__(self, name): self.name = name
    def available(self): return None
    def supports(self, case): return '=1+1\\x1b[31m|<b>' if self.name == "skips" else None
    def prepare(self, case): raise ValueError('=cmd\\x1b]0;title\\x07\\x9b31m')
backends = [Hostile("skips"), Hostile("raises")]
"""


@pytest.mark.slow
def test_texts_of_a_hostile_plugin_are_written_as_plain_text(cli):
    name = "=1+1 \x1b[31m..%2F evil.py"
    (cli.folder / name).write_text(PLUGIN)
    (cli.folder / "-broken\x1b[1m.py").write_text("raise ImportError('@SUM(1)\\x1b[2J')")
    cli.env |= {"PATH": "/nonexistent", "CC": "", "CXX": ""}  # nothing compiles: it would only take time
    done = cli(
        *("run", "--plugin", name, f"--plugin={cli.folder}/-broken\x1b[1m.py", "--device", "cpu", "--M", "8", "--N", "16", "--quick"),
        *("--backends", "skips,raises,torch", "--timeout", "build=30"),
    )
    assert done.returncode == 1, done.stderr
    files = [path for path in (cli.folder / "results").rglob("*") if path.is_file()]
    assert {path.parent for path in files} == {cli.folder / "results"}
    written = [(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode() for path in files]
    for text in (done.stdout, done.stderr, *written):
        assert not [sign for sign in text if one_line(f"a{sign}b") == "a b" and sign not in " \n\t"], "a control character"
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = {row["backend"]: row for row in csv.DictReader(file)}
    assert all(NAME.fullmatch(backend) for backend in found)
    assert found["skips"]["reason"] == "'=1+1 |<b>"
    assert found["raises"]["reason"].startswith(
        "build: ValueError: =cmd 0;title 31m (in prepare, =1+1 ..%2F evil.py:10: def prepare(self, case): "
    )
    assert found["broken-1m"]["status"] == "failed"
    rows, _ = read_csv(cli.folder / "results" / "latest.csv")
    assert next(row for row in rows if row.backend == "skips").reason == "=1+1 |<b>"
    assert cli.document()["origins"]["skips"] == "=1+1 ..%2F evil.py"


@pytest.mark.slow
def test_list_runs_a_plugin_only_with_the_load_flag(cli, plugins):
    (cli.folder / "own.py").write_text(
        PLUGIN.replace('[Hostile("skips"), Hostile("raises")]', "[Hostile()]").replace("name): self.name = name", "x=0): pass")
    )
    (cli.folder / "torn.py").write_text("def f(:")
    done = cli(
        "list",
        "hostile,logsumexp,torn,torch",
        "--plugin",
        "own.py",
        "--plugin",
        plugins / "correct" / "logsumexp.py",
        "--plugin",
        "torn.py",
        "--device",
        "cpu",
    )
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert not (cli.folder / "it-ran").exists()
    assert "not loaded" in lines["hostile"]
    assert "exp(x - logsumexp(x)), eager, in float32. (not imported" in lines["logsumexp"]
    assert "SyntaxError: invalid syntax (torn.py:1)" in lines["torn"]
    assert "available" in lines["torch"]
    files = ("own.py", plugins / "correct" / "logsumexp.py", plugins / "faulty" / "raises_at_import.py")
    done = cli(
        "list",
        "hostile,logsumexp,raises_at_import,torch",
        "--load",
        *(word for file in files for word in ("--plugin", file)),
        "--device",
        "cpu",
    )
    assert done.returncode == 0
    assert (cli.folder / "it-ran").exists()
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert "available" in lines["torch"] and "[" not in lines["torch"]  # only a plugin's line says where it comes from
    assert "logsumexp.py]" in lines["logsumexp"]
    assert "broken" in lines["raises_at_import"]
    assert "pip install the-missing-library" in lines["raises_at_import"]


def test_static_scan_finds_literal_names_or_uses_the_source_name(tmp_path):
    file = tmp_path / "plug.py"

    def at(code, alias=""):
        file.write_text(code)
        return [(info.name, info.loaded) for info in static_scan.at(PluginSource("file", "plug", str(file), "plug.py", alias))]

    made = 'class A:\n    name = "a"\nclass B:\n    name: str = "b"\n'
    assert at(made + "backends = [A(), B()]") == [("a", False), ("b", False)]
    assert at(made + "backend = A()", alias="mine") == [("mine", False)]
    assert at(made + "backends = [A(), make()]") == [("plug", False)]
    assert at('class A:\n    name = "../x"\nbackend = A()') == [("plug", False)]
    assert at("\0") == [("plug", False)]
    package = PluginSource("entry point", "theirs", "their_package:backend", "their-package 1.0")
    assert [(info.name, info.loaded) for info in static_scan.at(package)] == [("theirs", False)]
    assert not package.own
    assert PluginSource("entry point", "torch", "softbench.backends.torch_eager:backend", "softbench 1").own


@pytest.mark.parametrize("name", ["../x", "a/b", "=x", "\x1b[31m", "a\nb", "", "x" * 80, "..", "a b"])
def test_a_name_that_could_leave_its_place_is_none(name, tmp_path, make_record):
    assert not NAME.fullmatch(name)
    assert NAME.fullmatch(safe_name(name))
    (tmp_path / "p.py").write_text(f"class A:\n name={name!r}\n def available(s): 0\n supports = prepare = available\nbackend = A()")
    with pytest.raises(UsageError, match="is no name for a backend"):
        load(PluginSource("file", "p", str(tmp_path / "p.py"), "p.py"))
    text = to_csv([results.row(make_record("ours", [1.0, 1.0, 1.0]), None, None, device="d", run="r")])
    (tmp_path / "x.csv").write_text(text.replace("ours", f'"{name}"', 1))
    with pytest.raises(ResultsError):
        read_csv(tmp_path / "x.csv")


def test_texts_that_begin_like_formulas_are_quoted_and_read_back(tmp_path, make_record):
    case = make_record("ours", [1.0]).case
    signs = ("=", "+", "-", "@", *"\uff1d\uff0b\uff0d\uff20")  # a spreadsheet takes full-width signs too
    reasons = ["=1+1", "+1", "-1", "@x", "'=1", "'quoted'", "plain, = inside", *(f"{sign}1" for sign in signs)]
    rows = [results.row(Record(f"b{i}", case, Skipped(text)), None, None, device="-d", run="r") for i, text in enumerate(reasons)]
    (tmp_path / "x.csv").write_text(to_csv(rows))
    with (tmp_path / "x.csv").open() as file:
        cells = [cell for row in csv.DictReader(file) for cell in row.values()]
    assert not [cell for cell in cells if cell[:1] in signs]
    read, _ = read_csv(tmp_path / "x.csv")
    assert [row.reason for row in read] == [*reasons[:4], "=1", *reasons[5:]]  # an apostrophe before a sign is taken for a quoted one
    assert {row.device for row in read} == {"-d"}
    assert run_files.from_record(Record("b", case, Skipped(HOSTILE))).reason == one_line(HOSTILE)


def test_markdown_junit_and_figures_take_hostile_texts(tmp_path, make_record):
    finding = Finding("ours", "shape 1x1", "forward", "fp32", "wrong", float("inf"), HOSTILE)
    document = check_report.junit(CheckReport((finding,), (f"bad: {HOSTILE}",), (f"bad: {HOSTILE}",), "cpu", 0, plugins={"ours": "a b.py"}))
    suite = ElementTree.fromstring(document)
    assert "\x1b" not in document
    assert suite.find("testcase/failure").text.startswith("softbench check --backends ours '--case=shape 1x1'")
    assert {key: suite.get(key) for key in ("tests", "failures", "errors")} == {"tests": "2", "failures": "1", "errors": "1"}
    safe = markup.safe(HOSTILE)
    assert not set("|`<\x1b\n") & set(safe)
    row = results.row(make_record("ours", [1.0, 1.0, 1.0]), None, None, device="$\\frac{ $ ../../x", run="r")
    assert isinstance(row, Row)
    written = plots.write([(Path("$x^{.csv"), [row])], tmp_path / "f.svg")
    assert [one.file.parent for one in written] == [tmp_path]


def test_where_a_machine_keeps_its_packages_is_in_no_reason():
    said = "cannot import name 'x' from 'torch._inductor' (/opt/some/.venv/lib/python3.12/site-packages/torch/_inductor/a.py)"
    assert one_line(said) == "cannot import name 'x' from 'torch._inductor' (torch/_inductor/a.py)"
    assert one_line('File "/usr/lib/python3/dist-packages/torch/fx/b.py", line 5') == 'File "torch/fx/b.py", line 5'
    assert one_line("~/.local/lib/python3.12/site-packages/x.py") == "x.py"
    begin = time.process_time()
    assert len(one_line("-/" * 100_000)) == 300
    assert time.process_time() - begin < 1  # a plugin's reason must not keep its judge busy
    assert one_line("my/site-packages/x and /home/me/kernel.py") == "my/site-packages/x and /home/me/kernel.py"  # a plugin's own file


@pytest.mark.parametrize("sign", "\u061c\u200e\u200f\u202a\u202e\u2066\u2069")
def test_signs_that_reorder_a_line_are_removed(sign):
    assert one_line(f"a{sign}b") == "a b"
    assert printable(f"a{sign}b\nc") == "a b\nc"


def test_file_names_and_contents_reach_the_terminal_as_plain_text(main, tmp_path, monkeypatch, make_record):
    monkeypatch.setitem(typer.echo.__globals__, "should_strip_ansi", lambda *_: False)  # as on a terminal
    evil = tmp_path / "e\x1b[31mvil.csv"
    evil.write_text(to_csv([results.row(make_record("ours", [1.0, 1.0, 1.0]), None, None, device="d", run="r")]))
    folder = tmp_path / "results" / "baselines"
    folder.mkdir(parents=True)
    (folder / "b\x1b[31mad.json").write_text('{"x": "\\u001b[31m"}')
    missing = tmp_path / "no\x1b[31mne.csv"
    readers = ("show", evil), ("plot", evil), ("runs", evil), ("runs", tmp_path), ("plot", missing), ("gate", missing)
    for arguments in (("compare", evil, evil), ("baseline", "list"), *readers):
        _, out, err = main(*arguments)
        assert out + err
        assert "\x1b[31m" not in out + err, arguments


def test_a_note_that_quotes_a_file_is_plain_text(capsys, monkeypatch):
    monkeypatch.setitem(typer.echo.__globals__, "should_strip_ansi", lambda *_: False)
    actions.note("device was \x1b[31mred\x1b]0;title\x07, now it is cpu")
    assert capsys.readouterr().err == "softbench: device was  red 0;title , now it is cpu\n"


def test_an_absurd_fraction_of_the_peak_is_refused(tmp_path, make_record):
    row = results.row(make_record("ours", [1.0, 1.0, 1.0]), None, None, device="d", run="r")
    (tmp_path / "x.csv").write_text(to_csv([replace(row, of_peak=1e-320)]))
    with pytest.raises(ResultsError, match="of_peak"):
        read_csv(tmp_path / "x.csv")


@pytest.mark.parametrize("name", ["low_us", "high_us", "device_us", "host_us"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_time_that_is_no_number_is_refused(tmp_path, make_record, name, value):
    row = results.row(make_record("ours", [1.0, 1.0, 1.0]), None, None, device="d", run="r")
    (tmp_path / "x.csv").write_text(to_csv([replace(row, **{name: value})]))
    with pytest.raises(ResultsError, match=rf"line 2: {name}: .* is (no time|not a number)"):
        read_csv(tmp_path / "x.csv")
