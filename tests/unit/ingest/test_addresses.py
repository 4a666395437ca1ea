from __future__ import annotations

import pytest

from arborcast.ingest.addresses import OwnAddresses, Target, target_of
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
        ("/wsn/subscriptions/", None),
        ("/wsn/subscriptions/a/b", None),
        ("/wsn/notificationbroker", None),
        ("/wsn", None),
        ("/", None),
    ],
)
def test_paths(path: str, target: Target | None) -> None:
    assert target_of(path) == target


def test_what_clients_are_told() -> None:
    assert OwnAddresses("127.0.0.1", 8080).broker == "http://127.0.0.1:8080/wsn/NotificationBroker"
    assert OwnAddresses("::1", 8080).base == "http://[::1]:8080"
    public = OwnAddresses("127.0.0.1", 8080, "https://bus.example/events/")
    assert public.resource(Kind.SUBSCRIPTION, "x") == "https://bus.example/events/wsn/subscriptions/x"


@pytest.mark.parametrize(
    ("own", "host", "port", "back"),
    [
        (OwnAddresses("127.0.0.1", 8080), "127.0.0.1", 8080, True),
        (OwnAddresses("127.0.0.1", 8080), "localhost", 8080, True),
        (OwnAddresses("127.0.0.1", 8080), "LOCALHOST.", 8080, True),
        (OwnAddresses("127.0.0.1", 8080), "127.1.2.3", 8080, True),
        (OwnAddresses("127.0.0.1", 8080), "::1", 8080, True),
        (OwnAddresses("127.0.0.1", 8080), "0.0.0.0", 8080, True),  # noqa: S104  # compared only
        (OwnAddresses("127.0.0.1", 8080), "127.0.0.1", 8081, False),
        (OwnAddresses("127.0.0.1", 8080), "10.0.0.1", 8080, False),
        (OwnAddresses("10.0.0.1", 8080), "10.0.0.1", 8080, True),
        (OwnAddresses("10.0.0.1", 8080), "localhost", 8080, False),
        (OwnAddresses("10.0.0.1", 8080, "https://bus.example"), "bus.example", 443, True),
        (OwnAddresses("10.0.0.1", 8080, "https://bus.example"), "bus.example", 80, False),
    ],
)
def test_what_leads_back_to_us(own: OwnAddresses, host: str, port: int, back: bool) -> None:
    assert own.leads_back(host, port) is back


@pytest.mark.parametrize("prefix", ["", "/events"])
def test_a_whole_url_of_ours_is_recognised(prefix: str) -> None:
    own = OwnAddresses("127.0.0.1", 8080, f"https://bus.example{prefix}")
    assert own.target_of_url(own.resource(Kind.SUBSCRIPTION, "x")) == Target(Kind.SUBSCRIPTION, "x")


def test_what_is_no_url_is_none_of_ours() -> None:
    assert OwnAddresses("127.0.0.1", 8080).target_of_url("http://[x/wsn/subscriptions/y") is None
