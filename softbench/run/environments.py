"""The environments of a package: a Python that imports one version of it.

    environment("v1.2")                   a git ref of the repository in the current folder
    environment(".")                      the working tree, as it is now
    environment("dist/mine-1.2.whl")      a wheel
    environment("mine==1.2")              a version from the package index
    environment("../venv")                a virtual environment, or its Python: used as it is

All but the last are virtual environments that this module makes and keeps in softbench's cache folder. What they lack comes from the
environment of softbench, which follows on their `sys.path`: so torch is not installed again, unless the package asks for another one.
pip builds and installs the package, with its own configuration and variables, such as PIP_NO_INDEX. `build` replaces that for a ref or a
working tree: commands of a shell in its folder, with the environment's `python` and `pip` first on PATH, such as `pip install -e .`.

An environment is made once for a commit, a wheel or the files of a working tree, the build commands, the variables that a build reads, and
the packages of softbench's environment. One that was not used for KEEP_DAYS is removed when another one is made.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from softbench.core.errors import StorageError, UsageError
from softbench.core.files import FULL
from softbench.core.text import one_line
from softbench.kernels.common.cuda_toolkit import cache_folder

KEEP_DAYS = 30.0
READY = "ready"
"""The file of a finished environment; its time is that of the last use."""
TARGETS = "softbench.toml"
"""The file of the gate's targets. It belongs to no version of the package, so an edit needs no new environment."""
LENT = "zz-softbench.pth"
"""The file that puts softbench's environment behind the packages of an environment. It comes after those of editable installs."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w,. -]*\])?\s*(==|>=|<=|~=|!=|<|>|@)\s*\S.*")
_VARIABLE = re.compile(
    r"CC|CXX|CPP|LD|NVCC|CUDACXX|CUDAARCHS|CUDA_(HOME|PATH)|\w*FLAGS|\w*ARCH(S|ES|_LIST)?|\w*FORCE_(BUILD|CUDA)|USE_\w+"
    r"|(CMAKE|SKBUILD|SETUPTOOLS_SCM)_\w+"
)
"""Names of variables that builds read; others change with each job of a CI."""
_ERROR = re.compile(r"(^|[\s(])((fatal )?error:|\w*(Error|Exception)\b|ERROR\b|CMake Error|No module named)")
_NO_CAUSE = re.compile(
    r"subprocess-exited-with-error|metadata-generation-failed|Failed building wheel|Failed to build|legacy-install|CalledProcess"
    r"|ERROR: Exception:$"
)
"""Lines of pip that only say that something failed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A Python that imports one version of a package."""

    shown: str
    """What the user named: a ref, wheel, requirement or path."""
    python: Path
    """The interpreter. Its symbolic link is not followed, as that would leave the environment."""
    commit: str = ""
    """The commit of a git ref, 40 digits."""
    source: Path | None = None
    """The folder from which it was built."""
    made: bool = False
    """True if softbench made it."""

    @property
    def folder(self) -> Path:
        """The environment's own folder."""
        return self.python.parent.parent


Tell = Callable[[str], object]
"""Gets a line when an environment is made, which may take minutes."""


