from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import arborcast.jobs
from arborcast.admin.bundle import write_bundle
from arborcast.core.errors import ConfigError
from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import DAEMONS
from tests.support.bare_python import bare_python

pytestmark = pytest.mark.slow


def test_zip_alone_is_enough_to_import_what_the_workers_run(tmp_path: Path) -> None:
    code, *_ = write_bundle(tmp_path / "out", DispatchSettings(), [])
    python = str(bare_python(tmp_path / "python"))
    script = "import arborcast.dispatch.job.worker_daemon; print(arborcast.dispatch.__file__)"
    command = [python, "-W", "ignore", "-c", script]
    without = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert without.returncode != 0, "this Python has no Arborcast of its own"
    env = {"PYTHONPATH": str(code)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(code))


def test_script_and_properties_lie_beside_it(tmp_path: Path) -> None:
    code, script, file, _ = write_bundle(
        tmp_path, DispatchSettings(), [Path("/jars/a.jar")], master="spark://host:7077", python="/opt/env/bin/python"
    )
    assert values_of(file).items() >= {
        ("spark.master", "spark://host:7077"),
        ("spark.jars", "/jars/a.jar"),
        ("spark.submit.pyFiles", str(code)),
        ("spark.pyspark.python", "/opt/env/bin/python"),
        ("spark.pyspark.driver.python", sys.executable),
    }
    assert "def main" in script.read_text()
    _, _, file, _ = write_bundle(tmp_path, DispatchSettings(), [], python="/a/python", driver_python="/b/python")
    assert values_of(file)["spark.pyspark.driver.python"] == "/b/python", "a driver on another host"


def test_everything_that_is_read_beside_the_code_is_in_the_zip(tmp_path: Path) -> None:
    code, *_ = write_bundle(tmp_path, DispatchSettings(), [])
    root = Path(arborcast.jobs.__file__).parents[2]
    here = {
        str(Path(folder, name).relative_to(root))
        for folder, _, files in os.walk(root / "arborcast", followlinks=True)
        for name in files
        if "__pycache__" not in folder
    }

    with zipfile.ZipFile(code) as archive:
        assert set(archive.namelist()) == here
    assert "arborcast/dispatch/spark/log4j2.properties" in here


def test_same_code_makes_the_same_bytes_and_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    first, second = (write_bundle(tmp_path / name, DispatchSettings(), []).code for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot be written to .*file/out"):
        write_bundle(tmp_path / "file" / "out", DispatchSettings(), [])


def values_of(file: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


@pytest.mark.parametrize("master", ["spark://host:7077", None])
def test_a_standalone_cluster_is_told_the_secret_of_its_job(tmp_path: Path, master: str | None) -> None:
    first = write_bundle(tmp_path, DispatchSettings(), [], master=master)
    again = write_bundle(tmp_path, DispatchSettings(), [], master=master)

    assert first.cluster is not None
    job, daemons = values_of(first.properties), values_of(first.cluster)
    assert len(job["spark.authenticate.secret"]) >= 32
    assert daemons.items() >= DAEMONS.items()
    assert DAEMONS["spark.master.rest.enabled"] == "false", "it asks for no secret"
    assert daemons.items() - DAEMONS.items() <= job.items(), "or they would not understand each other"
    assert set(daemons) >= {"spark.authenticate", "spark.authenticate.secret", "spark.network.crypto.enabled"}
    assert again == first
    assert values_of(again.properties) == job, "a bundle that is made anew goes with the cluster that runs"
    assert not any(file.stat().st_mode & 0o077 for file in (first.properties, first.cluster))


def test_what_is_set_is_what_is_used_and_other_masters_tell_a_secret_by_themselves(tmp_path: Path) -> None:
    ours = write_bundle(tmp_path, DispatchSettings(spark_secret="ours"), [], master="spark://host:7077")  # noqa: S106
    assert ours.cluster is None
    assert values_of(ours.properties)["spark.authenticate.secret"] == "ours"
    for settings, master in ((DispatchSettings(), "yarn"), (DispatchSettings(spark_authenticate=False), "spark://h:1")):
        made = write_bundle(tmp_path / "other", settings, [], master=master)
        assert made.cluster is None
        assert "spark.authenticate.secret" not in values_of(made.properties)
