from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.health import EndpointHealthRegistry
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.redelivery import session
from arborcast.dispatch.redelivery.scheduler import RedeliveryContext
from arborcast.dispatch.redelivery.session import SessionParts, opened_session
from arborcast.dispatch.settings import PushSettings, RetrySettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.redelivery_world import BROKEN, World


class Opened:
    """Something that has to be closed."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self._name = name
        self._closed = closed

    def close(self) -> None:
        self._closed.append(self._name)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.setattr(session, "_opened", lambda file, log: Opened("store", names))
    monkeypatch.setattr(session, "ParkedReading", lambda kafka, log="parked": Opened(f"reading {log}", names))
    monkeypatch.setattr(session, "journal_for", lambda kafka: Opened("journal", names))
    return names


def parts(make_transport: Any) -> SessionParts:
    context = RedeliveryContext(
        push=PushSettings(),
        retry=RetrySettings(),
        health=EndpointHealthRegistry(RetrySettings(), lambda endpoint: True),
        subscriptions=cast(Any, None),
        held=HeldLanes(),
        envelope_of=cast(Any, None),
        tell=lambda event: None,
    )
    return SessionParts(
        kafka=KafkaSettings(),
        file=Path("never made"),
        context=context,
        subscriptions=cast(Any, None),
        make_transport=make_transport,
        end_subscriptions=lambda ids: None,
        suspend_subscriptions=lambda since_ms: None,
    )


def test_what_was_open_when_the_next_could_not_be_opened_is_closed(closed: list[str]) -> None:
    def no_transport() -> NoReturn:
        raise InfrastructureError("no certificates")

    with pytest.raises(InfrastructureError, match="no certificates"), opened_session(parts(no_transport)):
        pass

    assert sorted(closed) == ["journal", "reading parked", "reading results", "store"]


def test_what_was_open_when_a_session_could_not_be_made_is_closed(
    closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(*_: object) -> NoReturn:
        raise ValueError("its settings are wrong")

    monkeypatch.setattr(session, "Redelivery", spoilt)

    with pytest.raises(ValueError, match="settings"), opened_session(parts(lambda: Opened("transport", closed))):
        pass

    assert sorted(closed) == ["journal", "reading parked", "reading results", "store", "transport"]


@pytest.mark.parametrize("asked", ["gone", "suspend", "tried", "finished", "write_dead_letter", "record"])
def test_whatever_is_asked_of_the_journal_has_to_be_written_down(asked: str) -> None:
    world = World()
    world.subscribe("s")
    world.endpoint("s").answer = lambda ids: BROKEN
    delivery = world.park("s", "n")
    world.run(1_000)
    row, message = world.attempts[0], Notification("n", TopicPath("a"), b"<x/>", 1)
    journal = world.journal
    clean = journal.dirty
    assert not clean

    match asked:
        case "gone":
            journal.gone("s")
        case "suspend":
            journal.suspend("s", 1)
        case "tried":
            journal.tried(delivery, Tries(1))
        case "finished":
            journal.finished(delivery, tried=True)
        case "write_dead_letter":
            journal.write_dead_letter(delivery, message, row)
        case "record":
            journal.record(row)

    assert journal.dirty
    journal.take_gone()
    journal.take_suspended()
    journal.catch_up()
    assert not journal.dirty
