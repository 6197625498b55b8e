"""The GitHub workflow is valid by GitHub's schema and calls existing commands and options."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

WORKFLOW = Path(__file__).parents[1] / ".github" / "workflows" / "softbench.yml"


def commands():
    lines = re.findall(r"run: (?:\.venv/bin/)?(softbench .*)$", WORKFLOW.read_text(), re.MULTILINE)
    return [shlex.split(line.partition("||")[0]) for line in lines]


def test_the_workflow_is_valid_by_githubs_schema():
    pytest.importorskip("check_jsonschema")
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_and_option_of_the_workflow_exists(main):
    found = commands()
    assert [words[1] for words in found] == ["gate", "run", "baseline"]
    for words in found:
        name = words[1:3] if words[1] == "baseline" else words[1:2]
        code, out, _ = main(*name, "--help")
        assert code == 0
        for option in (word for word in words if word.startswith("--")):
            assert re.search(rf"^  {option}\b", out, re.MULTILINE), (words, option)


def test_pull_requests_from_forks_never_reach_the_runner():
    text = WORKFLOW.read_text()
    assert text.count("self-hosted") == 2
    assert "github.event.pull_request.head.repo.full_name == github.repository" in text
    assert not [line for line in text.splitlines() if "run:" in line and "${{" in line]
