"""Queues in the redelivery: the choice of servers, and the results of answers."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import msgspec
import pytest
from lxml import etree

from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.queues.faults import QueueUsers
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import ANSWER, ServedRequest, State, may_answer
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_transport import FakeTransport
from tests.support.make import notification, subscription
from tests.support.redelivery_world import BROKEN, DAY_MS, HOUR_MS, LATER, OK, REFUSED, FakeEndpoint, World, retry
from tests.support.sealed import VAULT

LANE = "queue:q"
CALLBACK_MS = int(PushSettings().callback_s * 1000)
INVALID = PushResult(422)
FAULT = PushResult(
    500,
    response=b'<s:Envelope xmlns:s="s" xmlns:q="urn:arborcast:queue"><s:Body><s:Fault><s:Code><s:Value>s:Receiver'
    b"</s:Value><s:Subcode><s:Value>q:Invalid</s:Value></s:Subcode></s:Code>",
)
# No breaker opens.
PATIENT = retry(breaker_failures=1_000)


def served_by(*names: str, **settings: Any) -> World:
    world = World(**settings)
    for name in names:
        world.serve(name)
    return world


def sent(world: World) -> list[tuple[str, str, int]]:
    """Server, first request and retransmission number of each push."""
    return [(each.subscription, each.notifications[0], each.sequence) for each in world.arrivals]


def states(world: World) -> Counter[str]:
    return Counter(world.states().values())


def test_the_server_with_the_longest_idle_time_is_next() -> None:
    world = served_by("s1", "s2", "s3")
    world.ask_some(7)
    world.run(1_000)
    assert sent(world) == [(f"s{number % 3 + 1}", f"r{number}", 0) for number in range(7)]
    assert world.states() == {(LANE, f"r{number}"): "delivered" for number in range(7)}
    assert (world.log, world.store.count) == ({}, 0)


def test_five_numbered_retransmissions_to_the_same_server() -> None:
    world = served_by("s1", "s2", retry=PATIENT)
    world.answers("s1", BROKEN)
    world.ask("r")
    world.run(DAY_MS // 2)
    assert sent(world) == [("s1", "r", number) for number in range(6)]
    assert [each.attempt for each in world.arrivals] == [1, 2, 3, 4, 5, 6]
    (letter,) = world.buried
    assert (letter.subscription, letter.endpoint, letter.state, letter.number) == (LANE, "http://s1/", "dead", 6)
    assert world.log == {}


def test_requests_of_a_sick_server_go_to_others() -> None:
    world = served_by("s2")
    world.serve("s1", capacity=3)
    world.answers("s1", REFUSED)
    world.ask_some(8)
    world.run(1_000)
    assert states(world) == {"delivered": 8}
    assert world.health.get("http://s1/").breaker == "open"
    again = [each for each in world.arrivals if each.subscription == "s2" and each.attempt > 1]
    assert again
    assert all(each.sequence for each in again)


def test_a_server_that_leaves() -> None:
    world = served_by("s1")
    world.answers("s1", BROKEN)
    world.ask("failed")
    world.run(100)
    world.serve("s2", takes_ms=1_000)
    world.end("s1")
    world.run(100)
    assert sent(world)[1:] == [("s2", "failed", 1)]
    # A push in flight counts.
    world.end("s2")
    world.run(2_000)
    assert world.states() == {(LANE, "failed"): "delivered"}


@pytest.mark.parametrize("answer", [INVALID, FAULT, PushResult(404), PushResult(410)])
def test_a_request_that_one_server_refuses_goes_to_another(answer: PushResult) -> None:
    world = served_by("s1", "s2", "s3")
    world.answers("s1", answer)
    world.ask_some(9)
    world.run(1_000)
    assert (states(world), world.buried) == ({"delivered": 9}, [])
    assert world.now_ms - world.arrivals[-1].at_ms > 900, "without a wait"
    is_gone = answer.status == 410
    assert world.gone_said == ["s1"] * is_gone
    assert (len(world.arrived("s1")) == 1) == is_gone


def test_a_request_that_all_servers_refuse_is_a_dead_letter() -> None:
    world = served_by("s1", "s2")
    for name in ("s1", "s2"):
        world.answers(name, lambda ids: INVALID if "bad" in ids[0] else OK)
    world.ask_some(0, "bad", "good")
    world.run(1_000)
    assert world.states() == {(LANE, "bad"): "dead", (LANE, "good"): "delivered"}
    assert [(letter.error, letter.status) for letter in world.buried] == [("invalid", 422)]
    assert sorted(world.arrived("s1") + world.arrived("s2")) == ["bad", "bad", "good"]
    # Also when the last server leaves that has not refused it.
    world.answers("s1", INVALID)
    world.answers("s2", OK, takes_ms=10_000)
    world.ask_some(0, "bad too", "other")
    world.run(100)
    assert world.states()[LANE, "bad too"] == "parked"
    world.end("s2")
    world.run(100)
    assert world.states()[LANE, "bad too"] == "dead"


def test_requests_in_flight_at_a_crash_are_numbered_repetitions() -> None:
    world = World()
    world.serve("s", takes_ms=1_000)
    world.ask_some(2)
    world.run(100)
    world.restart()
    world.ask("r2")
    world.run(HOUR_MS)
    assert sent(world) == [("s", "r0", 0), ("s", "r0", 1), ("s", "r1", 1), ("s", "r2", 0)]
    assert states(world) == {"delivered": 3}


def test_a_suspended_server_gets_no_requests() -> None:
    world = served_by("s1", "s2")
    world.suspended_now.add("s1")
    world.hear()
    world.ask_some(2)
    world.run(1_000)
    assert world.arrived("s2") == ["r0", "r1"]
    world.resume("s1")
    world.ask_some(0, "r2", "r3")
    world.run(1_000)
    assert (world.arrived("s2")[2:], world.arrived("s1")) == (["r2"], ["r3"])
    assert world.too_much == []


def test_all_subscriptions_of_a_server_s_endpoint_are_suspended() -> None:
    world = served_by("s", retry=retry(suspend_after_s=3_600.0))
    world.subscribe("other", endpoint="s")
    world.answers("s", REFUSED)
    world.ask("r")
    world.park("other", "n")
    world.run(2 * HOUR_MS)
    assert set(world.suspended_said) == {"s", "other"}


def test_tried_requests_are_due_after_the_clock_is_set_back() -> None:
    world = served_by("s")
    world.answers("s", lambda _: BROKEN if len(world.arrivals) == 1 else OK)
    world.ask("r")
    world.run(100)
    world.set_clock(-DAY_MS)
    world.run(100)
    assert world.arrived("s") == ["r", "r"]


def test_a_fault_for_each_request_without_an_answer() -> None:
    world = served_by("s", retry=PATIENT)
    answers = {"bad": INVALID, "silent": BROKEN}
    world.answers("s", lambda ids: answers.get(ids[0], OK))
    for name in ("good", "bad", "silent"):
        world.ask(name, reply_to=f"http://user/{name}")
    world.run(DAY_MS // 2)
    world.end("s")
    world.ask("late", reply_to="http://user/late")
    world.ask("without an address")
    world.run(2 * DAY_MS)
    assert [url for url, _ in world.faults] == [f"http://user/{name}" for name in ("bad", "silent", "late")]
    for (_, body), code in zip(world.faults, ("Invalid", "Unanswered", "Expired"), strict=True):
        assert f"<faultcode>q:{code}</faultcode>" in body
    assert "<wsa:RelatesTo>urn:late</wsa:RelatesTo>" in world.faults[-1][1]


def test_faults_for_pull_points_of_this_broker_are_stored() -> None:
    """The gateway would require credentials."""
    world = served_by("s")
    world.answers("s", INVALID)
    world.ask("bad", reply_to="http://gateway/wsn/pullpoints/p1", reply_point="p1")
    world.run(10_000)
    ((point, element),) = world.faults
    assert point == "p1"
    root = etree.fromstring(element)
    assert root.findtext(".//{*}ProducerReference/{*}ReferenceParameters/{*}RelatesTo") == "urn:bad"
    assert root.findtext(".//{*}Message/{*}Fault/faultcode") == "q:Invalid"
    assert world.states() == {(LANE, "bad"): "dead"}


def test_faults_in_flight_are_bounded() -> None:
    world = World()
    world.ask_some(600, reply_to="http://user/")
    world.run(2 * DAY_MS)
    assert (len(world.faults), world.log) == (600, {})
    assert world.most_in_flight <= 32


def test_an_unreachable_user_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    transport = FakeTransport(lambda _: REFUSED)
    users = QueueUsers(transport, cast(Any, None))
    row = Attempt("n", LANE, TopicPath("q"), "", 0, "", "expired", 1, 2, 0.0)
    for name in ("away", "away", "off"):
        users.unanswered(notification(reply_to=EndpointReference(f"http://{name}/")), row)
        transport.drive(0.0)
    assert [vars(each)["endpoint"] for each in caplog.records] == ["http://away/", "http://off/"]


def test_the_reply_address_is_for_servers_only() -> None:
    reply_to = EndpointReference("http://u/?a=1&b=2", ("<who xmlns='urn:u'>me</who>",))
    request = notification(message_id="urn:1", queue=True, reply_to=reply_to)
    entry = (
        b'<ac:Request id="n1"><wsa:MessageID>urn:1</wsa:MessageID><wsa:ReplyTo>'
        b"<wsa:Address>http://u/?a=1&amp;b=2</wsa:Address><wsa:ReferenceParameters><who xmlns='urn:u'>me</who>"
        b"</wsa:ReferenceParameters></wsa:ReplyTo></ac:Request>"
    )
    assert entry in Envelope(subscription(queue=1)).request([request], 1).body
    assert b"Request" not in Envelope(subscription()).request([request], 1).body


def test_permission_of_a_server_to_answer_to_a_pull_point() -> None:
    """Per request, until a minute after the end of its lifespan: the push may be made at the last moment."""
    point = EndpointReference("http://gateway/wsn/pullpoints/p1")

    def made(number: int, reply_point: str = "p1", valid_until_ms: int = 0) -> Notification:
        facts: dict[str, Any] = {"message_id": f"urn:{number}", "reply_to": point, "reply_point": reply_point}
        return notification(f"n{number}", accepted_ms=1_000, valid_until_ms=valid_until_ms, **facts)

    def body(server: Subscription, now_s: float = 2.0) -> bytes:
        together = [made(0), made(1, valid_until_ms=5_000), made(2, reply_point="")]
        return Envelope(server, VAULT, lifespan_s=20.0).request(together, 1, now_s).body

    server = subscription(queue=1, owner="bert")
    entries = etree.fromstring(body(server)).iter("{*}Request")
    marks = [entry.findtext(f".//{{*}}ReferenceParameters/{ANSWER}") for entry in entries]
    for number, until_ms in enumerate((81_000, 65_000)):
        mark, request = marks[number], ServedRequest("p1", f"urn:{number}", "bert")
        assert mark is not None
        assert may_answer(mark, request, until_ms, VAULT.keys)
        assert not may_answer(mark, request, until_ms + 1, VAULT.keys)
    assert marks[2] is None, "other addresses need no permission"
    assert b">90000." in body(server, 30.0), "also for a later repetition"
    assert b"Answer" not in body(msgspec.structs.replace(server, owner=""))
    assert b"Answer" not in body(msgspec.structs.replace(server, queue=0))


def test_equal_requests_are_executed_once_at_the_first_position() -> None:
    world = World()
    world.serve("s", takes_ms=100)
    world.ask("busy", merge=b"e")
    world.run(50)
    for number in range(50):
        world.ask(f"r{number}", merge=b"e" if number % 2 else b"f", reply_to=f"http://user/{number}")
    world.ask("other")
    world.run(HOUR_MS)
    assert [len(each.notifications) for each in world.arrivals] == [1, 25, 25, 1], (
        "a request in execution is not merged"
    )
    assert [request for _, request, _ in sent(world)] == ["busy", "r0", "r1", "other"]
    rows = [row.state for row in world.attempts if row.error == "merged"]
    assert rows == ["delivered"] * 48
    assert (states(world), world.faults, world.log) == ({"delivered": 52}, [], {})


def test_merged_requests_are_bounded_by_the_size_of_a_push() -> None:
    world = World()
    world.serve("s", takes_ms=100)
    world.ask("busy", merge=b"e")
    world.run(50)
    for number in range(33):
        world.ask(f"r{number}", merge=b"e", reply_to=f"http://user/{number}?{'q' * 16_000}")
    world.run(HOUR_MS)
    assert [len(each.notifications) for each in world.arrivals] == [1, 16, 16, 1]
    assert states(world) == {"delivered": 34}


def test_merged_requests_are_repeated_and_end_together() -> None:
    world = served_by("s", retry=PATIENT)
    world.answers("s", BROKEN)
    for number in range(3):
        world.ask(f"r{number}", merge=b"e", reply_to=f"http://user/{number}")
    world.run(1_000)
    world.ask("later", merge=b"e")
    world.run(DAY_MS // 2)
    together = [(each.notifications, each.sequence) for each in world.arrivals if "r0" in each.notifications]
    assert together == [(("r0", "r1", "r2"), number) for number in range(6)]
    assert (states(world), len(world.faults)) == ({"dead": 4}, 3)


def test_one_of_equal_requests_expires_alone() -> None:
    world = served_by("s")
    world.answers("s", lambda _: BROKEN if len(world.arrivals) == 1 else OK)
    world.ask("short", merge=b"e", valid_until_ms=world.now_ms + 3_000)
    world.ask("long", merge=b"e")
    world.run(100)
    world.end("s")
    world.run(10_000)
    world.serve("s")
    world.hear()
    world.run(1_000)
    assert world.states() == {(LANE, "short"): "expired", (LANE, "long"): "delivered"}


def test_pushes_of_queues_are_bounded_in_bytes() -> None:
    world = World()
    for number in range(6):
        world.serve(f"s{number}", takes_ms=1_000)
        world.ask(f"r{number}", payload=b"x" * 10 * 1024 * 1024)
    world.run(500)
    assert len(world.arrivals) == 4, "half of 64 MiB, plus the request that exceeds it"
    world.run(HOUR_MS)
    assert world.store.count == 0


def test_servers_and_subscriptions_share_an_endpoint_s_limit() -> None:
    world = World(push=PushSettings(max_in_flight_per_endpoint=2))
    world.serve("s", capacity=8, takes_ms=100)
    world.subscribe("other", endpoint="s")
    for number in range(6):
        world.ask(f"r{number}")
        world.park("other", f"n{number}", Tries(1, 1, world.now_ms))
    world.run(DAY_MS)
    assert (world.most_at, world.store.count) == ({"http://s/": 2}, 0)


def test_the_slot_of_a_server_that_unsubscribes_is_passed_on() -> None:
    world = World(push=PushSettings(max_in_flight_per_endpoint=1))
    world.serve("a", queue="qa")
    other = world.serve("b", queue="qb")
    world.subscriptions["b"] = msgspec.structs.replace(other, consumer=world.subscriptions["a"].consumer)

    def unsubscribes(_: tuple[str, ...]) -> PushResult:
        del world.subscriptions["b"]
        world.redelivery.subscription_changed("b")
        return OK

    world.endpoints["http://a/"] = FakeEndpoint(unsubscribes, takes_ms=10_000)
    world.ask("ra", queue="qa")
    world.run(1)
    world.ask("rb", queue="qb", valid_until_ms=world.now_ms + 5_000)
    world.run(8_000)
    assert world.states()["queue:qb", "rb"] == "expired"
    world.run(HOUR_MS)
    assert world.states()["queue:qa", "ra"] == "delivered"


def test_the_cost_of_a_turn_with_a_thousand_idle_servers() -> None:
    world = served_by(*(f"s{number}" for number in range(1_000)))
    world.answers("s0", BROKEN)
    world.ask("refused")
    world.run(1_000)
    world.ask("again")
    queries, ask = 0, world.store.query

    def counted(query: str, *values: object) -> list[tuple[Any, ...]]:
        nonlocal queries
        queries += 1
        return ask(query, *values)

    world.store.query = counted  # type: ignore[method-assign]
    world.run(1_000)
    assert world.states()[LANE, "again"] == "delivered"
    assert queries < 60
    world.run(HOUR_MS)
    assert {each.subscription for each in world.arrivals if "refused" in each.notifications} == {"s0"}


def test_figures_of_a_queue() -> None:
    world = World()
    world.serve("busy", takes_ms=1_000)
    world.serve("full", capacity=2, takes_ms=1_000)
    world.serve("sick")
    world.fall("sick")
    begun_ms = world.now_ms
    for number in range(5):
        world.ask(f"r{number}", merge=b"e" if number > 2 else b"")
    world.run(100)
    (figures,) = world.redelivery.statistics().queues
    assert figures._replace(busy=tuple(sorted(figures.busy))) == (
        TopicPath("q"),
        *(2, 3, begun_ms, 0, 1),
        (("busy", begun_ms), ("full", begun_ms)),
    )
    world.run(5_000)
    (figures,) = world.redelivery.statistics().queues
    assert (figures.waiting, figures.executing, figures.oldest_ms, figures.busy) == (0, 0, 0, ())
    assert figures.idle + figures.sick == 3


def test_servers_found_during_the_start_of_a_session_are_used() -> None:
    """They change no more: the parked log may be read before the control log."""
    world = World()
    world.ask("r")
    world.restart()
    world.serve("s")
    world.run(100)
    assert world.arrived("s") == ["r"]


def test_a_server_that_reports_later_is_busy_until_its_result() -> None:
    world = served_by("s")
    world.answers("s", LATER)
    world.ask_some(2)
    world.run(60_000)
    assert world.arrived("s") == ["r0"]
    (figures,) = world.redelivery.statistics().queues
    assert (figures.waiting, figures.executing, figures.idle) == (1, 1, 0)
    assert [server for server, _ in figures.busy] == ["s"]

    for number in range(2):
        world.report(world.arrivals[number], "delivered")
        world.run(1_000)
        assert world.arrived("s") == ["r0", "r1"]
    rows = [(row.state, row.error, row.number, bool(row.push)) for row in world.attempts if row.notification == "r0"]
    assert rows == [("parked", "later", 1, True), ("delivered", "", 1, False)]
    assert (world.log, world.redelivery.statistics().queues[0].executing) == ({}, 0)


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize(
    ("event", "state", "servers"),
    [
        ("", "delivered", ["s"]),
        ("", "refused", ["s", "other"]),
        ("", "failed", ["s", "s"]),
        ("", None, ["s", "s"]),
        ("clock set back", None, ["s", "s"]),
        ("restart", "delivered", ["s"]),
        ("restart", None, ["s", "other"]),
        ("leaves", "delivered", ["s"]),
        ("leaves", None, ["s", "other"]),
    ],
)
def test_later_and_missing_results(event: str, state: State | None, servers: list[str], capacity: int) -> None:
    world = World()
    world.serve("s", capacity=capacity)
    world.answers("s", LATER)
    world.ask("a")
    world.run(1_000)
    world.answers("s", OK)
    world.serve("other")
    world.hear()
    if event == "clock set back":
        world.set_clock(-DAY_MS)
    elif event == "restart":
        world.restart()
    elif event == "leaves":
        world.end("s")
    world.run(CALLBACK_MS - 2_000)
    assert sent(world) == [("s", "a", 0)], "the result is awaited"
    if state:
        world.report(world.arrivals[0], state)
    world.run(60_000)
    assert sent(world) == [(name, "a", number) for number, name in enumerate(servers)]
    assert (world.states()[LANE, "a"], world.log) == ("delivered", {})
