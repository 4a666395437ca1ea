from __future__ import annotations

import re
import time
import uuid

import pytest

from arborcast.ingest.addresses import NotificationIds, OwnAddresses, Target, resource_id, target_of
from arborcast.wire.endpoints import Kind


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/wsn/NotificationBroker", Target(Kind.BROKER)),
        ("/wsn/NotificationBroker/", Target(Kind.BROKER)),
        ("/wsn/CreatePullPoint", Target(Kind.PULL_POINT_FACTORY)),
        ("/wsn/subscriptions/a-B_1", Target(Kind.SUBSCRIPTION, "a-B_1")),
        ("/wsn/subscriptions/a/", Target(Kind.SUBSCRIPTION, "a")),
        ("/wsn/pullpoints/p", Target(Kind.PULL_POINT, "p")),
        ("/wsn/registrations/r", Target(Kind.REGISTRATION, "r")),
        *((path, None) for path in ("/wsn/subscriptions/", "/wsn/subscriptions/a/b", "/wsn/notificationbroker")),
        *((path, None) for path in ("/wsn", "/")),
    ],
)
def test_paths(path: str, target: Target | None) -> None:
    assert target_of(path) == target


def test_own_addresses() -> None:
    own = OwnAddresses("127.0.0.1", 8080)
    assert own.broker == "http://127.0.0.1:8080/wsn/NotificationBroker"
    assert OwnAddresses("::1", 8080).base == "http://[::1]:8080"
    public = OwnAddresses("127.0.0.1", 8080, "https://bus.example/events/")
    assert public.resource(Kind.SUBSCRIPTION, "x") == "https://bus.example/events/wsn/subscriptions/x"
    for each in (own, public, OwnAddresses("127.0.0.1", 8080, "https://bus.example")):
        assert each.id_in(each.resource(Kind.SUBSCRIPTION, "x"), Kind.SUBSCRIPTION) == "x"
    for url in ("http://[x/wsn/subscriptions/y", own.resource(Kind.PULL_POINT, "x"), own.broker):
        assert own.id_in(url, Kind.SUBSCRIPTION) == ""


LOOPBACK, INSIDE = OwnAddresses("127.0.0.1", 8080), OwnAddresses("10.0.0.1", 8080)
PUBLIC = OwnAddresses("10.0.0.1", 8080, "https://bus.example")


@pytest.mark.parametrize(
    ("own", "host", "port", "back"),
    [
        *((LOOPBACK, host, 8080, True) for host in ("127.0.0.1", "localhost", "LOCALHOST.", "127.1.2.3", "::1")),
        (LOOPBACK, "0.0.0.0", 8080, True),  # noqa: S104  # compared only
        (LOOPBACK, "127.0.0.1", 8081, False),
        (LOOPBACK, "10.0.0.1", 8080, False),
        (INSIDE, "10.0.0.1", 8080, True),
        (INSIDE, "localhost", 8080, False),
        (PUBLIC, "bus.example", 443, True),
        (PUBLIC, "bus.example", 80, False),
    ],
)
def test_leads_back(own: OwnAddresses, host: str, port: int, back: bool) -> None:
    assert own.is_own_address(host, port) is back


def test_notification_ids_are_uuids_of_version_7_in_order() -> None:
    ids = NotificationIds()
    made = [ids.next() for _ in range(20_000)]  # more than the counter of a millisecond
    assert made == sorted(set(made))
    first, last = uuid.UUID(made[0]), uuid.UUID(made[-1])
    assert (first.version, first.variant) == (7, uuid.RFC_4122)
    assert abs((first.int >> 80) / 1000 - time.time()) < 3_600
    assert last.int >> 80 >= first.int >> 80
    assert NotificationIds().next()[20:] != NotificationIds().next()[20:], "different random parts"


def test_length_and_alphabet_of_resource_ids() -> None:
    made = {resource_id() for _ in range(1_000)}
    assert len(made) == 1_000
    assert not [each for each in made if not re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_-]{23}", each)]
