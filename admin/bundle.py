"""The files for a Spark cluster, in one folder: `arborcast bundle`.

    arborcast.zip        our packages, for spark-submit's --py-files
    dispatch_stream.py   the job's script
    spark.properties     the tuned settings, naming the jars and the zip; with a secret, so readable only for its owner
    spark-cluster.properties    settings of a standalone cluster's master and workers, with the shared secret

The cluster's Python needs the dependencies of our packages (`arborcast bundle` does not contain them: some are compiled
for one system), not Arborcast itself.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from arborcast.core.errors import ConfigError
from arborcast.dispatch.settings import DispatchSettings
from arborcast.dispatch.spark.properties import (
    DAEMONS,
    as_text,
    guarded,
    needs_secret,
    properties,
    secret_in,
    write_properties,
)
from arborcast.engine.install import jars

CODE = "arborcast.zip"
SCRIPT = "dispatch_stream.py"
PROPERTIES = "spark.properties"
CLUSTER = "spark-cluster.properties"

_PACKAGE = Path(__file__).parents[1]

# The oldest time of a zip file, so that the same code makes the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


class Bundle(NamedTuple):
    """The files of a bundle; `cluster` is None if master and workers need no settings."""

    code: Path
    script: Path
    properties: Path
    cluster: Path | None


def write_bundle(
    folder: Path,
    settings: DispatchSettings,
    jars: Sequence[Path],
    *,
    master: str | None = None,
    python: str = "python3",
    driver_python: str = sys.executable,
) -> Bundle:
    """Write the files, over older ones; a secret of an older bundle is kept. `python` is the interpreter's path on the
    cluster; `driver_python` that on the machine of spark-submit, by default this one.

    Raises OSError with the folder if it cannot be written.
    """
    code, script, file, cluster = folder / CODE, folder / SCRIPT, folder / PROPERTIES, folder / CLUSTER
    guarded_by_secret = needs_secret(settings, master)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if guarded_by_secret:
            secret = secret_in(cluster.read_text(encoding="utf-8")) if cluster.exists() else ""
            settings = dataclasses.replace(settings, spark_secret=secret or secrets.token_urlsafe(32))
            write_properties(cluster, {**guarded(settings), **DAEMONS})
        _write_zip(code)
        script.write_bytes((_PACKAGE / "jobs" / SCRIPT).read_bytes())
        values = properties(settings, jars=jars, master=master or "", python=python, code=code.absolute())
        write_properties(file, values | {"spark.pyspark.driver.python": driver_python})
    except OSError as error:
        error.filename = str(folder)
        raise
    return Bundle(code, script, file, cluster if guarded_by_secret else None)


def _write_zip(target: Path) -> None:
    draft = target.with_name(f".{target.name}")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in _files(_PACKAGE):
            entry = zipfile.ZipInfo(file.relative_to(_PACKAGE.parent).as_posix(), _NO_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, file.read_bytes())
    draft.replace(target)


def _files(root: Path) -> Iterator[Path]:
    # In a clone the packages are links, which Path.rglob does not follow.
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        yield from (Path(folder, name) for name in sorted(files))


def spark_properties(settings: DispatchSettings, master: str | None = None) -> str:
    """The properties file for spark-submit: the tuned settings, and the jars. Raises ConfigError."""
    if master and needs_secret(settings, master):
        raise ConfigError(
            "dispatch.spark_secret is not set: give it the spark.authenticate.secret of the cluster's master and "
            "workers (arborcast bundle makes one, with a file to start them with), or set dispatch.spark_authenticate "
            "= false for a cluster that was started without"
        )
    return as_text(properties(settings, jars=jars.jar_paths("spark"), master=master))
