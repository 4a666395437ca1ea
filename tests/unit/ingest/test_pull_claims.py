"""Pull points: waiting clients, and claimed, settled and returned messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from arborcast.core.backoff import Backoff
from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.ingest.operations.pull_points import PULL
from arborcast.ingest.settings import GatewaySettings
from arborcast.ingest.state import pull_queues
from arborcast.ingest.state.pull_queues import KeyedRecord, PullQueues, PullView, SettledRecords
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records.pull import Claimed, PullRecord, Returned, Settled, StoredMessage
from tests.support import soap_messages as soap
from tests.support.gateway_parts import GatewayParts, HttpAnswer
from tests.support.pulling import create, fill, get, payloads


async def pulled(parts: GatewayParts, path: str, maximum: int | None = None) -> list[str]:
    """The payloads of an answer that was sent."""
    answer = await parts.request("POST", path, get(maximum))
    await parts.pulls.close()
    return payloads(answer)


async def pull_by(parts: GatewayParts, path: str, send: Callable[[object], Awaitable[None]], *, leaves: bool) -> None:
    """A GetMessages on a connection with this `send`; the client may disconnect while it waits."""
    body = get(attributes=f'xmlns:p="{PULL}" p:Wait="PT60S"' if leaves else "")
    pieces: list[dict[str, object]] = [{"type": "http.request", "body": body, "more_body": False}]
    pieces += [{"type": "http.disconnect"}] * leaves

    async def receive() -> dict[str, object]:
        if not pieces:
            await asyncio.Event().wait()
        return pieces.pop(0)

    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    await asyncio.wait_for(parts.app(scope, receive, send), 45)


def test_messages_are_settled_after_the_answer_is_sent(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1")
    assert asyncio.run(pulled(parts, path)) == ["1"]
    assert [type(record) for _, record in parts.pull_log.records] == [StoredMessage, Claimed, Settled]


def test_expired_messages_are_not_delivered(parts: GatewayParts) -> None:
    path = create(parts)
    over = '<p:Publication xmlns:p="urn:arborcast:policy" ValidUntil="2020-01-01T00:00:00Z" Messages="{}"/>'
    messages = [soap.message(payload=f'<o:order xmlns:o="urn:o">{number}</o:order>') for number in range(1, 5)]
    assert parts.post(soap.envelope(soap.notify(*messages, over.format("1 3"))), path).status == 202
    assert [asyncio.run(pulled(parts, path, 1)) for _ in range(2)] == [["2"], ["4"]]
    assert parts.post(soap.envelope(soap.notify(messages[0], over.format("1"))), path).status == 202
    assert asyncio.run(pulled(parts, path)) == []
    assert (parts.pulls.expired, parts.pulls.delivered, parts.pull_log.store.ids()) == (3, 2, [])


def test_messages_of_a_failed_answer_are_returned(parts: GatewayParts) -> None:
    path = create(parts)

    async def broken(_: object) -> None:
        raise ConnectionResetError

    async def ignore(_: object) -> None:
        pass

    async def hang_up() -> None:
        await pull_by(parts, path, ignore, leaves=True)  # before a message arrives
        await parts.pulls.close()

    async def lose() -> None:
        with pytest.raises(ConnectionResetError):
            await pull_by(parts, path, broken, leaves=False)
        await parts.pulls.close()

    asyncio.run(hang_up())
    fill(parts, path, "1")
    assert parts.pull_log.store.waiting(path.rpartition("/")[2]) == 1
    asyncio.run(lose())
    assert isinstance(parts.pull_log.records[-1][1], Returned)
    assert payloads(parts.post(get(), path)) == ["1"]


async def answer_during(parts: GatewayParts, path: str, body: str) -> HttpAnswer:
    """The answer to a GetMessages that waits when this request arrives."""
    waiting = asyncio.create_task(parts.request("POST", path, get(attributes=f'xmlns:p="{PULL}" p:Wait="PT60S"')))
    while not parts.pulls.waiting_clients:
        await asyncio.sleep(0)
    await parts.request("POST", path, soap.envelope(body))
    return await asyncio.wait_for(waiting, 45)


def test_get_messages_waits_for_a_message_or_the_end(parts: GatewayParts) -> None:
    path = create(parts)
    late = soap.notify(soap.message(payload='<o:order xmlns:o="urn:o">late</o:order>'))
    assert payloads(asyncio.run(answer_during(parts, path, late))) == ["late"]
    assert parts.pulls.waiting_clients == 0
    other = create(parts)
    assert asyncio.run(answer_during(parts, other, "<wsnt:DestroyPullPoint/>")).fault == "ResourceUnknownFault"


def test_durations_and_maximum_of_a_wait() -> None:
    parts = GatewayParts(GatewaySettings(pull_max_wait_s=0.01, pull_wait_s=1_000))
    path = create(parts)
    assert payloads(parts.post(get(), path)) == []
    assert payloads(parts.post(get(attributes=f'xmlns:p="{PULL}" p:Wait="P1Y"'), path)) == []
    answer = parts.post(get(attributes=f'xmlns:p="{PULL}" p:Wait="10"'), path)
    assert answer.fault == "UnableToGetMessagesFault"
    assert "'10' is not a duration" in answer.reason


def test_a_claim_of_conflicting_messages_is_returned(parts: GatewayParts) -> None:
    """Another gateway returns its claim of the second message between the read and the claim of this gateway."""
    path = create(parts)
    point = path.rpartition("/")[2]
    for text, identifier in (("1", "x"), ("2", "x"), ("3", "y")):
        payload = f'<o:order xmlns:o="urn:o" xml:id="{identifier}">{text}</o:order>'
        assert parts.post(soap.envelope(soap.notify(soap.message(payload=payload))), path).status == 202

    async def pull() -> HttpAnswer:
        await parts.pull_log.commit([(point, Claimed("theirs", 1, 1, 1_800_000_000_000))])
        before = parts.pull_log.commit

        async def returned_first(records: Sequence[KeyedRecord]) -> int:
            if isinstance(records[0][1], Claimed):
                parts.pull_log.commit = before  # type: ignore[method-assign]
                await before([(point, Returned("theirs"))])
            return await before(records)

        parts.pull_log.commit = returned_first  # type: ignore[method-assign]
        answer = await parts.request("POST", path, get())
        await parts.pulls.close()
        return answer

    assert payloads(asyncio.run(pull())) == ["1"]
    assert payloads(parts.post(get(), path)) == ["2", "3"]


def test_nothing_is_lost_while_the_log_cannot_be_written(parts: GatewayParts) -> None:
    path = create(parts)
    fill(parts, path, "1")
    parts.pull_log.error = InfrastructureError("away", 2)
    assert parts.post(get(), path).status == 503
    assert parts.post(soap.envelope(soap.notify()), path).status == 503
    parts.pull_log.error = None
    assert payloads(parts.post(get(), path)) == ["1"]


async def parts_are_current() -> None:
    """The control log has been read to its end."""


def queues_of(
    parts: GatewayParts, exists: Callable[[str], bool], claim_s: float = 30, **clocks: Callable[[], float]
) -> PullQueues:
    log = parts.pull_log
    return PullQueues(log.store, log, exists, claim_s=claim_s, max_bytes=1_000, max_nodes=1_000, **clocks)


class SweepingGateway:
    """A gateway with the same log and its own clocks."""

    def __init__(self, parts: GatewayParts, claim_s: float = 30) -> None:
        self.wall, self.steady = 1_000_000.0, 0.0
        self._store = parts.pull_log.store
        self.queues = queues_of(parts, lambda _: True, claim_s, now=lambda: self.wall, steady=lambda: self.steady)

    async def open_claims(self, later: float = 0.0) -> list[str]:
        """The open claims after a sweep, this number of seconds later."""
        self.steady += later
        await self.queues.sweep(parts_are_current)
        return [claim for _, claim, _ in self._store.open_claims()]


def test_claims_do_not_depend_on_the_wall_clock(parts: GatewayParts) -> None:
    """Claims time out after they have been open for claim_s, whatever clock wrote them."""
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1", "2", "3")
    log = parts.pull_log

    async def steps() -> None:
        gateway = SweepingGateway(parts)
        assert await gateway.open_claims() == []
        offsets = [message.offset for message in log.store.head(identifier, 3, 1_000)]
        for name, offset, wrong_s in zip(("right", "ahead", "behind"), offsets, (0, 3_600, -3_600), strict=True):
            until_ms = round((gateway.wall + wrong_s + 30) * 1000)
            await log.commit([(identifier, Claimed(name, offset, offset, until_ms))])
        assert await gateway.open_claims() == ["right", "ahead", "behind"]
        gateway.wall += 3_600
        assert await gateway.open_claims(29) == ["right", "ahead", "behind"]
        gateway.wall -= 7_200
        # A new gateway has only the times in the claims, and returns those that are over.
        assert await SweepingGateway(parts).open_claims() == ["right", "ahead"]
        assert await gateway.open_claims(2) == []
        # A claim from before its start lasts no longer than others.
        started = SweepingGateway(parts)
        await log.commit([(identifier, Claimed("old", 0, 0, round((started.wall + 3_600) * 1000)))])
        assert (await started.open_claims(), await started.open_claims(31)) == (["old"], [])

    asyncio.run(steps())
    assert log.store.waiting(identifier) == 3


def test_a_claim_is_renewed_until_its_client_has_acknowledged_the_messages(parts: GatewayParts) -> None:
    """A consumer of the framed edge may take minutes for a message, and a worker may be missing for hours."""
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1", "2", "3")

    async def steps() -> None:
        gateway, other = SweepingGateway(parts), SweepingGateway(parts)
        first, second = [await gateway.queues.take(identifier, 1, 0) for _ in range(2)]
        both = await other.open_claims()
        for changed_s in (10, 10, 10, -3_600, 10, 10, 10):  # the clock is put back once
            gateway.wall += changed_s
            assert (await gateway.open_claims(10), await other.open_claims(10)) == (both, both)
        first.finish(True)
        await gateway.queues.close()
        assert await gateway.open_claims(10) == both[1:]
        second.end(())
        await gateway.queues.close()
        third = await gateway.queues.take(identifier, 1, 0)
        assert [each.offset for each in third.messages] == [each.offset for each in second.messages]
        # The gateway dies.
        assert len(await other.open_claims()) == 1
        assert (len(await other.open_claims(29)), await other.open_claims(2)) == (1, [])

    asyncio.run(steps())
    assert parts.pull_log.store.waiting(identifier) == 2


def test_with_the_shortest_pull_claim_s_a_live_gateway_keeps_its_claims(parts: GatewayParts) -> None:
    """A busy gateway has a sweep every other second, while others look for abandoned claims each second."""
    path = create(parts)
    fill(parts, path, "1")
    shortest = GatewaySettings.__dataclass_fields__["pull_claim_s"].metadata["setting"].minimum

    async def steps() -> None:
        gateway, other = SweepingGateway(parts, shortest), SweepingGateway(parts, shortest)
        await gateway.queues.take(path.rpartition("/")[2], 1, 0)
        for _ in range(10):
            assert [len(await other.open_claims(1)), len(await other.open_claims(1))] == [1, 1]
            gateway.wall += 2
            await gateway.open_claims(2)

    asyncio.run(steps())


def test_one_record_renews_all_claims_of_a_gateway(parts: GatewayParts) -> None:
    """A client that answers no message has a claim for each; the log and the sweeps of all gateways had them, too."""
    paths = [create(parts) for _ in range(3)]
    for path in paths:
        fill(parts, path, *map(str, range(10)))
    log = parts.pull_log

    async def steps() -> None:
        gateway, other = SweepingGateway(parts), SweepingGateway(parts)
        for path in paths:
            for _ in range(10):
                await gateway.queues.take(path.rpartition("/")[2], 1, 0)
        claimed = len(log.records)
        for _ in range(60):
            gateway.wall += 1
            assert len(await gateway.open_claims(1)) == len(await other.open_claims(1)) == 30
        assert {type(record) for _, record in log.records[claimed:]} == {Claimed}
        assert len(log.records) - claimed <= 7
        assert await other.open_claims(31) == []

    asyncio.run(steps())


def test_a_claim_without_a_client_is_returned_by_its_own_gateway(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1", "2")
    commit = parts.pull_log.commit

    async def left(records: Sequence[KeyedRecord]) -> int:
        await commit(records)
        raise asyncio.CancelledError

    async def steps() -> None:
        gateway = SweepingGateway(parts)
        await gateway.queues.take(identifier, 1, 0)
        with monkeypatch.context() as patch:
            patch.setattr(parts.pull_log, "commit", left)
            with pytest.raises(asyncio.CancelledError):
                await gateway.queues.take(identifier, 1, 0)
        answered, _ = await gateway.open_claims()
        assert [len(await gateway.open_claims(10)) for _ in range(2)] == [2, 2]
        assert await gateway.open_claims(10) == [answered]

    asyncio.run(steps())
    assert parts.pull_log.store.waiting(identifier) == 1


def test_messages_that_were_acknowledged_while_kafka_was_away_are_not_handed_out_again(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_queues, "_BACKOFF", Backoff(0.01, 0.01))
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1", "2")

    async def steps() -> None:
        gateway = SweepingGateway(parts)
        claimed = await gateway.queues.take(identifier, 1, 0)
        assert len(await gateway.open_claims()) == 1
        parts.pull_log.error = InfrastructureError("away")
        claimed.finish(True)
        for _ in range(10):
            await asyncio.sleep(0)  # for the first attempt
        assert len(await gateway.open_claims(60)) == 1
        parts.pull_log.error = None
        await gateway.open_claims()
        while gateway.queues._finishing:
            await asyncio.sleep(0.01)
        assert await gateway.open_claims(60) == []

    asyncio.run(steps())
    assert parts.pull_log.store.waiting(identifier) == 1
    assert [type(each) for _, each in parts.pull_log.records].count(Returned) == 0


def test_another_gateway_does_not_return_claims_that_kafka_kept_from_their_renewal(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_queues, "_BACKOFF", Backoff(0.01, 0.01))
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1")
    log = parts.pull_log

    async def steps() -> None:
        gateway, other = SweepingGateway(parts), SweepingGateway(parts)
        claimed = await gateway.queues.take(identifier, 1, 0)
        open_claims = await other.open_claims()
        log.error, log.failures = InfrastructureError("away"), 1
        claimed.finish(True)
        assert await gateway.open_claims(60) == open_claims
        log.error = None
        # The other gateway may be the first to reach Kafka again.
        assert await other.open_claims(60) == open_claims
        while gateway.queues._finishing:
            await asyncio.sleep(0.01)
        assert await other.open_claims() == []

        # A gateway that died during the outage leaves its claim.
        await log.commit([(identifier, StoredMessage(b"<a/>")), (identifier, Claimed("dead", 0, 9, until_ms=1))])
        assert (await other.open_claims(), await other.open_claims(31)) == (["dead"], [])

    asyncio.run(steps())
    assert [record.claim for _, record in log.records if isinstance(record, Returned)] == ["dead"]


def test_a_gateway_that_was_stopped_does_not_return_claims_whose_renewal_it_has_not_read(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_queues, "_SWEEP_S", 0)
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1")

    async def steps() -> None:
        gateway = SweepingGateway(parts)
        await parts.pull_log.commit([(identifier, Claimed("other", 0, 0, round((gateway.wall + 30) * 1000)))])
        sweeping = asyncio.create_task(gateway.queues.sweep_forever(parts_are_current, parts_are_current))

        async def are_open(later: float) -> bool:
            gateway.steady += later
            for _ in range(10):
                await asyncio.sleep(0)
            return any(parts.pull_log.store.open_claims())

        assert await are_open(1.0)
        assert [await are_open(later) for later in (60.0, 9.0, 9.0, 9.0, 9.0)] == [True, True, True, True, False]
        sweeping.cancel()

    asyncio.run(steps())


def test_the_claims_of_a_gateway_that_died_are_returned_together(
    parts: GatewayParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have thousands. One by one they would take so long that this gateway's own claims were not renewed."""
    commit, appends = parts.pull_log.commit, list[int]()

    async def counted(records: Sequence[KeyedRecord]) -> int:
        appends.append(len(records))
        return await commit(records)

    async def steps() -> list[str]:
        gateway = SweepingGateway(parts)
        await commit([("p", StoredMessage(b"<a/>")) for _ in range(100)])
        await commit([("p", Claimed(f"dead{number}", number, number, until_ms=1)) for number in range(100)])
        monkeypatch.setattr(parts.pull_log, "commit", counted)
        return await gateway.open_claims()

    assert (asyncio.run(steps()), appends) == ([], [100])


