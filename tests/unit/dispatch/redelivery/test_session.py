from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import msgspec
import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.delivery.health import EndpointHealthRegistry
from arborcast.dispatch.logs import parked
from arborcast.dispatch.logs.held_lanes import HeldLanes
from arborcast.dispatch.logs.parked import Delivery, Parked, Place, Tries
from arborcast.dispatch.redelivery import session
from arborcast.dispatch.redelivery.parked_store import ParkedStore
from arborcast.dispatch.redelivery.scheduler import RedeliveryContext
from arborcast.dispatch.redelivery.session import SessionParts, opened_session
from arborcast.dispatch.settings import PushSettings, RetrySettings
from tests.support.make import notification
from tests.support.redelivery_world import HOUR_MS, World

DELIVERY = Delivery("s", Place(1, 0, 0))
MESSAGE = notification("n", accepted_ms=1)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what a session has opened, and closed again; its store has read nothing."""
    names: list[str] = []
    monkeypatch.setattr(session, "_opened", lambda file, log: opened("store", names))
    monkeypatch.setattr(session, "_cursor", lambda kafka, log, positions: opened(f"reading {log}", names))
    monkeypatch.setattr(session, "journal_for", lambda kafka: opened("journal", names))
    return names


def opened(name: str, closed: list[str]) -> SimpleNamespace:
    return SimpleNamespace(close=lambda: closed.append(name), positions=dict, recall=lambda name: None)


def parts(make_transport: Any, subscriptions: Any = None) -> SessionParts:
    context = RedeliveryContext(
        push=PushSettings(),
        retry=RetrySettings(),
        health=EndpointHealthRegistry(RetrySettings(), lambda endpoint: True),
        subscriptions=subscriptions,
        held=HeldLanes(),
        envelope_of=cast(Any, None),
        publish=lambda event: None,
    )
    return SessionParts(
        kafka=KafkaSettings(),
        file=Path("never made"),
        context=context,
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
    with pytest.raises(ValueError, match="settings"), opened_session(parts(lambda: opened("transport", closed))):
        pass
    assert sorted(closed) == ["journal", "reading parked", "reading results", "store", "transport"]


@pytest.mark.parametrize(("hours", "waits"), [(11, 1), (13, 0)])
def test_a_file_that_was_not_used_for_half_a_day_is_read_again(
    hours: int, waits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that say that something is finished may be gone from the log by then."""
    file, at = tmp_path / "parked.sqlite", 1_700_000_000_000
    monkeypatch.setattr(session, "time_ms", lambda: at + hours * HOUR_MS)
    with closing(ParkedStore(file, "log")) as store:
        store.apply(DELIVERY.key(), parked.encode(Parked(MESSAGE, Tries())), 0)
        store.advance(0, 1)
        store.remember("health", b"known")
        store.remember("read-ms", b"%d" % at)
        store.commit()
    with closing(session._opened(file, "log")) as store:
        assert (store.count, store.positions()) == (waits, {0: 1} if waits else {})
        assert store.recall("health") == b"known"


class Records:
    """A log of large records, one in each answer."""

    def __init__(self, records: int, size: int) -> None:
        self._left, self.positions = records, {0: 0}
        self._message = msgspec.structs.replace(MESSAGE, payload=b"x" * size)

    def ends(self) -> dict[int, int]:
        return {0: self._left}

    def has_reached(self, ends: Mapping[int, int]) -> bool:
        return self.positions[0] >= ends[0]

    def poll(self, timeout_s: float) -> dict[int, Sequence[Any]]:
        offset = self.positions[0]
        if offset >= self._left:
            return {}
        self.positions[0] += 1
        key, value = Delivery("s", Place(1, 0, offset)).key(), parked.encode(Parked(self._message, Tries()))
        return {0: [SimpleNamespace(key=key, value=value, offset=offset)]}


def test_a_fold_of_large_messages_is_committed_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, sizes = World(), []
    with closing(ParkedStore(tmp_path / "parked.sqlite", "log")) as store:
        commit = store.commit

        def committed() -> None:
            sizes.append(store.uncommitted)
            commit()

        monkeypatch.setattr(store, "commit", committed)
        used = parts(None, world)
        reading, results = cast(Any, Records(30, 4_000_000)), cast(Any, Records(0, 0))
        begun = session.RedeliverySession(used, store, reading, results, world.journal, world)
        begun.read_to_end(lambda: False)
        assert store.count == 30
    assert max(sizes) < 40_000_000
