"""Making the archive of classes; the job that it takes is a shell script here."""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from arborcast.engine.embedded import engine
from arborcast.engine.embedded.engine import Tools
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.parts import PartSpec
from arborcast.engine.install import class_archive
from arborcast.engine.install.java import JavaRuntime
from arborcast.engine.settings.loading import Settings

# Writes the archive when it is told to stop, as Java does.
_JOB = """
trap 'printf classes > "$1"; exit 0' TERM
touch "$2"
while :; do sleep 0.05; done
"""


@pytest.fixture
def tools() -> Tools:
    java = JavaRuntime(Path("/opt/jdk/bin/java"), "17", "the test")
    return Tools(java, java.home, [Path("/jars/connector.jar")], [Path("/jars/kafka.jar")])


def played(monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    def parts(settings: Settings, tools: Tools, home: Home, environ: Mapping[str, str] | None = None) -> list[PartSpec]:
        def spec(name: str, script: str) -> PartSpec:
            ready = home.run / name
            command = ("/bin/sh", "-c", script, name, str(tools.archive_to), str(ready))
            return PartSpec(name, command, {"PATH": "/usr/bin:/bin"}, home.run, home.log(name), ready.exists)

        return [spec("dispatch", job), spec("kafka", 'touch "$2"; exec sleep 600')]

    monkeypatch.setattr(engine, "parts", parts)


def test_it_is_made_once_and_found_by_what_it_was_made_for(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path
) -> None:
    played(monkeypatch, _JOB)
    said: list[str] = []
    assert class_archive.make(tools, tmp_path, said.append)
    made = engine.class_archive(tools, tmp_path)
    assert made is not None
    assert made.read_text() == "classes"
    assert list(made.parent.iterdir()) == [made], "nothing else is left"
    assert class_archive.make(dataclasses.replace(tools, classes=made), tmp_path, said.append)
    assert "there" in said[-1]


def test_archives_of_earlier_versions_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path
) -> None:
    played(monkeypatch, _JOB)
    (tmp_path / "java").mkdir()
    unused, recent = (tmp_path / "java" / f"classes-{name}-7.jsa" for name in ("a", "b"))
    for each, days in ((unused, 31), (recent, 29)):
        each.write_text("earlier")
        os.utime(each, (0, time.time() - days * 86_400))
    own = engine.class_archive_name(tools, tmp_path, 5)
    own.write_text("known")
    os.utime(own, (0, 0))
    assert engine.class_archive(tools, tmp_path) == own, "which marks it as used"
    newer = dataclasses.replace(tools, java_home=Path("/opt/newer"))
    assert class_archive.make(newer, tmp_path, lambda _line: None)
    assert {own, recent} < {*(tmp_path / "java").iterdir()}
    assert not unused.exists()


@pytest.mark.parametrize(
    ("job", "why"),
    [
        ("echo no Java here; exit 3", "ended with code 3.*no Java here"),
        ('touch "$2"; exec sleep 600', "has not written it"),
    ],
)
def test_without_one_everything_goes_on_more_slowly(
    monkeypatch: pytest.MonkeyPatch, tools: Tools, tmp_path: Path, job: str, why: str
) -> None:
    played(monkeypatch, job)
    said: list[str] = []

    assert not class_archive.make(tools, tmp_path, said.append)
    assert re.search(why, said[-1]), said
    assert engine.class_archive(tools, tmp_path) is None
    assert list((tmp_path / "java").iterdir()) == []


def test_an_archive_is_taken_when_it_is_whole_and_of_these_classes(tools: Tools, tmp_path: Path) -> None:
    """Java itself ends in a crash when the file is shorter than it says."""
    place = engine.class_archive_name(tools, tmp_path, 4)
    place.parent.mkdir()
    assert engine.class_archive(tools, tmp_path) is None
    place.write_bytes(b"clas")
    assert engine.class_archive(tools, tmp_path) == place
    assert engine.class_archive(dataclasses.replace(tools, spark_jars=[Path("/jars/newer.jar")]), tmp_path) is None
    newer = dataclasses.replace(tools.java, version="21")
    assert engine.class_archive(dataclasses.replace(tools, java=newer), tmp_path) is None
    place.write_bytes(b"cla")
    assert engine.class_archive(tools, tmp_path) is None
