"""What the dispatch job shows about itself: its metrics, and its slowest endpoints, which are too many for labels."""

from __future__ import annotations

import dataclasses
import json

from dispatch.monitoring.metrics import JobMetrics
from jobs.monitoring.endpoint import Endpoint, Page
from jobs.monitoring.own_process import declare_process
from jobs.monitoring.settings import MetricsSettings
from topic_model.metrics import CONTENT_TYPE

_SLOWEST = 20


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
