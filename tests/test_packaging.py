"""Wheel, sdist and editable installs find configurations, kernels and entry points outside the checkout."""

import os
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from softbench.core.errors import NotMeasurableError

ROOT = Path(__file__).parents[1]
FIND = """
import json, softbench
from importlib import resources
from softbench.plan.config_file import shipped
from softbench.plugins.source import origins
print(json.dumps({
    "where": softbench.__file__,
    "configs": sorted(shipped()),
    "kernels": sorted(p for p in ("common", "triton", "cuda") if (resources.files(f"softbench.kernels.{p}") / "__init__.py").is_file()),
    "backends": sorted(source.label for source in origins([])),
}))
"""


def run(*command, cwd, codes=(0,), **env):
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the checkout for builds, which write files beside the sources."""
    copy = tmp_path_factory.mktemp("source") / "softbench"
    ignored = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "build", "dist", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=lambda folder, names: ignored(folder, names) | ({"results"} if folder == str(ROOT) else set()))
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})", cwd=source)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture
def environment(tmp_path):
    """A fresh environment with this one's dependencies and without its editable softbench."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    packages = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return tmp_path / "venv" / "bin" / "python"


def install(environment, *what, cwd):
    run(sys.executable, "-m", "pip", "--python", environment, "install", "-q", "--no-deps", "--no-build-isolation", *what, cwd=cwd)


def check(environment, folder, expected_in):
    import json

    outside = folder / "elsewhere"
    outside.mkdir()
    found = json.loads(run(environment, "-c", FIND, cwd=outside))
    assert expected_in in found["where"]
    assert {"cpu", "powers", "tutorial"} <= set(found["configs"])
    assert found["kernels"] == ["common", "cuda", "triton"]
    assert {"copy", "naive", "torch", "compile"} <= set(found["backends"])
    return outside


def measure(environment, outside):
    script, busy = environment.parent / "softbench", NotMeasurableError.exit_code
    run(script, "run", "--backends", "torch", "--device", "cpu", "--M", "4", "--N", "8", "--quick", cwd=outside, codes=(0, busy))
    assert (outside / "results" / "latest.csv").read_text().count(",ok,") == 2  # also on a busy host
    run(script, "report", cwd=outside)
    assert "<h2" in (outside / "results" / "latest.html").read_text()


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(wheel, environment, tmp_path):
    install(environment, wheel, cwd=tmp_path)
    measure(environment, check(environment, tmp_path, "site-packages"))


@pytest.mark.gpu
def test_the_wheel_builds_the_cuda_source_outside_the_checkout(wheel, environment, tmp_path):
    install(environment, wheel, cwd=tmp_path)
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    command = [environment.parent / "softbench", "run", "--backends", "cuda,triton", "--M", "64", "--N", "781", "--quick"]
    shown = run(*command, cwd=outside, SOFTBENCH_CACHE=str(tmp_path / "cache"))
    assert "failed" not in shown
    assert len(list((tmp_path / "cache").glob("*/softmax.so"))) == 1


def test_the_wheel_ships_softbench_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"softbench"}
    assert "softbench/configs/tutorial.toml" in names
    assert "softbench/py.typed" in names
    assert {"softbench/kernels/cuda/softmax.cu", "softbench/report/glossary.toml"} <= set(names)
    page = {str(file.relative_to(ROOT)) for file in (ROOT / "softbench" / "report").rglob("*.*") if file.suffix in (".html", ".css", ".js")}
    assert len(page) > 10
    assert page <= set(names)
    assert not any(part.startswith("test") for name in names for part in name.split("/"))


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(source, wheel, tmp_path):
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})", cwd=source)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (tree,) = (tmp_path / "unpacked").iterdir()
    run(sys.executable, "-c", f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})", cwd=tree)
    (rebuilt,) = tmp_path.glob("*.whl")
    assert sorted(zipfile.ZipFile(rebuilt).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_an_editable_install_works_outside_the_checkout(source, environment, tmp_path):
    """The other tests measure with an editable install."""
    install(environment, "-e", source, cwd=tmp_path)
    check(environment, tmp_path, str(source))


def test_a_bare_checkout_finds_its_own_kernels(source, tmp_path):
    packages = ("common", "triton", "cuda")
    code = f"from importlib.util import find_spec; print(*[find_spec(f'softbench.kernels.{{name}}').origin for name in {packages}])"
    found = run(sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(source)!r}); {code}", cwd=tmp_path)
    assert all(str(source / "kernels" / name) in found for name in packages)
