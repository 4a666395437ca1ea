"""`incomplete`: messages that came in parts and were given up, from the log `fragments`; and who is told of it."""

from __future__ import annotations

from arborcast.core.eventlog.client import ConsumerRecord
from arborcast.dispatch.recording.folds import moment
from arborcast.dispatch.recording.state_tables import RowChanges, TableFold
from arborcast.dispatch.redelivery.events import EventListener, OperatorEvent
from arborcast.dispatch.tables import INCOMPLETE
from arborcast.topic_model.records import fragments
from arborcast.topic_model.records.fragments import Assembled, GivenUp


class IncompleteFold(TableFold):
    """A row for each message that was given up. One that was put together at that very moment has none."""

    spec = INCOMPLETE
    writer = "fragments"

    def __init__(self, tell: EventListener = lambda _: None) -> None:
        self._tell = tell
        self._told = -1

    def apply(self, record: ConsumerRecord, changes: RowChanges) -> None:
        match read := fragments.decode(b"", record.value):
            case GivenUp():
                changes.put(_name(read), _row(read))
                if record.offset > self._told:  # a step that failed is done again
                    self._told = record.offset
                    self._tell(_event(read))
            case Assembled():
                changes.drop(_name(read))


def _name(record: GivenUp | Assembled) -> str:
    # The place of its first part alone would do, but for a log that is made anew.
    return f"{record.first}/{record.owner}/{record.identification}"


def _row(record: GivenUp) -> dict[str, object]:
    return {
        "identification": record.identification,
        "topic": record.topic,
        "owner": record.owner,
        "reason": record.reason,
        "detail": record.detail,
        "had": record.had,
        "missing": record.missing,
        "bytes": record.bytes,
        "began_at": moment(record.since_ms),
        "given_up_at": moment(record.at_ms),
    }


def _event(record: GivenUp) -> OperatorEvent:
    why = {
        "time": "no further part came",
        "size": "it is too large",
        "content": "its parts make no message that is taken",
        "lost": "parts are not in the log any more",
    }[record.reason]
    has = f"it has the parts {record.had}" + (f" and lacks {record.missing}" if record.missing else "")
    detail = f"the message {record.identification!r} was given up: {why}; {has}"
    return OperatorEvent(
        "fragments-incomplete",
        record.at_ms,
        detail=detail + (f" ({record.detail})" if record.detail else ""),
        topic=record.topic,
        since_ms=record.since_ms,
        facts=(("Identification", record.identification), ("Had", record.had), ("Missing", record.missing)),
    )
