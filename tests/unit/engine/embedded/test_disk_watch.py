"""A disk that fills up is told of while there is room to tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.engine.embedded.home import DiskWatch, free_mb


class Disk:
    def __init__(self) -> None:
        self.free = 1000
        self.said: list[str] = []
        self.watch = DiskWatch(Path("/data"), 500, self.said.append, lambda _: self.free)

    def check(self, free: int) -> list[str]:
        """What is said when so much is free."""
        self.free = free
        self.said.clear()
        self.watch.check()
        return list(self.said)


def test_a_shortage_is_said_once_and_so_is_its_end() -> None:
    disk = Disk()

    assert disk.check(1000) == []
    (said,) = disk.check(499)
    assert "only 499 MiB are free on the disk of /data" in said
    assert "stack.min_free_disk_mb asks for 500" in said
    assert disk.check(3) == []
    assert disk.check(501) == [], "around the mark it is the same story"
    assert disk.check(2) == []
    assert disk.check(600) == ["600 MiB are free again on the disk of /data"]
    assert len(disk.check(100)) == 1, "the next one is a new story"


def test_a_folder_that_cannot_be_looked_at_says_nothing(tmp_path: Path) -> None:
    said: list[str] = []

    DiskWatch(tmp_path / "gone", 1, said.append).check()

    assert not said
    with pytest.raises(OSError, match="gone"):
        free_mb(tmp_path / "gone")
