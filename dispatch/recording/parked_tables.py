"""`retries` and `dead_letters`: what the logs `parked` and `dead` say. Pure."""

from __future__ import annotations

import logging

from core.errors import InfrastructureError, RecordVersionError
from core.eventlog.client import ConsumerRecord
from dispatch.logs import dead_letters, parked
from dispatch.logs.parked import Parked, Place, Tried, Tries
from dispatch.recording.control_tables import moment
from dispatch.recording.state_tables import RowChanges
from dispatch.tables import DEAD_LETTERS, RETRIES

logger = logging.getLogger(__name__)


class RetriesFold:
    """The deliveries that wait. A batch that Spark repeats parks the same ones again; what is known of their tries
    stays."""

    spec = RETRIES
    writer = "parked"
    patched = ("tries", "counted", "due_at")
    kept: tuple[str, ...] = ()
    guard = "s.tries > t.tries"

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        """Note what the record means for the table."""
        try:
            delivery, is_tries = parked.decode_key(record.key)
            entry = None if record.value is None else parked.decode(record.value)
        except RecordVersionError:
            raise
        except InfrastructureError as error:
            _left_out("parked", record, error)
            return
        key = delivery.key().decode()
        match entry:
            case Parked(notification=notification, tries=tries):
                row = {
                    "notification": notification.id,
                    "subscription": delivery.subscription,
                    "topic": notification.topic,
                    "accepted_at": moment(notification.accepted_ms),
                    "parked_at": moment(record.timestamp),
                    "payload": notification.payload,
                    "producer": notification.producer,
                }
                changes.add(key, row | _origin(delivery.place) | _tries(tries))
            case Tried(tries=tries):
                changes.patch(key, _tries(tries))
            case None if not is_tries:
                changes.drop(key)


class DeadLettersFold:
    """The deliveries that were given up."""

    spec = DEAD_LETTERS
    writer = "dead"
    patched: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    guard = ""

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        """Note what the record means for the table."""
        try:
            key = record.key.decode()
            letter = None if record.value is None else dead_letters.decode(record.value)
        except RecordVersionError:
            raise
        except (InfrastructureError, UnicodeDecodeError) as error:
            _left_out("dead", record, error)
            return
        if letter is None:
            changes.drop(key)
            return
        changes.put(
            key,
            {
                "notification": letter.notification.id,
                "subscription": letter.subscription,
                "topic": letter.notification.topic,
                "endpoint": letter.endpoint,
                "state": letter.state,
                "error": letter.error,
                "detail": letter.detail,
                "status": letter.status,
                "attempts": letter.number,
                "accepted_at": moment(letter.notification.accepted_ms),
                "ended_at": moment(letter.at_ms),
                "payload": letter.notification.payload,
                "producer": letter.notification.producer,
            },
        )


def _origin(place: Place) -> dict[str, object]:
    return {"batch": place.batch, "partition": place.partition, "offset": place.offset}


def _tries(tries: Tries) -> dict[str, object]:
    return {
        "tries": tries.number,
        "counted": tries.counted,
        "due_at": moment(tries.due_ms) if tries.due_ms else None,
    }


def _left_out(log: str, record: ConsumerRecord, error: Exception) -> None:
    where = f"offset {record.offset} of partition {record.partition}"
    logger.error("%s of the %s log is left out of the tables: %s", where, log, error)
