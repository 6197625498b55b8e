"""Environments of a package: from a ref, a working tree, a wheel or a virtual environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from softbench.core.errors import UsageError
from softbench.run.environments import environment, useful_line

INSTALL = "cp -r toy $(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
"""What pip would do, in a tenth of its time."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of a package whose VERSION is 1 at the tag v1 and 2 at HEAD, as the present folder."""
    (tmp_path / "repository" / "toy").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository")
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path / "cache"))
    git("init", "-q")
    Path("pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "toy"\nversion = "1.0"\n[tool.setuptools]\npackages = ["toy"]\n'
    )
    for version in (1, 2):
        Path("toy/__init__.py").write_text(f"VERSION = {version}\n")
        git("add", "-A")
        git("commit", "-qm", str(version))
        git("tag", f"v{version}")
    return tmp_path / "repository"


def git(*words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words], check=True)


def version_in(python: Path) -> str:
    return subprocess.run([python, "-P", "-c", "import toy; print(toy.VERSION)"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_ref_and_the_working_tree_have_their_own_versions_and_are_made_once(repository: Path) -> None:
    told: list[str] = []
    old = environment("v1", build=[INSTALL], tell=told.append)
    (repository / "toy" / "__init__.py").write_text("VERSION = 3\n")
    (repository / "folder").symlink_to("toy")
    git("add", "folder")
    new = environment(".", build=[INSTALL], tell=told.append)
    assert (version_in(old.python), version_in(new.python)) == ("1", "3")
    assert new.source and (new.source / "folder").is_symlink()
    (repository / "results").mkdir()
    (repository / "results" / "run-20261129-175705.json.gz").touch()
    (repository / "softbench.toml").touch()
    assert environment(".", build=[INSTALL], tell=told.append) == new, "measurements and targets belong to no version"
    assert environment("v1", build=[INSTALL], tell=told.append) == old
    assert len([line for line in told if line.startswith("making")]) == 2
    assert environment(str(old.folder)).python == old.python, "a virtual environment is used as it is"


def test_variables_that_a_build_reads_make_another_environment(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Path:
        return environment("v1", build=["true $EXTRA"]).folder

    seen = {made()}
    monkeypatch.setenv("GITHUB_RUN_ID", "7")
    assert made() in seen
    for name in ("TORCH_CUDA_ARCH_LIST", "TOY_FORCE", "EXTRA"):
        monkeypatch.setenv(name, "9.0")
        assert made() not in seen
        seen.add(made())


def test_files_of_a_submodule_are_those_of_the_working_tree(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COUNT": "1", "KEY_0": "protocol.file.allow", "VALUE_0": "always"}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    git("clone", "-q", ".", str(tmp_path / "other"))
    git("submodule", "--quiet", "add", str(tmp_path / "other"), "other")
    git("commit", "-qm", "submodule")
    before = environment(".", build=["true"])
    (repository / "other" / "toy" / "__init__.py").write_text("VERSION = 4\n")
    now = environment(".", build=["true"])
    versions = [(one.source / "other" / "toy" / "__init__.py").read_text()[-2] for one in (before, now) if one.source]
    assert versions == ["2", "4"]


@pytest.mark.slow
def test_pip_builds_a_ref_and_installs_a_wheel(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # pip reads the opposite of its name
    built = environment("v1")
    assert version_in(built.python) == "1"
    subprocess.run([built.folder / "bin" / "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), "."], check=True)
    assert version_in(environment(str(tmp_path / "toy-1.0-py3-none-any.whl")).python) == "2"


@pytest.mark.parametrize(
    ("spec", "build", "told"),
    [
        ("nope", [], "no virtual environment, folder, wheel or git ref of that name"),
        ("toy", [], "is a folder with neither bin/python nor pyproject.toml"),
        ("toy.whl", [], "no such file"),
        ("v1", ["echo 'mine.cu(3): error: expected a ;'; exit 2"], r"failed: mine.cu\(3\): error: expected a ;; its output is in"),
    ],
)
def test_what_cannot_be_made_is_refused_in_a_line(repository: Path, spec: str, build: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        environment(spec, build=build)


def test_the_useful_line_of_a_build_is_its_first_cause() -> None:
    output = """
  error: subprocess-exited-with-error
  ERROR: Exception:
  × Building wheel for mine (pyproject.toml) did not run successfully.
  ╰─> [3 lines of output]
      Traceback (most recent call last):
      ModuleNotFoundError: No module named 'torch'
  ERROR: Failed building wheel for mine
"""  # noqa: RUF001 - pip writes it
    assert useful_line(output) == "ModuleNotFoundError: No module named 'torch'"
