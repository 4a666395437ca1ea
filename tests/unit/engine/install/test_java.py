"""The choice of Java, with scripts that print a version."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from arborcast.engine.install.java import find_java, home_for_spark, parse_version
from arborcast.engine.processes.errors import JavaNotFound, JavaTooOld

V8 = 'openjdk version "1.8.0_392"'
V11 = 'openjdk version "11.0.21" 2023-10-17 LTS'
V17 = 'java version "17.0.9" 2023-10-17 LTS'
V21 = 'openjdk version "21.0.1" 2023-10-17'
V25 = 'openjdk version "25-ea" 2025-09-16'


@pytest.fixture(autouse=True)
def _no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines without any Java except the ones that a test creates."""
    monkeypatch.setattr("arborcast.engine.install.java.importlib.util.find_spec", lambda _name: None)


def make_java(home: Path, says: str, code: int = 0) -> Path:
    """A home with an executable that prints a version, as java does, to stderr."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    executable.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("said", "version"),
    [
        (V8, "1.8.0_392"),
        (V17, "17.0.9"),
        (V25, "25-ea"),
        ("Picked up JAVA_TOOL_OPTIONS: -Xint\n" + V11, "11.0.21"),
        ('IMPLEMENTOR="Debian"\nJAVA_VERSION="17.0.15"\nOS_NAME="Linux"', "17.0.15"),
        ("Unable to locate a Java Runtime.", None),
    ],
)
def test_versions_are_parsed(said: str, version: str | None) -> None:
    assert parse_version(said) == version


def test_the_choice_of_a_java(tmp_path: Path) -> None:
    newest, tested = make_java(tmp_path / "jdk25", V25), make_java(tmp_path / "jdk21", V21)
    old, good = make_java(tmp_path / "old", V11), make_java(tmp_path / "jvm" / "good", V17)
    environ = {"JAVA_HOME": str(newest), "PATH": str(tested / "bin")}
    assert find_java(environ, places=()).home == tested, "a tested release is preferred to a newer one"
    found = find_java({"JAVA_HOME": str(newest)}, places=())
    assert (found.home, found.feature, found.found) == (newest, 25, "JAVA_HOME")
    assert find_java({"PATH": str(old / "bin")}, places=(f"{tmp_path}/jvm/*",)).home == good
    for chosen in (newest, newest / "bin" / "java"):
        assert find_java({"ARBORCAST_JAVA": str(chosen), "JAVA_HOME": str(good)}, places=()).home == newest


def test_an_unusable_java_is_an_error_and_not_replaced(tmp_path: Path) -> None:
    home, good, old = make_java(tmp_path / "11", V11), make_java(tmp_path / "17", V17), make_java(tmp_path / "8", V8)
    with pytest.raises(JavaTooOld) as caught:
        find_java({"PATH": str(home / "bin")}, places=())
    assert "Java 17 or newer is needed" in str(caught.value)
    assert f"Java 11.0.21 at {home / 'bin' / 'java'} (PATH)" in str(caught.value)
    assert "make setup JAVA=wheel" in str(caught.value)
    with pytest.raises(JavaTooOld, match=r"ARBORCAST_JAVA is Java 1\.8\.0_392"):
        find_java({"ARBORCAST_JAVA": str(old), "JAVA_HOME": str(good)}, places=())
    with pytest.raises(JavaNotFound, match=r"ARBORCAST_JAVA = .*nowhere"):
        find_java({"ARBORCAST_JAVA": str(tmp_path / "nowhere"), "JAVA_HOME": str(good)}, places=())
    stub = make_java(tmp_path / "stub", "Unable to locate a Java Runtime.", code=1)  # as on macOS
    with pytest.raises(JavaNotFound) as missing:
        find_java({"PATH": str(stub / "bin"), "JAVA_HOME": str(tmp_path / "nothing")}, places=())
    assert "make setup JAVA=wheel" in str(missing.value)
    assert "arborcast[java]" in str(missing.value)


def test_spark_gets_a_wrapper_round_a_runtime_without_the_vector_module(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", V17)
    (home / "release").write_text('JAVA_VERSION="17"\nMODULES="java.base jdk.incubator.vector"\n')
    assert home_for_spark(find_java({"JAVA_HOME": str(home)}, places=()), tmp_path / "cache") == home
    home = make_java(tmp_path / "a jdk's home", V25)
    (home / "release").write_text('JAVA_VERSION="25"\nMODULES="java.base java.sql"\n')
    (home / "bin" / "java").write_text('#!/bin/sh\nfor a do printf "[%s]" "$a"; done\n')
    java = find_java({"JAVA_HOME": str(home)}, places=())

    wrapped = home_for_spark(java, tmp_path / "cache")
    command = [str(wrapped / "bin" / "java"), "-Da=b c", "--add-modules=jdk.incubator.vector", "Main", "", "$x*"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[-Da=b c][Main][][$x*]"
    assert home_for_spark(java, tmp_path / "cache") == wrapped
