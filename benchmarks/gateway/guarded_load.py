"""`http_load` for clients that say who they are: over TLS, and with a fresh UsernameToken in each request.

    python -m benchmarks.gateway.guarded_load JSON

The JSON object names port, file, connections, seconds, rate (or null), and what need be of ca, certificate, key, and
user and password for digests. A digest takes the client some 10 microseconds; the request has its full length.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import ssl
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.gateway.http_load import Load

NONCE, CREATED, DIGEST = b"@nonce@", b"@created@", b"@digest@"
"""What stands in the prepared request for the parts of a token; each is replaced by something of `LENGTHS`."""
LENGTHS = {NONCE: 24, CREATED: 20, DIGEST: 28}


class DigestLoad(Load):
    """Each request with a token of its own."""

    def __init__(self, request: bytes, paced: bool, tls: ssl.SSLContext | None, password: str) -> None:
        super().__init__(request, paced, tls)
        self._password = password.encode()

    @property
    def request(self) -> bytes:
        """What is sent next."""
        nonce = os.urandom(16)
        created = datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
        digest = hashlib.sha1(nonce + created + self._password, usedforsecurity=False).digest()
        parts = ((NONCE, base64.b64encode(nonce)), (CREATED, created), (DIGEST, base64.b64encode(digest)))
        request = super().request
        for name, value in parts:
            assert len(value) == LENGTHS[name]
            request = request.replace(name, value)
        return request


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    tls = None
    if told.get("ca"):
        tls = ssl.create_default_context(cafile=told["ca"])
        if told.get("certificate"):
            tls.load_cert_chain(told["certificate"], told["key"])
    request, paced = Path(told["file"]).read_bytes(), told.get("rate") is not None
    if told.get("password"):
        load: Load = DigestLoad(request, paced, tls, told["password"])
    else:
        load = Load(request, paced, tls)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load.run(told["port"], told["connections"], told["seconds"], told.get("rate")))))


if __name__ == "__main__":
    main()
