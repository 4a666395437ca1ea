"""The data directory: can it be used, and by whom is it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.stack.errors import HomeError, HomeInUse
from jobs.stack.home import Home
from tests.support.engine import until

HOLDER = """
import sys, time
from pathlib import Path
from jobs.stack.home import Home
with Home(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "data")
    home.create()
    return home


def test_a_second_engine_is_refused_with_the_pid_of_the_first(home: Home) -> None:
    command = [sys.executable, "-c", HOLDER, str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            assert home.owner() == holder.pid
            with pytest.raises(HomeInUse, match=f"pid {holder.pid}.*arborcast down") as caught, home.locked():
                pass
            assert caught.value.pid == holder.pid
        finally:
            holder.kill()
    # The lock goes with the process: nobody has to clear anything away.
    until(lambda: home.owner() is None)
    with home.locked():
        pass


def test_asking_for_the_owner_does_not_hinder_an_engine(home: Home) -> None:
    assert home.owner() is None
    with home.locked():
        assert home.owner() == os.getpid()
    assert home.owner() is None


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match=r"the data directory .*file/data cannot be written: .*--home DIR"):
        Home(tmp_path / "file" / "data").create()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data"
    Home(path).create()
    path.chmod(0o555)
    with pytest.raises(HomeError, match="cannot be written: Permission denied"):
        Home(path).create()


def test_a_nearly_full_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match=r"only \d+ MiB are free .* at least 1000000000 MiB .*stack.min_free_disk_mb"):
        Home(tmp_path).create(min_free_mb=10**9)


def test_a_lock_is_signed_in_the_place_of_the_last_signature(home: Home) -> None:
    """A full disk has no room for a longer one."""
    for _ in range(2):
        with home.locked() as lock:
            assert int(os.pread(lock, 100, 0)) == os.getpid()
            size = os.fstat(lock).st_size
    assert home.lock_file.stat().st_size == size == 11
