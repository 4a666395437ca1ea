"""The gateway process:

It listens at once (`/health/live`), waits for Kafka without a limit, and is ready (`/health/ready`) when it has read
the control log to its end. SIGTERM or SIGINT stop it within a few seconds; a second one at once. The exit status is 0
after an orderly stop, 1 after a failure, 2 for wrong settings or a busy port.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
from pathlib import Path

import uvloop

from arborcast.core.errors import ConfigError
from arborcast.core.telemetry import log_format
from arborcast.engine.gateway import workers
from arborcast.engine.gateway.process import GatewayProcess, listen_framed
from arborcast.engine.gateway.workers import Share, Workers
from arborcast.engine.settings.checks import check_gateway
from arborcast.engine.settings.loading import Settings, level_of, load_settings
from arborcast.engine.terminal import print_error
from arborcast.ingest.http.listening import raise_open_files
from arborcast.ingest.http.serving import listen, listen_for_workers

logger = logging.getLogger("arborcast.gateway")


def main(arguments: list[str] | None = None) -> int:
    """Run the gateway until a signal stops it."""
    parser = argparse.ArgumentParser(
        prog="python -m arborcast.engine.gateway", description="Arborcast's gateway: SOAP in, log out."
    )
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--home", type=Path, help="data directory")
    workers.add_arguments(parser)
    options = parser.parse_args(arguments)
    log_format.configure("human", "gateway")
    raise_open_files()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        settings = load_settings(options.config, options.home)
        part = "gateway" if options.worker is None else f"gateway-{options.worker}"
        log_format.configure(settings.logging.format, part, level_of(settings))
        check_gateway(settings)
        share = workers.share_of(options)
        if share is None and settings.gateway.workers > 1:
            given = sys.argv[1:] if arguments is None else arguments
            listeners = listen_for_workers(settings.gateway)
            if settings.framed.port:
                # Alone first, as these: workers share it, also with another gateway of this user, or with these.
                listen_framed(settings).close()
            return Workers(settings.gateway, given, listeners).run()
        listener = share.listener if share else listen(settings.gateway)
        # Not closed: that would wait for threads, which may wait for an unavailable broker.
        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        return runner.run(_run(settings, listener, share))
    except ConfigError as error:
        print_error(f"arborcast gateway: {error}")
        return 2


async def _run(settings: Settings, listener: socket.socket, share: Share | None) -> int:
    host, port = listener.getsockname()[:2]
    process = GatewayProcess(settings, host, port, share)
    logger.info("listening on %s port %d, reached as %s", host, port, process.own.broker)
    return await process.run(listener)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    sys.stderr.flush()
    # Everything is stopped and written. Python's own exit would wait for threads, see above.
    os._exit(status)
