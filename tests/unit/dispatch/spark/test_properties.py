from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import guarded, properties, secret_in, write_properties


def test_settings_reach_spark() -> None:
    values = properties(
        DispatchSettings(idle_poll_ms=70, task_slots=3, driver_memory_mb=700),
        jars=[Path("/jars/a.jar"), Path("/jars/b.jar")],
        master="local",
        python="/venv/bin/python",
        local_dir=Path("/data/spark"),
    )

    assert values["spark.sql.streaming.pollingDelay"] == "70ms"
    assert values["spark.driver.memory"] == "700m"
    assert values["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert values["spark.pyspark.python"] == "/venv/bin/python"
    assert values["spark.local.dir"] == "/data/spark"


def test_local_mode_retries_tasks() -> None:
    assert properties(DispatchSettings(task_slots=3), master="local")["spark.master"] == "local[3,4]"


def test_master_is_left_to_the_command_line_or_taken_as_given() -> None:
    assert "spark.master" not in properties(DispatchSettings())
    assert properties(DispatchSettings(), master="spark://host:7077")["spark.master"] == "spark://host:7077"


def test_a_cluster_gives_up_a_silent_host_sooner_than_local_mode_which_has_none() -> None:
    assert properties(DispatchSettings(), master="local")["spark.network.timeout"] == "120s"
    for master in ("spark://host:7077", "k8s://https://host", ""):
        assert properties(DispatchSettings(), master=master)["spark.network.timeout"] == "30s"


def test_code_is_found_by_the_python_daemon_of_an_executor() -> None:
    values = properties(DispatchSettings(), master="spark://host:7077", code=Path("/out/arborcast.zip"))

    assert values["spark.submit.pyFiles"] == "/out/arborcast.zip"
    assert values["spark.executorEnv.PYTHONPATH"] == "arborcast.zip", "relative: the executor fetches it to where it is"


def test_file_is_one_that_java_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"

    write_properties(file, {"b": "two words", "a": "C:\\temp"})

    assert file.read_text(encoding="utf-8") == "a C:\\\\temp\nb two words\n"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", ""])
def test_on_a_cluster_nobody_else_gives_tasks_to_executors_or_reads_what_they_send(master: str) -> None:
    values = properties(DispatchSettings(spark_secret="geheim"), master=master)  # noqa: S106

    assert values["spark.authenticate"] == values["spark.network.crypto.enabled"] == "true"
    assert values["spark.network.crypto.cipher"] == "AES/GCM/NoPadding", "with integrity"
    assert values["spark.network.crypto.saslFallback"] == "false"
    assert values["spark.authenticate.secret"] == "geheim"
    assert "spark.authenticate.secret" not in properties(DispatchSettings(), master=master)


def test_it_can_be_left_to_the_network() -> None:
    values = properties(DispatchSettings(spark_authenticate=False), master="spark://host:7077")
    assert not [key for key in values if "authenticate" in key or "crypto" in key]


@pytest.mark.parametrize("authenticate", [True, False])
@pytest.mark.parametrize("master", ["local", "local[2]", None])
def test_in_local_mode_sparks_ports_are_on_loopback_and_take_no_connection_without_a_secret(
    master: str | None, authenticate: bool
) -> None:
    settings = DispatchSettings(spark_authenticate=authenticate, spark_secret="geheim")  # noqa: S106
    values = properties(settings, master=master)

    assert values["spark.authenticate"] == values["spark.network.crypto.enabled"] == "true"
    assert values["spark.network.crypto.saslFallback"] == "false"
    assert values["spark.driver.bindAddress"] == values["spark.driver.host"] == "127.0.0.1"
    assert "spark.authenticate.secret" not in values, "Spark makes one"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", ""])
def test_on_a_cluster_the_driver_is_reached_by_executors(master: str) -> None:
    assert "spark.driver.bindAddress" not in properties(DispatchSettings(), master=master)


def test_a_file_with_a_secret_is_for_its_owner_and_has_it(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    file.touch(mode=0o644)

    write_properties(file, guarded(DispatchSettings(spark_secret="a\\b=")))  # noqa: S106

    assert file.stat().st_mode & 0o077 == 0
    assert secret_in(file.read_text()) == "a\\b="
    assert secret_in("spark.authenticate true\n") == ""


def test_an_archive_of_classes_is_used_or_written_with_the_jars_on_the_class_path() -> None:
    jars = [Path("/jars/a.jar"), Path("/jars/b.jar")]
    used = properties(DispatchSettings(), jars=jars, master="local", classes=Path("/cache of mine/x.jsa"))
    written = properties(DispatchSettings(), jars=jars, master="local", archive_to=Path("/cache/x.jsa"))
    neither = properties(DispatchSettings(), jars=jars, master="local")

    assert '"-XX:SharedArchiveFile=/cache of mine/x.jsa" -Xshare:auto' in used["spark.driver.extraJavaOptions"]
    assert '"-XX:ArchiveClassesAtExit=/cache/x.jsa"' in written["spark.driver.extraJavaOptions"]
    for values in (used, written):
        assert values["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"
        assert "spark.jars" not in values
    assert "Archive" not in neither["spark.driver.extraJavaOptions"]
