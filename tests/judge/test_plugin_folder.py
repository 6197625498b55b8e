"""The folder of a plugin's process is removed, whatever is in it."""

import os
import sys
from pathlib import Path

import pytest

from softbench.judge.plugin_folder import plugin_folder


def test_a_folder_of_any_depth_is_removed():
    with plugin_folder() as folder:
        file = os.open(folder, os.O_RDONLY)
        for _ in range(sys.getrecursionlimit() + 200):
            os.mkdir("d", dir_fd=file)
            inner = os.open("d", os.O_RDONLY, dir_fd=file)
            os.close(file)
            file = inner
        os.close(file)
    assert not Path(folder).exists()


def test_what_cannot_be_read_is_removed_without_following_links(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="an error"), plugin_folder() as folder:
        inner = Path(folder) / "inner"
        inner.mkdir()
        (inner / "link").symlink_to(tmp_path)
        (inner / "file").touch(0o000)
        inner.chmod(0o000)
        raise ValueError("an error")
    assert not Path(folder).exists()
    assert (tmp_path / "file").exists()
