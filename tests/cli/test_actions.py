"""The command that continues an interrupted run: the shell can take it as it is printed."""

import sys

import pytest

from softbench.cli.actions import typed_command


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
