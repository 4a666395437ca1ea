"""What the dispatch job shows about itself: its metrics, and its slowest endpoints, which are too many for labels."""

from __future__ import annotations

import dataclasses
import json
import logging
import threading

from dispatch.monitoring.metrics import JobMetrics
from jobs.monitoring.endpoint import Endpoint, Page
from jobs.monitoring.own_process import declare_process
from jobs.monitoring.settings import MetricsSettings
from topic_model.errors import ConfigError
from topic_model.metrics import CONTENT_TYPE

logger = logging.getLogger(__name__)

_SLOWEST = 20

# How soon a port that somebody else has is tried again.
_PAUSE_S = 5.0


def serve_job_sometime(metrics: JobMetrics, settings: MetricsSettings, pause_s: float = _PAUSE_S) -> None:
    """Begin to serve, now or when whoever has the port has left it: a job that nobody can look at still delivers."""

    def serve() -> bool:
        try:
            endpoint = serve_job(metrics, settings)
        except ConfigError as error:
            logger.warning("%s; tried again every %g s", error, pause_s)
            return False
        logger.info("metrics at http://%s:%d/metrics", settings.host, endpoint.port)
        return True

    def keep_trying() -> None:
        pause = threading.Event()
        while not (pause.wait(pause_s) or serve()):
            pass

    if not serve():
        threading.Thread(target=keep_trying, name="metrics-port", daemon=True).start()


def serve_job(metrics: JobMetrics, settings: MetricsSettings) -> Endpoint:
    """Begin to serve. Raises ConfigError when the port is taken."""
    declare_process(metrics.registry)
    pages = {
        "/metrics": Page(CONTENT_TYPE.decode(), lambda: metrics.registry.text().encode()),
        "/status.json": Page("application/json", lambda: _status(metrics)),
    }
    endpoint = Endpoint(settings.host, settings.job_port, pages, "metrics-http")
    endpoint.start()
    return endpoint


def _status(metrics: JobMetrics) -> bytes:
    slowest = [dataclasses.asdict(one) | {"mean_s": one.mean_s} for one in metrics.slowest(_SLOWEST)]
    return json.dumps({"slowest_endpoints": slowest}).encode()