def test_abandoned_claims_are_returned_and_unknown_ids_removed(parts: GatewayParts) -> None:
    path = create(parts)
    identifier = path.rpartition("/")[2]
    fill(parts, path, "1")

    async def sweep() -> None:
        await parts.pull_log.commit([(identifier, Claimed("dead", 0, 0, until_ms=1))])
        await parts.pull_log.commit([("unknown", StoredMessage(b"<a/>"))])
        await parts.pulls.sweep(parts_are_current)
        assert parts.pull_log.store.ids() == [identifier]

    asyncio.run(sweep())
    assert payloads(parts.post(get(), path)) == ["1"]


@pytest.mark.parametrize("reads", [True, False])
def test_messages_before_the_record_of_their_pull_point_stay(parts: GatewayParts, reads: bool) -> None:
    """The control log may be read seconds after the log of messages, by all gateways."""
    known: set[str] = set()
    queues = queues_of(parts, known.__contains__)

    async def catch_up() -> None:
        if not reads:
            raise InfrastructureError("the control log has no leader")
        known.add("late")

    async def sweep() -> None:
        await parts.pull_log.commit([("late", StoredMessage(b"<a/>"))])
        for _ in range(3):
            await queues.sweep(catch_up)

    asyncio.run(sweep())
    assert parts.pull_log.store.ids() == ["late"]


