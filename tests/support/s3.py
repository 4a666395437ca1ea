"""An S3 server on loopback (moto's), with the rules that commits to Delta tables rely on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from tests.support.held_port import HeldPort
from tests.support.process import LoggedProcess

# What an operator would put into the environment of the job; see docs/operations.md.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}

# One request after the other: two threads of moto's own server both find that there is no such object yet,
# and both write it, where S3 refuses the second one.
_SERVER = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
"""


@contextmanager
def s3_server(folder: Path, bucket: str) -> Iterator[dict[str, str]]:
    """The server with an empty bucket; what the environment has to say to reach it."""
    port = HeldPort()
    url = f"http://127.0.0.1:{port.number}"
    server = LoggedProcess([sys.executable, "-W", "ignore", "-c", _SERVER, str(port.number)], folder / "s3.log")
    port.for_life_of(server)
    server.start()
    try:
        server.wait_for(lambda: _made(f"{url}/{bucket}"), "the S3 server answers")
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
    finally:
        server.kill()


def _made(url: str) -> bool:
    try:
        return requests.put(url, timeout=60).ok
    except requests.RequestException:
        return False
