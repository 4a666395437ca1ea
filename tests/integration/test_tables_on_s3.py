"""Tables on S3 need only a path, and credentials in the environment or the settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from arborcast.analysis import Tables
from arborcast.dispatch.logs.attempts import encode
from arborcast.dispatch.recording.upkeep import Upkeep
from arborcast.dispatch.tables import ATTEMPTS
from arborcast.dispatch.tables.delta_table import DeltaTableWriter, rows_of
from arborcast.dispatch.tables.spec import table_exists
from arborcast.engine.settings.loading import load_settings
from tests.support.held_port import HeldPort
from tests.support.process import LoggedProcess, killed
from tests.support.table_rows import attempt

# The environment of the job; see docs/operations.md.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}

# One request at a time: two threads of moto's server would both find that there is no such object,
# and both write it; S3 refuses the second one.
_SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


@contextmanager
def s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """The server with an empty bucket; returns the environment variables for it."""
    port = HeldPort()
    url = f"http://127.0.0.1:{port.number}"
    made = LoggedProcess([sys.executable, "-W", "ignore", "-c", _SERVER, str(port.number)], folder / "s3.log")
    port.for_life_of(made)
    with killed(made) as server:
        server.start()
        server.wait_for(lambda: _made(f"{url}/{bucket}"), "the S3 server answers")
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}


def _made(url: str) -> bool:
    try:
        return requests.put(url, timeout=60).ok
    except requests.RequestException:
        return False


pytest.importorskip("moto", reason="the S3 server is one of the development packages: make setup")


@pytest.mark.parametrize("where", ["environment", "settings"])
def test_a_path_and_credentials_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    with s3_server(tmp_path, "tables") as options:
        overrides = {"tables.path": "s3://tables/x"}
        if where == "settings":
            overrides["tables.storage_options"] = " ".join(f"{name}={value}" for name, value in options.items())
        else:
            for name, value in options.items():
                monkeypatch.setenv(name, value)
        settings = load_settings(home=tmp_path, overrides=overrides, environ={})
        location = ATTEMPTS.location(settings.tables, tmp_path)
        assert not table_exists(location)
        table = DeltaTableWriter(ATTEMPTS, location)
        for batch in range(9):
            table.extend(rows_of([encode(attempt("n1", "s", "delivered"))]), {"query": batch})
        assert ATTEMPTS.ensure(location).version() == 9, "it is not created again"

        Upkeep(ATTEMPTS, location, unused_hours=1).step()

        reader = Tables(settings).attempts
        assert len(reader) == 9
        assert reader.arrow(["notification"])["notification"].to_pylist() == ["n1"] * 9
        assert len(reader.delta().file_uris()) == 1, "small files are compacted there, too"
        assert options["AWS_ACCESS_KEY_ID"] not in repr(reader) + repr(settings) + repr(location)
