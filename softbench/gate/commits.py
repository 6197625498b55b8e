"""What bisect and history ask git: the commits of a range, their subjects, and a checkout of one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from softbench.core.errors import UsageError
from softbench.core.text import one_line

SHORT = 12
"""Digits of a commit that are shown, as many as results have."""


class Commit(NamedTuple):
    """A commit of a repository."""

    name: str
    """All digits."""
    date: str
    """The day of the commit, such as `2026-11-29`."""
    subject: str

    @property
    def short(self) -> str:
        return self.name[:SHORT]


def git(folder: Path, *words: str) -> str:
    """What git prints; raises UsageError with its first line if it fails."""
    try:
        done = subprocess.run(["git", "--no-optional-locks", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"git: {error.strerror}; install git") from None
    if done.returncode:
        raise UsageError(f"git {words[0]}: {one_line((done.stderr.strip().splitlines() or ['failed'])[0], 300)}")
    return done.stdout.strip()


def resolved(ref: str, folder: Path = Path()) -> str:
    """All digits of the commit that a ref names; raises UsageError if there is none."""
    with suppress(UsageError):
        return git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    try:
        git(folder, "rev-parse", "--git-dir")
    except UsageError as error:
        raise UsageError(f"{error}; run it in the git repository of the code") from None
    raise UsageError(f"{one_line(ref, 80)}: is not a commit of this repository; name a commit, a tag or a branch, or fetch it")


def line(good: str, bad: str, folder: Path = Path()) -> list[Commit]:
    """The commit `good` and those after it up to `bad`, the oldest first; of a merge only the first parent.

    Raises:
        UsageError: a ref names no commit, or `good` is not an ancestor of `bad`.
    """
    start, end = resolved(good, folder), resolved(bad, folder)
    if git(folder, "merge-base", start, end) != start:
        raise UsageError(f"{good}: is not an ancestor of {bad}, so no commits lead from one to the other; exchange them, or name another")
    later = described(["--first-parent", "--reverse", f"{start}..{end}"], folder)
    if not later:
        raise UsageError(f"{good} and {bad} are one commit; name two")
    return [*described(["-1", start], folder), *later]


def described(words: Sequence[str], folder: Path = Path()) -> list[Commit]:
    """The commits that `git log` with these words lists."""
    lines = git(folder, "log", "--format=%H%x09%cs%x09%s", *words).splitlines()
    return [Commit(name, date, one_line(subject, 100)) for name, date, subject in (one.split("\t", 2) for one in lines)]


@contextmanager
def checkouts(folder: Path) -> Iterator[dict[str, Path]]:
    """A mapping that gets a checkout for each commit that is asked for. They are removed at the end."""
    with TemporaryDirectory(prefix="softbench-bisect-") as place:

        class Checkouts(dict[str, Path]):
            def __missing__(self, commit: str) -> Path:
                self[commit] = Path(place, commit[:SHORT])
                git(folder, "worktree", "add", "--force", "--detach", str(self[commit]), commit)
                if (self[commit] / ".gitmodules").is_file():
                    git(self[commit], "submodule", "--quiet", "update", "--init", "--recursive")
                return self[commit]

        found = Checkouts()
        try:
            yield found
        finally:
            for one in found.values():
                with suppress(UsageError):
                    git(folder, "worktree", "remove", "--force", str(one))


def in_order(names: Sequence[str], folder: Path = Path()) -> list[Commit]:
    """Those of the commits that the repository has, ancestors first. Raises UsageError outside a repository."""
    git(folder, "rev-parse", "--git-dir")
    known: list[str] = []
    for name in dict.fromkeys(names):
        with suppress(UsageError):
            known.append(resolved(name, folder))
    if not known:
        return []
    base: list[str] = []
    with suppress(UsageError):  # two histories without a common commit
        base = ["--not", f"{git(folder, 'merge-base', '--octopus', *known)}^@"]
    return [one for one in described(["--topo-order", "--reverse", *known, *base], folder) if one.name in known]
