"""`softbench judge`: a signed verdict, its check, and what the command refuses."""

import json
import re
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from softbench.core.errors import UsageError
from softbench.judge.main import require_unreadable
from softbench.report import tables
from softbench.run import signature, signed_verdict
from softbench.run.signed_verdict import Verdict

SMALL = ("--M", 8, "--N", 32, "--device", "cpu")


@pytest.fixture
def plugin(tmp_path, plugins):
    (tmp_path / "plugin").mkdir()
    return shutil.copy(plugins / "correct" / "logsumexp.py", tmp_path / "plugin")


def test_a_verdict_is_signed_and_a_changed_one_found(main, plugin, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("softbench.cli.output.counter", lambda unit: nullcontext(lambda *now: told.append(now)))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    code, out, err = main("judge", plugin, *SMALL, "--json", "verdict.json")
    assert code == 0, err
    assert "every output is right (pass)" in out
    assert stat.S_IMODE((tmp_path / "config" / "softbench" / "judge.key").stat().st_mode) == 0o600
    assert told[1:] == [(0, 10, "the build of logsumexp"), *((done, 10, "logsumexp") for done in range(10))]
    file = tmp_path / "verdict.json"
    verdict = json.loads(file.read_text())
    assert (verdict["status"], verdict["case"], verdict["backend"]) == ("ok", "forward-fp32-8x32", "logsumexp")
    assert main("judge", "--verify", file)[0] == 0
    file.write_text(json.dumps(verdict | {"us": 0.001}))
    code, _, err = main("judge", "--verify", file)
    assert (code, "not signed with the key" in err) == (1, True)


@pytest.mark.slow
def test_a_triton_kernel_without_a_gpu_is_unavailable(main, tmp_path):
    code, out, _ = main("judge", "--backend", "triton", *SMALL, "--key", tmp_path / "key", "--json", "-")
    found = json.loads(out)
    assert (code, found["status"]) == (1, "unavailable")
    assert "judge it on a machine with a GPU" in found["reason"]


def test_a_verdict_says_that_its_time_is_uncertain():
    found = {"status": "ok", "reason": "", "class": "pass", "backend": "b", "plugin": "b.py", "sha256": "", "case": "c", "device": "d"}
    found |= {"calls": 8, "at_most_us": 150.0, "gbps": None, "confinement": {}}
    for us, noisy in (((100.0, 96.0, 105.0), False), ((100.0, 96.0, 107.0), True), ((0.9, 0.5, 1.4), False), ((None,) * 3, True)):
        told = found | dict(zip(("us", "low_us", "high_us"), us, strict=True))
        told |= {"noisy": signed_verdict.noisy(told)}
        assert told["noisy"] == noisy
        assert ("judge again when no other process" in str(list(tables.verdict(told).columns[2].cells))) == noisy
    assert not signed_verdict.noisy(found | {"status": "wrong", "us": None, "low_us": None, "high_us": None})


def test_a_judged_failure_gives_exit_code_1():
    assert [Verdict({"status": status}).exit_code for status in ("ok", "wrong", "skipped")] == [0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "takes a plugin's file"),
        (("--backend", "none"), "no installed backend of that name"),
        (("--backend", "tochr"), "did you mean 'torch'? see: softbench list"),
        (("--backend", "copy"), "the yardstick is not judged"),
        (("missing.py",), "softbench: missing.py: no such file"),
        (("torch",), "softbench: torch: no such file; for an installed backend give --backend torch"),
        (("json:dumps",), "json:dumps: is no Python file"),
        (("notes.txt",), "notes.txt: is no Python file, and the judge takes one"),
        (("--verify", "missing.json"), "cannot be read as a verdict"),
    ],
)
def test_wrong_arguments_are_usage_errors(main, arguments, text):
    Path("notes.txt").write_text("hello")
    code, _, err = main("judge", *arguments, "--key", "key")
    assert code == 2
    assert text in err


def test_a_key_that_the_plugin_could_read_is_refused(tmp_path):
    mine, norm = tmp_path / "plugin" / "mine.py", tmp_path / "problem" / "norm.py"
    for key, told in (
        (tmp_path / "key", f"may read {tmp_path}; name a --key"),
        (mine.parent / "key", f"may read {mine.parent}; move mine.py to another folder, or name a --key"),
        (norm.parent / "key", f"may read {norm.parent}; move norm.py to another folder, or name a --key"),
    ):
        with pytest.raises(UsageError, match=re.escape(told)):
            require_unreadable([key], [str(tmp_path)], [mine, norm])
    require_unreadable([tmp_path / "key"], [], [mine, norm])


@pytest.mark.slow
def test_a_key_beside_the_plugin_is_not_left_there(cli, plugin):
    key = Path(plugin).parent / "judge.key"
    done = cli("judge", plugin, *SMALL, "--key", key)
    assert (done.returncode, "the plugin may read" in done.stderr, key.exists()) == (2, True, False)


def test_processes_that_make_a_key_at_once_have_the_same(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda _: signature.read_key(tmp_path / "key", make=True), range(64)))
    assert len(set(keys)) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


@pytest.mark.slow
def test_a_backend_of_a_users_operation_is_judged(cli, tmp_path, plugins):
    (tmp_path / "kernels").mkdir()
    kernels = shutil.copy(plugins / "operations" / "standardize_kernels.py", tmp_path / "kernels")
    done = cli("judge", kernels, "--op", plugins / "operations" / "standardize.py", "--backend", "layer-torch", *SMALL)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_solution_beside_its_definition_is_named_by_its_file(main, tmp_path):
    definition, solution = tmp_path / "definitions" / "norm" / "rms.json", tmp_path / "solutions" / "me" / "norm" / "rms" / "mine.json"
    for file in (definition, solution):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    code, _, err = main("judge", "--problem", f"flashinfer:{definition}", "--backend", "yours", "--key", tmp_path / "key")
    assert (code, "no installed backend of that name" in err) == (2, True), err
    code, _, err = main("judge", "--problem", f"flashinfer:{definition}", "--backend", "mine", "--key", tmp_path / "key", "--device", "cpu")
    assert (code, "lacks name, axes" in err) == (2, True), err


def test_a_file_without_a_key_is_refused(tmp_path):
    (tmp_path / "key").write_text("00ff")
    with pytest.raises(UsageError, match="needs 64 hexadecimal digits"):
        signature.read_key(tmp_path / "key")
    with pytest.raises(UsageError, match="makes a key"):
        signature.read_key(tmp_path / "none")
