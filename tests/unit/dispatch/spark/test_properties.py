"""Settings of Spark, and of its connection to Kafka."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import pytest

from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import guarded, properties, secret_in, write_properties
from arborcast.dispatch.spark.source import connection_options

CLUSTERS = ("spark://host:7077", "yarn", "k8s://https://host", "")
JARS = [Path("/jars/a.jar"), Path("/jars/b.jar")]


def test_settings_reach_spark() -> None:
    values = properties(
        DispatchSettings(idle_poll_ms=70, task_slots=3, driver_memory_mb=700),
        jars=JARS,
        master="local",
        python="/venv/bin/python",
        local_dir=Path("/data/spark"),
    )
    expected = {
        "spark.master": "local[3,4]",  # with task retries
        "spark.network.timeout": "120s",
        "spark.sql.streaming.pollingDelay": "70ms",
        "spark.driver.memory": "700m",
        "spark.jars": "/jars/a.jar,/jars/b.jar",
        "spark.pyspark.python": "/venv/bin/python",
        "spark.local.dir": "/data/spark",
    }
    assert {name: values.get(name) for name in expected} == expected
    assert "spark.master" not in properties(DispatchSettings()), "spark-submit sets it"


LONGEST = "/" + "d" * 59
LONG = LONGEST + "d"


@pytest.mark.parametrize(
    ("folder", "temporary", "sockets"),
    [(LONGEST, "/t", LONGEST), (LONG, "/t", "/t"), (LONG, LONG, None), (None, "/t", None)],
)
def test_files_of_a_killed_spark_are_in_its_own_folder(
    folder: str | None, temporary: str, sockets: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", temporary)
    values = properties(DispatchSettings(), local_dir=None if folder is None else Path(folder))
    assert values.get("spark.python.unix.domain.socket.dir") == sockets, "the path of a Unix socket is short"
    options = values["spark.driver.extraJavaOptions"]
    assert (f'"-Djava.io.tmpdir={folder}"' in options) is (sockets is not None)
    assert ("java.io.tmpdir" in options) is (sockets is not None)


def test_a_folder_with_spaces_quotes_and_backslashes_is_one_option_of_the_jvm() -> None:
    folder = Path("/data of 'me\"/a\\b")
    options = properties(DispatchSettings(), local_dir=folder, classes=folder / "c")["spark.driver.extraJavaOptions"]
    assert {f"-Djava.io.tmpdir={folder}", f"-XX:SharedArchiveFile={folder}/c"} <= set(shlex.split(options))


@pytest.mark.parametrize("master", CLUSTERS)
def test_on_a_cluster_spark_authenticates_and_encrypts(master: str) -> None:
    values = properties(DispatchSettings(spark_secret="geheim"), master=master)  # noqa: S106

    assert values.get("spark.master", "") == master
    assert values["spark.network.timeout"] == "30s"
    assert values["spark.authenticate"] == values["spark.network.crypto.enabled"] == "true"
    assert values["spark.network.crypto.cipher"] == "AES/GCM/NoPadding", "with integrity"
    assert values["spark.network.crypto.saslFallback"] == "false"
    assert values["spark.authenticate.secret"] == "geheim"
    assert "spark.driver.bindAddress" not in values
    assert "spark.authenticate.secret" not in properties(DispatchSettings(), master=master)
    values = properties(DispatchSettings(spark_authenticate=False), master=master)
    assert not [key for key in values if "authenticate" in key or "crypto" in key], "no encryption by Spark"


@pytest.mark.parametrize("authenticate", [True, False])
@pytest.mark.parametrize("master", ["local", "local[2]", None])
def test_in_local_mode_spark_is_on_loopback_with_its_own_secret(master: str | None, authenticate: bool) -> None:
    settings = DispatchSettings(spark_authenticate=authenticate, spark_secret="geheim")  # noqa: S106
    values = properties(settings, master=master)

    assert values["spark.authenticate"] == values["spark.network.crypto.enabled"] == "true"
    assert values["spark.network.crypto.saslFallback"] == "false"
    assert values["spark.driver.bindAddress"] == values["spark.driver.host"] == "127.0.0.1"
    assert "spark.authenticate.secret" not in values


def test_in_local_mode_no_heartbeat_is_too_old() -> None:
    """Spark reads the wall clock: after a suspension of the machine it would remove the only executor."""
    name = "spark.storage.blockManagerHeartbeatTimeoutMs"
    assert properties(DispatchSettings(), master="local").get(name) == "36500d"
    assert not [master for master in CLUSTERS if name in properties(DispatchSettings(), master=master)]


def test_the_python_daemon_of_an_executor_finds_the_code() -> None:
    values = properties(DispatchSettings(), master="spark://host:7077", code=Path("/out/arborcast.zip"))
    assert values["spark.submit.pyFiles"] == "/out/arborcast.zip"
    assert values["spark.executorEnv.PYTHONPATH"] == "arborcast.zip", "relative to the executor's folder"


def test_format_and_mode_of_the_properties_file(tmp_path: Path) -> None:
    file = tmp_path / "spark.properties"
    file.touch(mode=0o644)
    write_properties(file, {"b": "two words", "a": "C:\\temp"})
    assert file.read_text(encoding="utf-8") == "a C:\\\\temp\nb two words\n"

    write_properties(file, guarded(DispatchSettings(spark_secret="a\\b=")))  # noqa: S106
    assert file.stat().st_mode & 0o077 == 0
    assert secret_in(file.read_text()) == "a\\b="
    assert secret_in("spark.authenticate true\n") == ""


def test_an_archive_of_classes_is_used_or_written() -> None:
    used = properties(DispatchSettings(), jars=JARS, master="local", classes=Path("/cache of mine/x.jsa"))
    written = properties(DispatchSettings(), jars=JARS, master="local", archive_to=Path("/cache/x.jsa"))
    neither = properties(DispatchSettings(), jars=JARS, master="local")

    assert '"-XX:SharedArchiveFile=/cache of mine/x.jsa" "-Xshare:auto"' in used["spark.driver.extraJavaOptions"]
    assert '"-XX:ArchiveClassesAtExit=/cache/x.jsa"' in written["spark.driver.extraJavaOptions"]
    for values in (used, written):
        assert values["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"
        assert "spark.jars" not in values
    assert "Archive" not in neither["spark.driver.extraJavaOptions"]


def test_credentials_for_kafka_are_escaped() -> None:
    options = connection_options(
        KafkaSettings(
            security_protocol="SASL_SSL",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="user",
            sasl_password='a"b\\c; d',  # noqa: S106
            ssl_ca_file="/etc/ca.pem",
        )
    )
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="user" password="a\\"b\\\\c; d";'
    )
    assert options["kafka.ssl.truststore.location"] == "/etc/ca.pem"
    assert options["kafka.security.protocol"] == "SASL_SSL"


def test_time_outs_of_a_plain_connection_to_kafka() -> None:
    options = connection_options(KafkaSettings(bootstrap_servers="a:1,b:2", request_timeout_s=10))
    assert options["kafka.bootstrap.servers"] == "a:1,b:2"
    assert not any("sasl" in key or "ssl" in key for key in options)
    once_ms = int(options["kafka.default.api.timeout.ms"])
    assert once_ms <= 5000
    assert int(options["kafka.request.timeout.ms"]) <= once_ms, "required by Kafka's clients"
    assert int(options["fetchOffset.numRetries"]) * once_ms >= 60_000
    assert connection_options(KafkaSettings(request_timeout_s=2))["kafka.default.api.timeout.ms"] == "2000"