def environment(
    spec: str, *, build: Sequence[str] = (), repository: Path = Path(), tell: Tell = lambda text: None, at: str = "--candidate-env"
) -> Environment:
    """The environment that a text names. It is made if it is not in the cache.

    Args:
        spec: a virtual environment, a folder with pyproject.toml or setup.py, a wheel, a git ref, or a requirement such as `mine==1.2`.
        build: commands that install the package of a ref or a folder, in place of pip.
        repository: a folder of the git repository whose refs count; its project is in that folder.
        tell: gets a line when an environment is made.
        at: the option, with which errors begin.

    Raises:
        UsageError: there is no such environment, or its package cannot be built or installed. The message has the first line of the
            output that says why, and the file of the output.
        StorageError: the disk is full.
    """
    if found := _given(spec):
        return found
    where = f"{at} {spec}"
    path = Path(spec)
    if path.suffix == ".whl":
        if not path.is_file():
            raise UsageError(f"{where}: no such file; build it with: python -m pip wheel --no-deps .")
        return _made(where, spec, ("wheel", path.name, _digest([path])), lambda one: one.install(str(path.resolve())), tell)
    if commit := commit_of(spec, repository):
        prefix = git(repository, "rev-parse", "--show-prefix")
        key = ("commit", commit, prefix, *build, *_variables(build, repository))

        def from_commit(one: _Making) -> None:
            one.build(one.checkout(repository, commit) / prefix, build)

        made = _made(where, spec, key, from_commit, tell)
        return Environment(spec, made.python, commit, made.folder / "source" / prefix, made=True)
    if _is_project(path):
        project = path.resolve()
        built = [file for file in _files(project) if file != project / TARGETS]
        state = git(project, "rev-parse", "HEAD"), _digest(built, project)
        key = ("folder", str(project), *state, *build, *_variables(build, project))
        shown = "the working tree" if project == Path.cwd() else spec
        made = _made(where, shown, key, lambda one: one.build(one.copy(project), build), tell)
        return Environment(shown, made.python, source=made.folder / "source", made=True)
    if _REQUIREMENT.fullmatch(spec):
        return _made(where, spec, ("requirement", spec), lambda one: one.install(spec), tell)
    raise UsageError(f"{where}: {_why_none(path, repository)}")


