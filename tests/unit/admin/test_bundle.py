from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import arborcast.jobs
from arborcast.admin.bundle import write_bundle
from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import DAEMONS
from tests.support.bare_python import bare_python

pytestmark = pytest.mark.slow


def values_of(file: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in file.read_text().splitlines())


def test_the_zip_has_all_modules_of_the_workers(tmp_path: Path) -> None:
    code, script, *_ = write_bundle(tmp_path / "out", DispatchSettings(), [])
    assert "def main" in script.read_text()
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
    # A Python without Arborcast imports the product from the zip.
    python = str(bare_python(tmp_path / "python"))
    worker = "import arborcast.dispatch.job.worker_daemon; print(arborcast.dispatch.__file__)"
    command = [python, "-W", "ignore", "-c", worker]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path, check=False).returncode != 0
    env = {"PYTHONPATH": str(code)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(code))


def test_the_properties_name_the_code_and_the_pythons(tmp_path: Path) -> None:
    jars = [Path("/jars/a.jar")]
    first = write_bundle(tmp_path / "a", DispatchSettings(), jars, master="spark://host:7077", python="/opt/env/python")
    assert values_of(first.properties).items() >= {
        ("spark.master", "spark://host:7077"),
        ("spark.jars", "/jars/a.jar"),
        ("spark.submit.pyFiles", str(first.code)),
        ("spark.pyspark.python", "/opt/env/python"),
        ("spark.pyspark.driver.python", sys.executable),
    }
    second = write_bundle(tmp_path / "b", DispatchSettings(), [], python="/a/python", driver_python="/b/python")
    assert values_of(second.properties)["spark.pyspark.driver.python"] == "/b/python", "a driver on another host"
    assert first.code.read_bytes() == second.code.read_bytes()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file/out"):
        write_bundle(tmp_path / "file" / "out", DispatchSettings(), [])


@pytest.mark.parametrize("master", ["spark://host:7077", None])
def test_a_standalone_cluster_has_the_secret_of_its_job(tmp_path: Path, master: str | None) -> None:
    first = write_bundle(tmp_path, DispatchSettings(), [], master=master)
    again = write_bundle(tmp_path, DispatchSettings(), [], master=master)
    assert first.cluster is not None
    job, daemons = values_of(first.properties), values_of(first.cluster)
    assert len(job["spark.authenticate.secret"]) >= 32
    assert daemons.items() >= DAEMONS.items()
    assert DAEMONS["spark.master.rest.enabled"] == "false", "the REST server requires no secret"
    assert daemons.items() - DAEMONS.items() <= job.items()
    assert set(daemons) >= {"spark.authenticate", "spark.authenticate.secret", "spark.network.crypto.enabled"}
    assert again == first
    assert values_of(again.properties) == job, "a second bundle has the secret of the first"
    assert not any(file.stat().st_mode & 0o077 for file in (first.properties, first.cluster))


@pytest.mark.parametrize(
    ("settings", "master", "secret"),
    [
        (DispatchSettings(spark_secret="ours"), "spark://host:7077", "ours"),  # noqa: S106  # a made-up one
        (DispatchSettings(), "yarn", None),
        (DispatchSettings(spark_authenticate=False), "spark://h:1", None),
    ],
    ids=["set", "yarn", "off"],
)
def test_an_existing_secret_is_not_replaced(
    tmp_path: Path, settings: DispatchSettings, master: str, secret: str | None
) -> None:
    made = write_bundle(tmp_path, settings, [], master=master)
    assert made.cluster is None
    assert values_of(made.properties).get("spark.authenticate.secret") == secret