def test_settled_records_are_kept_by_time_and_size() -> None:
    settled = SettledRecords(kept_s=100, kept_bytes=1_000)
    assert settled.end(0, 0, 10) == 0
    assert settled.end(60, 500, 20) == 0
    assert settled.end(100, 600, 30) == 10, "old enough"
    assert settled.end(110, 1_600, 40) == 30, "enough later bytes"
    assert settled.end(1_000, 1_600, 40) == 40
    assert settled.end(1_001, 1_600, 40) == 0


def test_a_view_counts_the_bytes_of_messages() -> None:
    view = PullView(KafkaSettings(), PullLimits(10, 1_000, 1_000), lambda _: None, lambda _: None)
    records: tuple[PullRecord, ...] = (StoredMessage(b"<a/>"), Claimed("c", 0, 0, 1), StoredMessage(b"<bc/>"))
    for offset, record in enumerate(records):
        view._fold(("p", record), offset)
    assert (view.read_bytes, view.store.waiting("p")) == (9, 1)


def test_a_start_counts_no_drops_of_earlier_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_queues, "time_ms", lambda: 10_000_000)
    view = PullView(KafkaSettings(), PullLimits(1, 1_000, 1_000), lambda _: None, lambda _: None)
    for offset, (accepted_ms, dropped) in enumerate([(1, 0), (2, 0), (6_399_999, 0), (6_400_000, 1)]):
        view._fold(("p", StoredMessage(b"<a/>", accepted_ms=accepted_ms)), offset)
        assert view.store.dropped == dropped
    view._replaying = False
    view._fold(("p", StoredMessage(b"<a/>", accepted_ms=3)), 4)
    assert view.store.dropped == 2, "it waited for days"


def test_a_sweep_checks_a_bounded_number_of_pull_points(parts: GatewayParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_queues, "_CHECKED", 2)

    async def sweeps() -> list[int]:
        for number in range(5):
            await parts.pull_log.commit([(f"unknown{number}", StoredMessage(b"<a/>"))])
        left = []
        for _ in range(3):
            await parts.pulls.sweep(parts_are_current)
            left.append(len(parts.pull_log.store.ids()))
        return left

    assert asyncio.run(sweeps()) == [3, 1, 0]
