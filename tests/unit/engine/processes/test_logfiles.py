"""Logs: bounded, followed, quoted from."""

from __future__ import annotations

from pathlib import Path

from arborcast.engine.processes import logfiles


def test_a_large_log_is_put_aside_and_two_older_ones_kept(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with log.open("ab", buffering=0) as writer:  # as a part has it open
        for number in range(5):
            assert not logfiles.rotate(log, 10)
            writer.write(b"%d%s\n" % (number, b"." * 20))
            assert logfiles.rotate(log, 10)
        writer.write(b"last\n")
    contents = {path.name: path.read_text()[0] for path in tmp_path.iterdir()}
    assert contents == {"x.log": "l", "x.log.1": "4", "x.log.2": "3"}
    assert log.read_text() == "last\n"  # no hole where the old content was


def test_following_gives_each_complete_line_once(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("before\n")
    follower = logfiles.LogTail(log)
    with log.open("a") as writer:
        writer.write("one\ntw")
        writer.flush()
        assert follower.new_lines() == ["one"]
        writer.write("o\n")
    assert follower.new_lines() == ["two"]
    assert follower.new_lines() == []
    log.write_text("new\n")
    assert follower.new_lines() == ["new"]


def test_the_tail_shows_what_happened_and_not_where_in_java(tmp_path: Path) -> None:
    log = tmp_path / "log"
    frames = "".join(f"\tat org.example.Deep.call{number}(Deep.java:{number})\n" for number in range(40))
    log.write_text(f"java.lang.IllegalArgumentException: too small\n{frames}Caused by: x\n{frames}")
    assert logfiles.tail(log) == "java.lang.IllegalArgumentException: too small\nCaused by: x"
