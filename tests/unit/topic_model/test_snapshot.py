"""Snapshots, overlays and their packed form; for base and overlay against the table see test_steps."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given

from arborcast.core.errors import InfrastructureError
from arborcast.topic_model.records.control import SubscriptionEnded, SubscriptionRecord
from arborcast.topic_model.routing.sharing import Sharing
from arborcast.topic_model.snapshot import Overlay, Snapshot, SnapshotView
from arborcast.topic_model.snapshot.packing import FlatMap, Packer, build_flat, decode_packed, decode_shape, unpack
from arborcast.topic_model.subscriptions import (
    BoundEndpoint,
    DeliveryPolicy,
    EndpointReference,
    Peer,
    Protection,
    SigningSecret,
    Subscription,
    TopicFilter,
    Trigger,
    TriggerTarget,
    XPathFilter,
)
from arborcast.topic_model.topics import TopicPath
from tests.support.routing import make_subscription, table_of

PATH = TopicPath("{urn:t}a/b")


def subscribed(*topics: str, number: int = 1) -> SubscriptionRecord:
    return SubscriptionRecord(make_subscription(f"s{number}", *topics))


def test_ended_subscriptions_leave_nothing_in_the_overlay() -> None:
    table = table_of(subscribed(PATH))
    checkpoint = table.checkpoint()
    for topics in (["{urn:t}a"], ["{urn:t}a//b|b"], ["//a", "{urn:t}//."]):
        table.apply(subscribed(*topics, number=2))
        checkpoint.overlay()
        table.apply(SubscriptionEnded("s2", "unsubscribed", 0))
    assert checkpoint.overlay() == Overlay(checkpoint.base)


def test_checkpoints_record_separately_until_closed() -> None:
    table = table_of()
    first = table.checkpoint()
    table.apply(subscribed(PATH, number=1))
    second = table.checkpoint()
    table.apply(subscribed(PATH, number=2))
    first.close()
    first.close()
    table.apply(subscribed(PATH, number=3))
    assert (first.overlay().size, second.overlay().size) == (2, 2)
    snapshot = Snapshot.build(second)
    assert SnapshotView(snapshot, second.overlay()).match(PATH) == table.match(PATH)
    with pytest.raises(ValueError, match="was already taken"):
        Snapshot.build(second)
    with pytest.raises(ValueError, match="is for snapshot"):
        SnapshotView(snapshot, table.checkpoint().overlay())


def test_a_snapshot_is_built_while_the_table_changes() -> None:
    table = table_of(*(subscribed(f"a/t{number}", number=number) for number in range(300)))
    checkpoint = table.checkpoint()
    built: list[Snapshot] = []
    builder = threading.Thread(target=lambda: built.append(Snapshot.build(checkpoint)))
    builder.start()
    for number in range(300):
        table.apply(SubscriptionEnded(f"s{number}", "unsubscribed", 0))
    builder.join()
    assert built[0]._meta.subscriptions == 300
    assert SnapshotView(built[0]).match(TopicPath("a/t7"))[0].id == "s7"
    assert SnapshotView(built[0], checkpoint.overlay()).match(TopicPath("a/t7")) == ()


def test_a_snapshot_in_a_file(tmp_path: Path) -> None:
    table = table_of(subscribed(PATH), subscribed("{urn:t}a//b|{urn:t}a//.", number=2))
    Snapshot.build(table.checkpoint()).write(tmp_path / "snapshot")
    mapped = Snapshot.open(tmp_path / "snapshot")
    for each in (mapped, pickle.loads(pickle.dumps(mapped))):  # noqa: S301  # pickled by the same line
        assert SnapshotView(each).match(PATH) == table.match(PATH)
    assert [file.name for file in tmp_path.iterdir()] == ["snapshot"]


def test_damaged_snapshots_are_refused() -> None:
    data: bytes = Snapshot.build(table_of(subscribed(PATH)).checkpoint()).__reduce__()[1][0]
    for damaged, why in (
        (b"", "not a routing snapshot"),
        (b"ArbSnap0" + data[8:], "not a routing snapshot"),
        (data[:8] + data[8:16][::-1] + data[16:], "another byte order"),
        (data[:-9], "ends after"),
    ):
        with pytest.raises(InfrastructureError, match=why):
            Snapshot(damaged)


@given(st.dictionaries(st.text(max_size=6), st.binary(max_size=6), max_size=60), st.text(max_size=6))
@example({"plumless": b"1", "buckeroo": b"2"}, "buckero")  # two of equal CRC-32, and a beginning
def test_flat_maps_against_dictionaries(entries: dict[str, bytes], other: str) -> None:
    flat = FlatMap(memoryview(build_flat(entries.items())))
    assert len(flat) == len(entries)
    for key in (*entries, other):
        found = flat.get(key)
        assert (None if found is None else bytes(found)) == entries.get(key)


def test_every_field_survives_packing() -> None:
    rich = Subscription(
        "id-1",
        EndpointReference("http://c/", ("<a/>",), ("<m/>", "<n/>")),
        address="http://broker/elsewhere",
        topics=(
            TopicFilter("d1", "t:a/b", "{urn:t}a/b", {"t": "urn:t"}),
            TopicFilter("d2", "a//.", "a//."),
            TopicFilter("d2", "=", "="),
        ),
        content=(XPathFilter("x", "//p:a", {"p": "urn:p"}),),
        producer=(XPathFilter("x", "1=1"),),
        form="raw",
        soap="1.2",
        addressing=True,
        policy=DeliveryPolicy("strict", "strict", 7, 1, 2),
        created_ms=12,
        terminates_ms=34,
        paused=True,
        owner="owner",
        pull_point="pull-1",
        protection=Protection((SigningSecret("k:new"), SigningSecret("k:old", 56)), "k:authorization", "certificate"),
        endpoint=BoundEndpoint("pull-2", "a name"),
        types=("{urn:plant}alarm", "reading"),
        trigger=Trigger("t", TopicPath("a"), "<x/>", "x", "p", TriggerTarget(True, 1, True, ("x",))),
        queue=3,
        peer=Peer("G/a", "G/b"),
    )
    assert rich == Sharing().compact(rich)
    assert None not in msgspec.structs.astuple(rich), "a field without a value"
    addressed = Subscription("id-3", EndpointReference("http://c/"), "http://broker/sub/id-3")
    kept = [rich, make_subscription("id-2", "a"), addressed]
    packer = Packer()
    packed = packer.pack(kept)
    shapes = [decode_shape(shape) for shape in packer.shapes()]
    assert [unpack(each, shapes[each.shape]) for each in decode_packed(packed)] == kept


def test_subscriptions_of_one_kind_share_a_shape() -> None:
    packer = Packer()
    packer.pack(make_subscription(f"s{number}", f"a/t{number}", consumer=f"http://c/{number}") for number in range(9))
    assert len(packer.shapes()) == 1
