"""What the gateway counts of requests."""

from __future__ import annotations

from topic_model.metrics import Registry


class RequestMetrics:
    """Declared in a registry, counted by the application."""

    def __init__(self, registry: Registry) -> None:
        self.answered = registry.counter(
            "arborcast_gateway_requests_total", "Requests answered.", ("operation", "status")
        )
        self.refused = registry.counter(
            "arborcast_gateway_refused_total",
            "Requests answered with a fault, by the kind of error behind it (its class in ingest/errors.py or "
            "topic_model/errors.py; Defect is our own).",
            ("reason",),
        )
        self.notify_seconds = registry.histogram(
            "arborcast_gateway_notify_seconds", "From the whole Notify received to its acknowledgement by Kafka."
        )
