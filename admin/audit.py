"""The audit: whether every delivery of accepted notifications is accounted for."""

from __future__ import annotations

from arborcast.core.progress import Progress, no_progress
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.operations import audit as operation
from arborcast.dispatch.operations.audit import Report


def audit(
    kafka: KafkaSettings,
    since_ms: int,
    until_ms: int | None = None,
    subscription: str = "",
    *,
    deep: bool = False,
    order: bool = False,
    patience_s: float = 15.0,
    limit: int = 100,
    progress: Progress = no_progress,
) -> Report:
    """The balance of notifications accepted in this period, as the report of one subscription or of all. `deep` matches
    all notifications again, `order` checks the order of the pushes; `limit` is the number of named problems; unbalanced
    deliveries are examined again for `patience_s`. Raises InfrastructureError and other errors of the logs."""
    report = operation.audit(
        kafka, since_ms, until_ms, deep=deep, order=order, patience_s=patience_s, limit=limit, progress=progress
    )
    if subscription:
        report.subscriptions = {name: each for name, each in report.subscriptions.items() if name == subscription}
    return report
