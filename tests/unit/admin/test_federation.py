"""The federation of an engine, as its operator sees it."""

from __future__ import annotations

import msgspec
import pytest

from arborcast.admin.federation import links, with_waiting
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.control_view import ControlView
from arborcast.topic_model.records.control import SubscriptionRecord, SubscriptionSuspended
from arborcast.topic_model.subscriptions import Peer
from tests.support.routing import make_subscription


def test_links_are_the_subscriptions_of_other_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlView()
    for name, terminates_ms in (("peer-b", None), ("peer-a", None), ("peer-c", 5), ("ordinary", None)):
        made = make_subscription(name, "a//.|b", consumer=f"http://{name}/", created_ms=1_000)
        peer = Peer("G/own", f"G/{name[-1]}") if name.startswith("peer") else None
        control.apply(SubscriptionRecord(msgspec.structs.replace(made, peer=peer, terminates_ms=terminates_ms)))
    control.apply(SubscriptionSuspended("peer-b", "refused", 1, 2))
    found = links(control)
    assert [(each.link, each.to, each.state) for each in found] == [
        ("peer-a", "G/a", "active"),
        ("peer-b", "G/b", "suspended"),
        ("peer-c", "G/c", "closing"),
    ]
    assert (found[0].url, found[0].topics, found[0].since_ms) == ("http://peer-a/", ("a//.", "b"), 1_000)
    asked: list[set[str]] = []

    def tally(_: object, subscriptions: set[str]) -> dict[str, tuple[int, int]]:
        asked.append(subscriptions)
        return {"peer-b": (41, 2_000)}

    monkeypatch.setattr("arborcast.dispatch.operations.waiting.Waiting.tally", tally)
    counted = with_waiting(KafkaSettings(), found)
    assert [(each.waiting, each.waiting_since_ms) for each in counted] == [(0, 0), (41, 2_000), (0, 0)]
    assert with_waiting(KafkaSettings(), ()) == ()
    assert asked == [{"peer-a", "peer-b", "peer-c"}]
