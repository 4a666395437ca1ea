"""Downloads of jars, with a `java` that simulates Ivy, for all outcomes without a network."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from arborcast.engine.install import jars
from arborcast.engine.install.java import JavaRuntime
from arborcast.engine.processes.errors import HomeError, JarError

CONTENT = {
    "spark": {"connector-1.0.jar": b"spark one"},
    "broker": {"kafka-2.0.jar": b"kafka", "log-1.jar": b"log"},
    "wsdl": {"schemas-3.jar": b"schemas"},
}


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = {
        which: {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        for which, files in CONTENT.items()
    }
    monkeypatch.setattr(jars, "pins", lambda which: pinned[which])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def report() -> list[str]:
    return []


class PlayedIvy:
    """A `java` executable that copies prepared jars to Ivy's retrieve path."""

    def __init__(self, folder: Path) -> None:
        self.jars = folder / "repository"
        self.asked = 0
        self._script = folder / "java"
        for which, files in CONTENT.items():
            (self.jars / which).mkdir(parents=True)
            for name, content in files.items():
                (self.jars / which / name).write_bytes(content)
        self.says("", 0)

    def says(self, output: str, code: int) -> None:
        self._script.write_text(
            "#!/bin/sh\n"
            'while [ $# -gt 0 ]; do case "$1" in -confs) set=$2;; -retrieve) into=$(dirname "$2");; esac; shift; done\n'
            f'for jar in "{self.jars}/$set"/*.jar; do echo "downloading https://r/$(basename "$jar") ..."; done\n'
            f'cp "{self.jars}/$set"/*.jar "$into"\n'
            f"cat <<'EOF'\n{output}\nEOF\nexit {code}\n"
        )
        self._script.chmod(0o755)

    def java(self) -> JavaRuntime:
        self.asked += 1
        return JavaRuntime(self._script, "17", "the test")


@pytest.fixture
def played(tmp_path: Path) -> PlayedIvy:
    return PlayedIvy(tmp_path)


def entries(cache: Path) -> set[str]:
    return {path.name for path in (cache / "jars").iterdir() if path.name != ".lock"}


def test_sets_are_fetched_separately_once_and_repaired(cache: Path, played: PlayedIvy, report: list[str]) -> None:
    steps: list[tuple[str, int, int]] = []
    jars.fetch(
        played.java, report.append, cache, progress=lambda what, done=0, total=0: steps.append((what, done, total))
    )
    assert [path.name for path in jars.jar_paths("spark", cache)] == ["connector-1.0.jar"]
    assert [path.name for path in jars.jar_paths("broker", cache)] == ["kafka-2.0.jar", "log-1.jar"]
    assert [each[1:] for each in steps if each[0] == "downloading the broker jars"] == [(1, 2), (2, 2)]
    assert any("broker set complete, 2 jars" in line for line in report)
    asked = played.asked
    jars.fetch(played.java, report.append, cache)
    assert played.asked == asked, "Java is not started for existing sets"
    jars.jar_paths("spark", cache)[0].write_bytes(b"rotten")
    with pytest.raises(JarError, match="is not the pinned one"):
        jars.jar_paths("spark", cache)
    jars.fetch(played.java, report.append, cache)
    assert jars.is_fetched("spark", cache)


@pytest.mark.parametrize(
    ("jar", "content", "why", "kept"),
    [
        ("spark/connector-1.0.jar", b"something else", r"connector-1\.0\.jar .* is not the pinned one", 0),
        ("broker/log-1.jar", None, r"log-1\.jar is missing", 1),
        ("broker/stranger-1.jar", b"", r"stranger-1\.jar .* is not a pinned jar", 1),
    ],
    ids=["wrong checksum", "missing", "not pinned"],
)
def test_a_set_with_a_wrong_jar_is_refused_as_a_whole(
    cache: Path, played: PlayedIvy, report: list[str], jar: str, content: bytes | None, why: str, kept: int
) -> None:
    (cache / "ivy").mkdir(parents=True)
    if content is None:
        (played.jars / jar).unlink()
    else:
        (played.jars / jar).write_bytes(content)
    with pytest.raises(JarError, match=why):
        jars.fetch(played.java, report.append, cache)
    assert len(entries(cache)) == kept
    # The next fetch downloads again: Ivy would return the same file from its cache.
    assert not (cache / "ivy").exists()


def test_no_partial_set_offline_or_on_a_full_disk(
    cache: Path, played: PlayedIvy, report: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    played.says(
        "Server access error at url https://jars.example.org/x (java.net.UnknownHostException: repo1)\n"
        "\t\t:: org.example#connector;1.0: not found",
        1,
    )
    with pytest.raises(JarError) as caught:
        jars.fetch(played.java, report.append, cache)
    message = str(caught.value)
    assert message.startswith("could not fetch connector-1.0.jar: org.example#connector;1.0: not found")
    assert "UnknownHostException" in message
    assert "arborcast fetch --from FOLDER" in message
    played.says("java.io.IOException: No space left on device", 1)
    with pytest.raises(HomeError, match="the disk is full"):
        jars.fetch(played.java, report.append, cache)
    assert entries(cache) == set()
    asked = played.asked
    usage = shutil.disk_usage("/")._replace(free=5 * 2**20)
    monkeypatch.setattr("arborcast.engine.install.jars.shutil.disk_usage", lambda _path: usage)
    with pytest.raises(HomeError, match="only 5 MiB free"):
        jars.fetch(played.java, report.append, cache)
    assert played.asked == asked


def test_no_partial_set_after_ctrl_c(cache: Path, played: PlayedIvy, report: list[str]) -> None:
    def interrupted(what: str, done: int = 0, total: int = 0) -> None:
        if what == "downloading the broker jars":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jars.fetch(played.java, report.append, cache, progress=interrupted)
    assert [name.partition("-")[0] for name in entries(cache)] == ["spark"]


def test_jars_from_a_folder_need_no_java(cache: Path, played: PlayedIvy, report: list[str], tmp_path: Path) -> None:
    other, empty = tmp_path / "other machine", tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(JarError, match=r"connector-1\.0\.jar is not in"):
        jars.fetch(played.java, report.append, cache, source=empty)
    jars.fetch(played.java, report.append, other)
    asked = played.asked
    jars.fetch(played.java, report.append, cache, source=other)
    assert [jars.is_fetched(each, cache) for each in ("spark", "broker")] == [True, True]
    assert played.asked == asked


TO_P = "-Dhttps.proxyHost=p"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ""),
        ({"https_proxy": "http://p:3128"}, f"{TO_P} -Dhttps.proxyPort=3128"),
        ({"HTTPS_PROXY": "p:80", "NO_PROXY": "h, .e"}, f"{TO_P} -Dhttps.proxyPort=80 -Dhttp.nonProxyHosts=h|*.e"),
    ],
)
def test_options_of_java_for_a_proxy(environ: Mapping[str, str], expected: str) -> None:
    assert jars.proxy_options(environ) == expected.split()
