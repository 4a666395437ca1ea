"""The ZeroMQ edges as a process, a client of the framed edge of a gateway:

    python -m arborcast.engine.gateway.zmq_edge --config arborcast.toml

`arborcast up` runs it if zmq.enabled is set. SIGTERM and SIGINT end it. The exit status is 0 after an orderly stop, 2
for wrong settings or a busy port.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from arborcast.client.framed import ConnectionFactory
from arborcast.core.errors import ConfigError
from arborcast.core.security.ip_addresses import connect_host, in_url
from arborcast.core.telemetry import log_format
from arborcast.core.telemetry.metrics import CONTENT_TYPE, Registry
from arborcast.engine.monitoring.endpoint import Endpoint, Page, declare_process
from arborcast.engine.settings.loading import Settings, level_of, load_settings
from arborcast.engine.terminal import print_error

logger = logging.getLogger("arborcast.zmq")


def main(arguments: list[str] | None = None) -> int:
    """Run the edges until a signal stops them."""
    parser = argparse.ArgumentParser(
        prog="python -m arborcast.engine.gateway.zmq_edge", description="Arborcast's ZeroMQ edges."
    )
    parser.add_argument("--config", type=Path, help="settings file (TOML)")
    parser.add_argument("--home", type=Path, help="data directory")
    parser.add_argument("--alive", type=Path, help="a file that is written about once a second")
    options = parser.parse_args(arguments)
    log_format.configure("human", "zmq")
    try:
        settings = load_settings(options.config, options.home)
        log_format.configure(settings.logging.format, "zmq", level_of(settings))
        _run(settings, options.alive)
    except ConfigError as error:
        print_error(f"arborcast zmq: {error}")
        return 2
    return 0


def _run(settings: Settings, alive: Path | None) -> None:
    try:
        from arborcast.ingest.zeromq.edge import ZmqEdge
    except ModuleNotFoundError as error:
        raise ConfigError("the ZeroMQ edges need the extra zmq: pip install 'arborcast[zmq]'") from error

    def beat() -> None:
        if alive is not None:
            alive.touch()

    edge = ZmqEdge(settings.zmq, _gateway(settings), settings.framed.max_frame_bytes, beat)
    metrics = Registry()
    declare_process(metrics)
    declare(metrics, lambda: dict(edge.counts))
    endpoint = None
    if settings.zmq.metrics_port:
        page = Page(CONTENT_TYPE.decode(), lambda: metrics.text().encode())
        endpoint = Endpoint(settings.metrics.host, settings.zmq.metrics_port, {"/metrics": page}, "metrics")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: edge.stop())
    logger.info("the ZeroMQ edges are open")
    edge.run()
    if endpoint is not None:
        endpoint.close()


def _gateway(settings: Settings) -> ConnectionFactory:
    if not settings.framed.port:
        raise ConfigError("the ZeroMQ edges are a client of the framed edge: set framed.port")
    scheme = "framed+tls" if settings.tls.certificate_file else "framed"
    url = f"{scheme}://{in_url(connect_host(settings.gateway.host))}:{settings.framed.port}"
    return ConnectionFactory(url, tls_ca_file=settings.zmq.tls_ca_file)


def declare(metrics: Registry, counts: Callable[[], Mapping[tuple[str, ...], float]]) -> None:
    metrics.counts(
        "arborcast_zmq_messages_total",
        "accepted, sent, lost (PUB, unconfirmed), dropped (a receiver that does not read), refused, or the error.",
        ("socket", "outcome"),
        counts,
    )


if __name__ == "__main__":
    sys.exit(main())
