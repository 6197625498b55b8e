"""The command that continues an interrupted run, as the shell takes it; and the check that an output can be written."""

import os
import sys
import threading
from pathlib import Path

import pytest

from softbench.cli.actions import try_file, typed_command


@pytest.fixture
def program(tmp_path, monkeypatch):
    """An installed softbench; it is on PATH."""
    file = tmp_path / "bin" / "softbench"
    file.parent.mkdir()
    file.write_text("")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent))
    monkeypatch.chdir(tmp_path)
    return file


def test_the_program_is_named_as_it_was_called(program, monkeypatch):
    arguments = ["run", "--output", "/data/my results", "--plugin", "new=/home/me/a.py"]
    monkeypatch.setattr(sys, "argv", [str(program), *arguments])
    assert typed_command() == "softbench run --output '/data/my results' --plugin new=/home/me/a.py"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "argv", ["bin/softbench", "run"])
    assert typed_command() == "bin/softbench run"
    monkeypatch.setattr(sys, "argv", [str(program.parent / "softbench" / "__main__.py"), "run"])
    assert typed_command() == "python -m softbench run"


def test_a_tried_file_is_neither_left_nor_lost(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.json").symlink_to("target.json")
    (tmp_path / "there.json").write_text("kept")
    for name in ("new.json", "link.json", "there.json"):
        try_file(Path(name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "there.json"]
    assert (tmp_path / "there.json").read_text() == "kept"


def test_a_pipe_is_not_opened_before_it_is_written(tmp_path):
    """Its reader would get an end at once, and the command would wait for another reader."""
    os.mkfifo(tmp_path / "pipe")
    trying = threading.Thread(target=try_file, args=[tmp_path / "pipe"], daemon=True)
    trying.start()
    trying.join(5)
    assert not trying.is_alive()


def test_two_outputs_of_one_name_are_refused_before_any_work(main):
    code, _, err = main("check", "--device", "cpu", "--backends", "torch", "--json", "same.x", "--junit", "same.x")
    assert (code, err) == (2, "softbench: --json same.x: another argument of this command is that file, or its results; name another one\n")
