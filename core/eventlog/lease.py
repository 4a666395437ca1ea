"""The common part of leases: one holder at a time, decided by the order of a log.

A candidate reads the log to its end, decides, appends at most one record, and reads it back. Clocks are not compared: a
candidate counts from when it read a record, a holder from before it sent its renewal. So a holder stops its work before
another candidate takes the lease (`hold_s` < `lease_s`). The records and the decision belong to the users:
`dispatch.job.lease`, `engine.gateway.lease`. A worker (`dispatch.realtime.worker_lease`) only reads: its lease lasts
until it finds the end of its run in a log.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from arborcast.core.errors import ArborcastError
from arborcast.core.eventlog.follower import LogFollower
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings

logger = logging.getLogger(__name__)

Record = TypeVar("Record")


class LeaseTimes(NamedTuple):
    """The times of a lease, in seconds."""

    lease_s: float
    """A lease without a renewal for this long is free."""
    hold_s: float
    """A holder whose last renewal was sent this long ago stops its work."""
    renew_s: float
    """The interval between two renewals."""
    request_s: float
    """The longest wait for Kafka: a longer one would leave no time for another request within `hold_s`."""


class LeaseLog(Generic[Record]):
    """The log of a lease, for the thread of one candidate. `apply(record, offset)` gets each record once."""

    def __init__(
        self,
        kafka: KafkaSettings,
        name: str,
        times: LeaseTimes,
        encode: Callable[[Record], tuple[bytes, bytes]],
        decode: Callable[[bytes, bytes | None], Record],
        apply: Callable[[Record, int], None],
    ) -> None:
        self.kafka = dataclasses.replace(kafka, request_timeout_s=min(kafka.request_timeout_s, times.request_s))
        self._request_s = times.request_s
        self._encode = encode
        self._writer = LogWriter(self.kafka, name)
        # A damaged record would end all leases until its deletion; candidates skip the same ones.
        self._follower: LogFollower[Record] = LogFollower(
            self.kafka, name, decode, apply, forgetful=True, skips_damaged=True
        )

    def read(self) -> int:
        """Apply the records of the log; returns the next offset. Raises InfrastructureError, RecordVersionError."""
        try:
            self._follower.read_to_end(self._request_s)
        except ArborcastError:
            self._follower.close()
            raise
        return self._follower.position

    def append(self, record: Record) -> int:
        """Append a record and read it back; the offset of the next record. Raises InfrastructureError."""
        self._writer.append_encoded([self._encode(record)])
        return self.read()

    def leave(self, release: Record | None) -> None:
        """Stop reading. A holder appends its `release`, so that others need not wait for the end of its lease."""
        try:
            if release is not None:
                self._writer.append_encoded([self._encode(release)])
        except ArborcastError as error:
            logger.info("the lease could not be released; other candidates wait until it has run out: %s", error)
        self._follower.close()

    def close(self) -> None:
        """Free the connection for writing. Any thread."""
        self._writer.close()
