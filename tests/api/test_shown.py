"""Tables as text, as HTML without markup of their own, and with colours in a rich console."""

from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from softbench.api.shown import Pictures, Shown


def make(console):
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("text", no_wrap=True)
    table.add_row(Text("<b>[red]x"), Text("y" * 120, style="red"))
    return table


def test_text_has_no_control_sequences_and_cuts_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    text = str(Shown(make))
    assert "<b>[red]x" in text
    assert "y" * 120 in text
    assert "\x1b" not in text
    assert repr(Shown(make)) == text


def test_jupyter_gets_text_and_html_once(monkeypatch):
    """There rich would display what it prints, with nothing left for the text."""
    shown: list[object] = []
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *given: shown.append(given))
    assert "<b>[red]x" in str(Shown(make))
    assert "\x1b" not in str(Shown(make))
    assert "&lt;b&gt;[red]x" in Shown(make)._repr_html_()
    assert shown == []


def test_html_is_escaped_and_has_its_own_colours():
    html = Shown(make)._repr_html_()
    assert html.startswith("<pre style=")
    assert "&lt;b&gt;[red]x" in html
    assert "<b>" not in html
    assert "color: " in html


def test_a_rich_console_gets_colours():
    console = Console(file=StringIO(), force_terminal=True, width=200, color_system="standard")
    console.print(Shown(make))
    assert "\x1b[31m" in console.file.getvalue()


def test_a_pdf_is_named(tmp_path):
    (tmp_path / "<a>.pdf").write_bytes(b"%PDF")
    assert Pictures([tmp_path / "<a>.pdf"])._repr_html_() == "<p>&lt;a&gt;.pdf</p>"
