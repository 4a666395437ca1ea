"""What the parts of a job are started with. Sent to the workers with every task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from core.eventlog.settings import KafkaSettings
from core.security.outbound import AddressPolicy
from core.security.settings import SecretSettings
from core.telemetry.tracing import NO_TRACING, TracingSettings
from dispatch.settings import DispatchSettings, PushSettings, RetrySettings, TableSettings


@dataclass(frozen=True)
class JobSettings:
    """All that the job needs to know."""

    home: Path
    kafka: KafkaSettings
    dispatch: DispatchSettings
    push: PushSettings
    tables: TableSettings
    outbound: AddressPolicy
    retry: RetrySettings
    secrets: SecretSettings
    tracing: TracingSettings = NO_TRACING

    def checkpoint(self, query: str) -> str:
        """Where a query keeps its progress."""
        root = self.dispatch.checkpoint.rstrip("/") or str((self.home / "checkpoints").absolute())
        return f"{root}/{query}"
