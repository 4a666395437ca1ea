"""The administrator of a federation:

    python -m arborcast.engine.administrator --key-file federation.key [--host HOST] [--port PORT] [--state FILE]

It is ready when it listens (`/health/live`). SIGTERM or SIGINT stop it. The exit status is 0 after an orderly stop, 1
after a failure, 2 for wrong arguments, files or a busy port.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import uvloop

from arborcast.core.errors import ConfigError
from arborcast.core.security.web_pages import PageRule
from arborcast.core.telemetry import log_format
from arborcast.engine.administrator.server import AdministratorApp
from arborcast.engine.terminal import print_error
from arborcast.ingest.federation.keys import SharedKeys
from arborcast.ingest.http.listening import listen_on, on_signals, raise_open_files
from arborcast.ingest.http.serving import make_small_server
from arborcast.ingest.settings import GatewaySettings

logger = logging.getLogger("arborcast.administrator")

# One long poll and heartbeats of each member, and queries of people.
_MOST_CONNECTIONS = 4_000


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m arborcast.engine.administrator", description="Who is in a federation."
    )
    parser.add_argument("--key-file", required=True, help="the secret of the federation (arborcast federation key)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8095, help="port to listen on (default: %(default)s)")
    parser.add_argument("--state", type=Path, default=Path("members.json"), help="where members are kept")
    options = parser.parse_args(arguments)
    log_format.configure("human", "administrator")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    raise_open_files()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # asyncio's logs each refused connection
            return runner.run(_run(options))
    except ConfigError as error:
        print_error(f"arborcast administrator: {error}")
        return 2
    except OSError as error:
        print_error(f"arborcast administrator: {error}")
        return 1


async def _run(options: argparse.Namespace) -> int:
    app = AdministratorApp(SharedKeys(options.key_file), options.state, PageRule(options.host))
    listener = listen_on(options.host, options.port, host_by="--host", port_by="--port")
    server = make_small_server(app, GatewaySettings(max_connections=_MOST_CONNECTIONS, stop_timeout_s=1))
    checking = asyncio.create_task(app.check_forever(), name="look")
    on_signals(server.stop)
    checking.add_done_callback(lambda _: server.stop())
    logger.info("listening on %s port %d", *listener.getsockname()[:2])
    await server.serve(sockets=[listener])
    failure = checking.exception() if checking.done() and not checking.cancelled() else None
    checking.cancel()
    if failure is not None:
        raise failure
    return 0


if __name__ == "__main__":
    sys.exit(main())
