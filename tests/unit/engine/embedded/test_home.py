"""The data directory: whether it can be used, its owner, its mode, and free space on its disk."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from arborcast.engine.embedded.home import Access, DiskWatch, Home, free_mb, keep_private
from arborcast.engine.processes.errors import HomeError, HomeInUse
from tests.support.waiting import wait_until

HOLDER = """
import sys, time
from pathlib import Path
from arborcast.engine.embedded.home import Home
with Home(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(600)
"""


def test_a_second_engine_is_refused_with_the_pid_of_the_first(home: Home) -> None:
    command = [sys.executable, "-c", HOLDER, str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            assert home.owner() == holder.pid
            with pytest.raises(HomeInUse, match=f"pid {holder.pid}.*arborcast down"), home.locked():
                pass
        finally:
            holder.kill()
    # The lock ends with the process.
    wait_until(lambda: home.owner() is None)
    with home.locked():
        pass


def test_the_error_for_an_unusable_folder_names_it(tmp_path: Path, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match=r"the data directory .*file/data cannot be written: .*--home DIR"):
        Home(tmp_path / "file" / "data").create()
    with pytest.raises(HomeError, match=r"only \d+ MiB are free .* at least 1000000000 MiB .*stack.min_free_disk_mb"):
        Home(tmp_path).create(min_free_mb=10**9)
    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(home.path))
    # Root may write everywhere.
    monkeypatch.setattr(tempfile, "TemporaryFile", Mock(side_effect=refused))
    with pytest.raises(HomeError, match="cannot be written: this user may not read or write it"):
        home.create()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("access", "wanted", "file"), [("owner", 0o700, 0o600), ("group", 0o2770, 0o660)])
def test_files_of_an_engine_are_private(tmp_path: Path, umask: None, access: Access, wanted: int, file: int) -> None:
    home = Home(tmp_path / "above" / "data")
    keep_private(access)
    assert home.create(access=access) == ""
    assert mode(home.path) == wanted
    with home.locked():
        assert mode(home.lock_file) == file
    part = [sys.executable, "-c", "import pathlib, sys; pathlib.Path(sys.argv[1]).touch()"]
    subprocess.run([*part, str(home.run / "by-a-part")], check=True)
    assert mode(home.run / "by-a-part") == file
    assert home.create(access=access) == "", "nothing to change"


@pytest.mark.parametrize(
    ("name", "inside", "before", "access", "after", "note"),
    [
        ("data", "run", 0o755, "owner", 0o700, 'the mode 755, now it has 700.*stack.home_access = "group"'),
        ("data", "", 0o755, "owner", 0o700, "now it has 700"),
        ("data", "users.toml", 0o755, "owner", 0o700, "now it has 700"),
        ("data", "secrets.keys", 0o755, "owner", 0o700, "now it has 700"),
        ("srv", "www", 0o755, "owner", 0o755, "has other things in it"),
        (".arborcast", "kafka", 0o2770, "group", 0o2770, "^$"),
        (".arborcast", "kafka", 0o777, "group", 0o2770, "had the mode 777, now it has 2770"),
    ],
)
def test_the_mode_of_an_existing_directory(
    tmp_path: Path, umask: None, name: str, inside: str, before: int, access: Access, after: int, note: str
) -> None:
    """The mode of an engine's folder is corrected, with a note; other folders keep theirs."""
    path = tmp_path / name
    (path / inside).mkdir(parents=True)
    if name == "data" and inside == "run":
        Home(path).lock_file.touch()
    elif "." in inside:
        (path / inside).rmdir()
        (path / inside).touch()
    path.chmod(before)
    assert re.search(note, Home(path).create(access=access), re.DOTALL)
    assert mode(path) == after


@pytest.mark.parametrize("before", [0o700, 0o770])
def test_a_group_gets_the_existing_files_without_passwords_and_keys(tmp_path: Path, umask: None, before: int) -> None:
    """With 770, as after chmod -R g+rwX, later files of the folders inside had another group."""
    path = tmp_path / ".arborcast"
    (path / "run").mkdir(parents=True)
    files = {"run/lock": 0o660, "topics.ldif": 0o660}
    files |= dict.fromkeys(("secrets.keys", "users.toml", "tls.key", "tls.pem", "run/spark.properties"), 0o600)
    for file in files:
        (path / file).touch()
        (path / file).chmod(before & 0o660)
    path.chmod(before)
    (path / "run").chmod(before)
    assert Home(path).create(access="group")
    assert (mode(path), mode(path / "run")) == (0o2770, 0o2770)
    assert {file: mode(path / file) for file in files} == files
    assert Home(path).create(access="group") == ""


def test_the_error_for_the_folder_of_another_user(tmp_path: Path, umask: None, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "data")
    home.path.mkdir()
    monkeypatch.setattr(Path, "chmod", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    assert "which cannot be changed to 700: Operation not permitted" in home.create()


def test_a_shortage_of_space_and_its_end_are_reported_once(tmp_path: Path) -> None:
    free, said = [1000], list[str]()
    watch = DiskWatch(Path("/data"), 500, said.append, lambda _: free[0])
    for free[0], words in (
        (1000, ""),
        (499, "only 499 MiB are free on the disk of /data"),
        (3, ""),
        (501, ""),  # around the limit it is one shortage
        (2, ""),
        (600, "600 MiB are free again on the disk of /data"),
        (100, "stack.min_free_disk_mb requires 500"),
    ):
        said.clear()
        watch.check()
        assert len(said) == bool(words), free
        assert words in "".join(said)
    said.clear()
    DiskWatch(tmp_path / "gone", 1, said.append).check()
    assert not said
    with pytest.raises(OSError, match="gone"):
        free_mb(tmp_path / "gone")