def commit_of(ref: str, repository: Path = Path()) -> str:
    """The commit of a git ref, 40 digits; empty if there is none, or no repository."""
    return "" if ref.startswith("-") else git(repository, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")


def _given(spec: str) -> Environment | None:
    """A virtual environment of the user, or a Python of one; None if the text names something else."""
    path = Path(spec)
    if path.is_dir() and (path / "bin" / "python").exists():
        return Environment(spec, (path / "bin" / "python").absolute())
    if path.is_file() and path.name.startswith("python") and os.access(path, os.X_OK):
        return Environment(spec, path.absolute())
    return None


def _is_project(path: Path) -> bool:
    return any((path / name).is_file() for name in ("pyproject.toml", "setup.py"))


def _why_none(path: Path, repository: Path) -> str:
    if path.is_dir():
        return "is a folder with neither bin/python nor pyproject.toml; name a virtual environment, or a project"
    name = "no virtual environment, folder, wheel or git ref"
    shallow = git(repository, "rev-parse", "--is-shallow-repository")
    if shallow == "true":
        return f"{name}; this clone has only some commits, so fetch it: git fetch origin {shlex.quote(str(path))}"
    if not shallow:
        return f"{name}; there is no git repository here. A version from the index is NAME==VERSION"
    return f"{name} of that name; see: git log --oneline --all. A version from the index is NAME==VERSION"


def git(folder: Path, *words: str) -> str:
    """What git prints; empty if it fails or there is none."""
    try:
        return subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _files(folder: Path) -> list[Path]:
    """The files of a project and of its submodules: those that git does not ignore, or all without git; but no new measurements."""
    listed = git(folder, "ls-files", "-z", "--cached").split("\0")
    listed += without_measurements(git(folder, "ls-files", "-z", "--others", "--exclude-standard").split("\0"))
    if any(listed):
        paths = [folder / name for name in dict.fromkeys(listed) if name]
        return [file for path in paths for file in (_files(path) if (path / ".git").exists() else [path])]
    found = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    names = [str(path) for path in found if not {".git", "__pycache__", "build"} & {*path.parts}]
    return [folder / name for name in without_measurements(names)]


def without_measurements(names: Sequence[str]) -> list[str]:
    """The names of files of a folder without those that lie beside softbench's runs: a build would take their folder for a package."""
    runs = {str(Path(name).parent) for name in names if re.fullmatch(r"run-\d{8}-\d{6}.*\.jsonl?(\.gz)?", Path(name).name)}
    return [name for name in names if str(Path(name).parent) not in runs]


def _digest(files: Iterable[Path], folder: Path = Path()) -> str:
    found = hashlib.sha256()
    for file in sorted(files):
        if file.is_file() or file.is_symlink():
            content = file.read_bytes() if file.is_file() else str(file.readlink()).encode()
            found.update(os.path.relpath(file, folder).encode() + b"\0" + hashlib.sha256(content).digest())
    return found.hexdigest()


def _variables(build: Sequence[str], project: Path) -> list[str]:
    """The variables that the build of a project may read, with their values: those of compilers, of its commands, and with its name."""
    file = project / "pyproject.toml"
    named = re.search(r"^name\s*=\s*[\"']([\w.-]+)", file.read_text("utf-8", "replace"), re.MULTILINE) if file.is_file() else None
    own = re.sub(r"\W", "_", named[1]).upper() + "_" if named else "\0"
    used = set(re.findall(r"\$\{?(\w+)", " ".join(build)))
    return [f"{key}={value}" for key, value in sorted(os.environ.items()) if key in used or key.startswith(own) or _VARIABLE.fullmatch(key)]


def _lenders() -> list[str]:
    """The folders of packages of softbench's environment."""
    own = [*([site.getusersitepackages()] if site.ENABLE_USER_SITE else []), *site.getsitepackages()]
    return [path for path in dict.fromkeys(own) if Path(path).is_dir()]


def _surroundings() -> list[str]:
    """What the packages of softbench's environment are: its Python, and their names with versions."""
    folders = {path for path in sys.path if path.endswith("-packages") and Path(path).is_dir()}
    return [sys.version, sys.prefix, *sorted(one.name for folder in folders for one in Path(folder).glob("*.dist-info"))]


def _made(where: str, shown: str, key: Sequence[str], make: Callable[[_Making], None], tell: Tell) -> Environment:
    """The environment of this key, from the cache or new."""
    name = hashlib.sha256(json.dumps([*key, *_surroundings()]).encode()).hexdigest()[:16]
    folder = cache_folder() / "environments" / f"{key[0]}-{name}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not (folder / READY).exists():
                tell(f"making the environment of {shown} ...")
                begin = time.monotonic()
                _Making(where, folder).run(make)
                (folder / READY).touch()
                tell(f"made the environment of {shown} in {time.monotonic() - begin:.0f} s")
                _remove_old(folder.parent)
            (folder / READY).touch()
    except OSError as error:
        fix = FULL.get(error.errno or 0)
        kind = StorageError if fix else UsageError
        raise kind(f"{where}: {folder}: {error.strerror}; {fix or 'set SOFTBENCH_CACHE to a folder that can be written'}") from None
    return Environment(shown, folder / "bin" / "python", made=True)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process makes an environment."""
    with folder.with_name(f"{folder.name}.lock").open("w") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_old(folder: Path) -> None:
    for ready in folder.glob(f"*/{READY}"):
        with suppress(OSError):
            if time.time() - ready.stat().st_mtime > KEEP_DAYS * 86400:
                shutil.rmtree(ready.parent)


@dataclass(frozen=True, slots=True)
class _Making:
    """An environment that is being made."""

    where: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def run(self, make: Callable[[_Making], None]) -> None:
        """Make it. What is not finished is removed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.log.write_bytes(b"")
            # What is lent has it; to install it takes seconds. After a search by importlib's `find_spec`, setuptools could not be imported.
            without = ["--without-pip"] if PathFinder.find_spec("pip") else []
            self._call([sys.executable, "-m", "venv", *without, str(self.folder)])
            self._lend()
            make(self)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _lend(self) -> None:
        """Put the packages of softbench's environment behind those of this one, and a `pip` on its PATH."""
        packages = next((self.folder / "lib").glob("python*/site-packages"))
        adding = "; ".join(f"site.addsitedir({path!r})" for path in _lenders())
        (packages / LENT).write_text(f"import site; {adding}\n")
        pip = self.folder / "bin" / "pip"
        if not pip.exists():
            pip.write_text(f'#!/bin/sh\nexec {shlex.quote(str(self.python))} -m pip "$@"\n')
            pip.chmod(0o755)

    def checkout(self, repository: Path, commit: str) -> Path:
        """The files of a commit, with their history, which some packages read for their version."""
        source = self.folder / "source"
        top = git(repository, "rev-parse", "--show-toplevel")
        self._call(["git", "clone", "--quiet", "--shared", "--no-checkout", top, str(source)])
        if url := git(repository, "remote", "get-url", "origin"):  # to which the addresses of submodules may be relative
            self._call(["git", "-C", str(source), "remote", "set-url", "origin", url])
        self._call(["git", "-C", str(source), "checkout", "--quiet", "--detach", commit])
        if (source / ".gitmodules").is_file():
            self._call(["git", "-C", str(source), "submodule", "--quiet", "update", "--init", "--recursive"])
        return source

    def copy(self, project: Path) -> Path:
        """The files of a project as they are now, without those that git ignores: what an earlier build left there is not installed."""
        prefix, commit = git(project, "rev-parse", "--show-prefix"), git(project, "rev-parse", "HEAD")
        source = (self.checkout(project, commit) if commit else self.folder / "source") / prefix
        for file in _files(project):
            there = source / file.relative_to(project)
            if there.is_symlink() or not there.is_dir():
                there.unlink(missing_ok=True)  # a copy would follow a link
            there.parent.mkdir(parents=True, exist_ok=True)
            if file.is_file():
                shutil.copy2(file, there)
            elif file.is_symlink():
                there.symlink_to(file.readlink())
        return source

    def build(self, source: Path, commands: Sequence[str]) -> None:
        """Install the project of a folder, by these commands or by pip."""
        if not source.is_dir():
            raise UsageError(f"{self.where}: has no folder {source.relative_to(self.folder / 'source')}")
        if not commands and not _is_project(source):
            raise UsageError(f"{self.where}: has no pyproject.toml or setup.py; give the commands that install it: --build 'COMMAND'")
        for command in commands:
            self._call(["/bin/sh", "-ec", command], folder=source, shown=command)
        if not commands:
            wheels = self.folder / "wheels"
            self._pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(source))
            self.install(*map(str, wheels.glob("*.whl")))
            shutil.rmtree(wheels)

    def install(self, *packages: str) -> None:
        """Install packages, and what they need beyond softbench's environment. The package itself is installed even if that has it."""
        self._pip("install", "--no-deps", "--force-reinstall", *packages)
        self._pip("install", *packages)

    def _pip(self, *words: str) -> None:
        self._call([str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", *words], shown=f"pip {words[0]}")

    def _call(self, line: Sequence[str], folder: Path | None = None, shown: str = "") -> None:
        """Run a program, whose output goes to the log. Raises UsageError if it fails."""
        environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        environ |= {"PATH": f"{self.folder / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}", "VIRTUAL_ENV": str(self.folder)}
        with self.log.open("ab") as log:
            begin = log.tell()
            log.write(f"$ {shlex.join(line)}\n".encode())
            log.flush()
            code = subprocess.run(line, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False).returncode
        if code:
            text = self.log.read_bytes()[begin:].decode(errors="replace").partition("\n")[2]
            what = shown or " ".join(line[:2])
            raise UsageError(f"{self.where}: {what} failed: {useful_line(text) or f'exit code {code}'}; its output is in {self.log}")


def useful_line(output: str) -> str:
    """The first line of a failed build's output that says why."""
    lines = [line.strip(" \t|│╰─>\u00d7") for line in output.splitlines()]  # pip draws a tree
    lines = [line for line in lines if line and not _NO_CAUSE.search(line)]
    errors = [line for line in lines if _ERROR.search(line)]
    compiled = [line for line in errors if "error:" in line]  # a compiler's line comes before the traceback that follows from it
    return one_line((compiled or errors or lines[-1:] or [""])[0], 200)
