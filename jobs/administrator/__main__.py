"""The administrator of a federation:

    python -m jobs.administrator --key-file federation.key [--host 127.0.0.1] [--port 8095] [--state members.json]

It is ready when it listens (`/health/live`). SIGTERM or SIGINT stop it. The exit status is 0 after an orderly stop, 1
when it could not go on, 2 for wrong arguments, files or a busy port.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Generator
from pathlib import Path

import uvicorn

from core.errors import ConfigError
from core.telemetry import log_format
from ingest.federation.keys import SharedKeys
from jobs.administrator.server import AdministratorApp
from jobs.terminal import complain

logger = logging.getLogger("arborcast.administrator")

# One long poll of each member, its beats, and people who ask.
_MOST_CONNECTIONS = 4_000


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Ours are there already; uvicorn would raise the signal again after an orderly stop."""
        yield


def main(arguments: list[str] | None = None) -> int:
    """Run it until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m jobs.administrator", description="Who is in a federation.")
    parser.add_argument("--key-file", required=True, help="the secret of the federation (arborcast federation key)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8095, help="port to listen on (default: %(default)s)")
    parser.add_argument("--state", type=Path, default=Path("members.json"), help="where members are kept")
    options = parser.parse_args(arguments)
    log_format.configure("human", "administrator")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        return asyncio.run(_run(options))
    except ConfigError as error:
        complain(f"arborcast administrator: {error}")
        return 2
    except OSError as error:
        complain(f"arborcast administrator: {error}")
        return 1


async def _run(options: argparse.Namespace) -> int:
    app = AdministratorApp(SharedKeys(options.key_file), options.state)
    try:
        listener = socket.create_server((options.host, options.port), backlog=1_024)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {options.host} port {options.port}: {error}") from error
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    looking = asyncio.create_task(app.look_forever(), name="look")

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    looking.add_done_callback(lambda _: stop())
    logger.info("listening on %s port %d", *listener.getsockname()[:2])
    await server.serve(sockets=[listener])
    failure = looking.exception() if looking.done() and not looking.cancelled() else None
    looking.cancel()
    if failure is not None:
        raise failure
    return 0


if __name__ == "__main__":
    sys.exit(main())
