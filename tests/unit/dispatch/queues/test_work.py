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
from tests.support.redelivery_setup import BROKEN, DAY_MS, HOUR_MS, LATER, OK, REFUSED, FakeEndpoint, Setup, retry
from tests.support.sealed import SECRET_OPENER

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


def served_by(*names: str, takes_ms: int = 10, **settings: Any) -> Setup:
    setup = Setup(**settings)
    for name in names:
        setup.serve(name, takes_ms=takes_ms)
    return setup


def busy() -> Setup:
    """A server executes the request `busy`, which merges with others."""
    setup = served_by("s", takes_ms=100)
    setup.park_request("busy", merge=b"e")
    setup.run(50)
    return setup


def sent(setup: Setup) -> list[tuple[str, str, int]]:
    """Server, first request and retransmission number of each push."""
    return [(each.subscription, each.notifications[0], each.sequence) for each in setup.arrivals]


def states(setup: Setup) -> Counter[str]:
    return Counter(setup.states().values())


def test_the_server_with_the_longest_idle_time_is_next() -> None:
    setup = served_by("s1", "s2", "s3")
    setup.park_requests(7)
    setup.run(1_000)
    assert sent(setup) == [(f"s{number % 3 + 1}", f"r{number}", 0) for number in range(7)]
    assert setup.states() == {(LANE, f"r{number}"): "delivered" for number in range(7)}
    assert (setup.log, setup.store.count) == ({}, 0)


def test_five_numbered_retransmissions_to_the_same_server() -> None:
    setup = served_by("s1", "s2", retry=PATIENT)
    setup.answers("s1", BROKEN)
    setup.park_request("r")
    setup.run(DAY_MS // 2)
    assert sent(setup) == [("s1", "r", number) for number in range(6)]
    assert [each.attempt for each in setup.arrivals] == [1, 2, 3, 4, 5, 6]
    (letter,) = setup.buried
    assert (letter.subscription, letter.endpoint, letter.state, letter.number) == (LANE, "http://s1/", "dead", 6)
    assert setup.log == {}


def test_requests_of_a_sick_server_go_to_others() -> None:
    setup = served_by("s2")
    setup.serve("s1", capacity=3)
    setup.answers("s1", REFUSED)
    setup.park_requests(8)
    setup.run(1_000)
    assert states(setup) == {"delivered": 8}
    assert setup.health.get("http://s1/").breaker == "open"
    again = [each for each in setup.arrivals if each.subscription == "s2" and each.attempt > 1]
    assert again
    assert all(each.sequence for each in again)


def test_a_server_that_leaves() -> None:
    setup = served_by("s1")
    setup.answers("s1", BROKEN)
    setup.park_request("failed")
    setup.run(100)
    setup.serve("s2", takes_ms=1_000)
    setup.end("s1")
    setup.run(100)
    assert sent(setup)[1:] == [("s2", "failed", 1)]
    # A push in flight counts.
    setup.end("s2")
    setup.run(2_000)
    assert setup.states() == {(LANE, "failed"): "delivered"}


@pytest.mark.parametrize("answer", [INVALID, FAULT, PushResult(404), PushResult(410)])
def test_a_request_that_one_server_refuses_goes_to_another(answer: PushResult) -> None:
    setup = served_by("s1", "s2", "s3")
    setup.answers("s1", answer)
    setup.park_requests(9)
    setup.run(1_000)
    assert (states(setup), setup.buried) == ({"delivered": 9}, [])
    assert setup.now_ms - setup.arrivals[-1].at_ms > 900, "without a wait"
    is_gone = answer.status == 410
    assert setup.gone_reported == ["s1"] * is_gone
    assert (len(setup.arrived("s1")) == 1) == is_gone
    repeated = [number for server, name, number in sent(setup) if server != "s1" and name in setup.arrived("s1")]
    assert repeated
    assert all(repeated), "the next server can detect that the request may have been executed"


def test_a_request_that_all_servers_refuse_is_a_dead_letter() -> None:
    setup = served_by("s1", "s2")
    for name in ("s1", "s2"):
        setup.answers(name, lambda ids: INVALID if "bad" in ids[0] else OK)
    setup.park_requests(0, "bad", "good")
    setup.run(1_000)
    assert setup.states() == {(LANE, "bad"): "dead", (LANE, "good"): "delivered"}
    assert [(letter.error, letter.status) for letter in setup.buried] == [("invalid", 422)]
    assert sorted(setup.arrived("s1") + setup.arrived("s2")) == ["bad", "bad", "good"]
    # Also when the last server leaves that has not refused it.
    setup.answers("s1", INVALID)
    setup.answers("s2", OK, takes_ms=10_000)
    setup.park_requests(0, "bad too", "other")
    setup.run(100)
    assert setup.states()[LANE, "bad too"] == "parked"
    setup.end("s2")
    setup.run(100)
    assert setup.states()[LANE, "bad too"] == "dead"


def test_requests_in_flight_at_a_crash_are_numbered_repetitions() -> None:
    setup = served_by("s", takes_ms=1_000)
    setup.park_requests(2)
    setup.run(100)
    setup.restart()
    setup.park_request("r2")
    setup.run(HOUR_MS)
    assert sent(setup) == [("s", "r0", 0), ("s", "r0", 1), ("s", "r1", 1), ("s", "r2", 0)]
    assert states(setup) == {"delivered": 3}


def test_a_suspended_server_gets_no_requests() -> None:
    setup = served_by("s1", "s2")
    setup.suspended_now.add("s1")
    setup.read_changes()
    setup.park_requests(2)
    setup.run(1_000)
    assert setup.arrived("s2") == ["r0", "r1"]
    setup.resume("s1")
    setup.park_requests(0, "r2", "r3")
    setup.run(1_000)
    assert (setup.arrived("s2")[2:], setup.arrived("s1")) == (["r2"], ["r3"])
    assert setup.too_much == []


def test_all_subscriptions_of_a_server_s_endpoint_are_suspended() -> None:
    setup = served_by("s", retry=retry(suspend_after_s=3_600.0))
    setup.subscribe("other", endpoint="s")
    setup.answers("s", REFUSED)
    setup.park_request("r")
    setup.park("other", "n")
    setup.run(2 * HOUR_MS)
    assert set(setup.suspended_reported) == {"s", "other"}


def test_tried_requests_are_due_after_the_clock_is_set_back() -> None:
    setup = served_by("s")
    setup.answers("s", lambda _: BROKEN if len(setup.arrivals) == 1 else OK)
    setup.park_request("r")
    setup.run(100)
    setup.set_clock(-DAY_MS)
    setup.run(100)
    assert setup.arrived("s") == ["r", "r"]


def test_a_fault_for_each_request_without_an_answer() -> None:
    setup = served_by("s", retry=PATIENT)
    answers = {"bad": INVALID, "silent": BROKEN}
    setup.answers("s", lambda ids: answers.get(ids[0], OK))
    for name in ("good", "bad", "silent"):
        setup.park_request(name, reply_to=f"http://user/{name}")
    setup.run(DAY_MS // 2)
    setup.end("s")
    setup.park_request("late", reply_to="http://user/late")
    setup.park_request("without an address")
    setup.run(2 * DAY_MS)
    assert [url for url, _ in setup.faults] == [f"http://user/{name}" for name in ("bad", "silent", "late")]
    for (_, body), code in zip(setup.faults, ("Invalid", "Unanswered", "Expired"), strict=True):
        assert f"<faultcode>q:{code}</faultcode>" in body
    assert "<wsa:RelatesTo>urn:late</wsa:RelatesTo>" in setup.faults[-1][1]


def test_faults_for_pull_points_of_this_broker_are_stored() -> None:
    """The gateway would require credentials."""
    setup = served_by("s")
    setup.answers("s", INVALID)
    setup.park_request("bad", reply_to="http://gateway/wsn/pullpoints/p1", reply_point="p1")
    setup.run(10_000)
    ((point, element),) = setup.faults
    assert point == "p1"
    root = etree.fromstring(element)
    assert root.findtext(".//{*}ProducerReference/{*}ReferenceParameters/{*}RelatesTo") == "urn:bad"
    assert root.findtext(".//{*}Message/{*}Fault/faultcode") == "q:Invalid"
    assert setup.states() == {(LANE, "bad"): "dead"}


def test_faults_in_flight_are_bounded() -> None:
    setup = Setup()
    setup.park_requests(600, reply_to="http://user/")
    setup.run(2 * DAY_MS)
    assert (len(setup.faults), setup.log) == (600, {})
    assert setup.most_in_flight <= 32


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
        return Envelope(server, SECRET_OPENER, lifespan_s=20.0).request(together, 1, now_s).body

    server = subscription(queue=1, owner="bert")
    entries = etree.fromstring(body(server)).iter("{*}Request")
    marks = [entry.findtext(f".//{{*}}ReferenceParameters/{ANSWER}") for entry in entries]
    for number, until_ms in enumerate((81_000, 65_000)):
        mark, request = marks[number], ServedRequest("p1", f"urn:{number}", "bert")
        assert mark is not None
        assert may_answer(mark, request, until_ms, SECRET_OPENER.keys)
        assert not may_answer(mark, request, until_ms + 1, SECRET_OPENER.keys)
    assert marks[2] is None, "other addresses need no permission"
    assert b">90000." in body(server, 30.0), "also for a later repetition"
    assert b"Answer" not in body(msgspec.structs.replace(server, owner=""))
    assert b"Answer" not in body(msgspec.structs.replace(server, queue=0))


def test_equal_requests_are_executed_once_at_the_first_position() -> None:
    setup = busy()
    for number in range(50):
        setup.park_request(f"r{number}", merge=b"e" if number % 2 else b"f", reply_to=f"http://user/{number}")
    setup.park_request("other")
    setup.run(HOUR_MS)
    assert [len(each.notifications) for each in setup.arrivals] == [1, 25, 25, 1], "one in execution is not merged"
    assert [request for _, request, _ in sent(setup)] == ["busy", "r0", "r1", "other"]
    rows = [row.state for row in setup.attempts if row.error == "merged"]
    assert rows == ["delivered"] * 48
    assert (states(setup), setup.faults, setup.log) == ({"delivered": 52}, [], {})


def test_merged_requests_are_bounded_by_the_size_of_a_push() -> None:
    setup = busy()
    for number in range(33):
        setup.park_request(f"r{number}", merge=b"e", reply_to=f"http://user/{number}?{'q' * 16_000}")
    setup.run(HOUR_MS)
    assert [len(each.notifications) for each in setup.arrivals] == [1, 16, 16, 1]
    assert states(setup) == {"delivered": 34}


def test_merged_requests_are_repeated_and_end_together() -> None:
    setup = served_by("s", retry=PATIENT)
    setup.answers("s", BROKEN)
    for number in range(3):
        setup.park_request(f"r{number}", merge=b"e", reply_to=f"http://user/{number}")
    setup.run(1_000)
    setup.park_request("later", merge=b"e")
    setup.run(DAY_MS // 2)
    together = [(each.notifications, each.sequence) for each in setup.arrivals if "r0" in each.notifications]
    assert together == [(("r0", "r1", "r2"), number) for number in range(6)]
    assert (states(setup), len(setup.faults)) == ({"dead": 4}, 3)


def test_one_of_equal_requests_expires_alone() -> None:
    setup = served_by("s")
    setup.answers("s", lambda _: BROKEN if len(setup.arrivals) == 1 else OK)
    setup.park_request("short", merge=b"e", valid_until_ms=setup.now_ms + 3_000)
    setup.park_request("long", merge=b"e")
    setup.run(100)
    setup.end("s")
    setup.run(10_000)
    setup.serve("s")
    setup.read_changes()
    setup.run(1_000)
    assert setup.states() == {(LANE, "short"): "expired", (LANE, "long"): "delivered"}


def test_pushes_of_queues_are_bounded_in_bytes() -> None:
    setup = served_by(*(f"s{number}" for number in range(6)), takes_ms=1_000)
    setup.park_requests(6, payload=b"x" * 10 * 1024 * 1024)
    setup.run(500)
    assert len(setup.arrivals) == 4, "half of 64 MiB, plus the request that exceeds it"
    setup.run(HOUR_MS)
    assert setup.store.count == 0


def test_servers_and_subscriptions_share_an_endpoint_s_limit() -> None:
    setup = Setup(push=PushSettings(max_in_flight_per_endpoint=2))
    setup.serve("s", capacity=8, takes_ms=100)
    setup.subscribe("other", endpoint="s")
    for number in range(6):
        setup.park_request(f"r{number}")
        setup.park("other", f"n{number}", Tries(1, 1, setup.now_ms))
    setup.run(DAY_MS)
    assert (setup.most_at, setup.store.count) == ({"http://s/": 2}, 0)


def test_the_slot_of_a_server_that_unsubscribes_is_passed_on() -> None:
    setup = Setup(push=PushSettings(max_in_flight_per_endpoint=1))
    setup.serve("a", queue="qa")
    other = setup.serve("b", queue="qb")
    setup.subscriptions["b"] = msgspec.structs.replace(other, consumer=setup.subscriptions["a"].consumer)

    def unsubscribes(_: tuple[str, ...]) -> PushResult:
        del setup.subscriptions["b"]
        setup.redelivery.subscription_changed("b")
        return OK

    setup.endpoints["http://a/"] = FakeEndpoint(unsubscribes, takes_ms=10_000)
    setup.park_request("ra", queue="qa")
    setup.run(1)
    setup.park_request("rb", queue="qb", valid_until_ms=setup.now_ms + 5_000)
    setup.run(8_000)
    assert setup.states()["queue:qb", "rb"] == "expired"
    setup.run(HOUR_MS)
    assert setup.states()["queue:qa", "ra"] == "delivered"


def test_the_cost_of_a_turn_with_a_thousand_idle_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = served_by(*(f"s{number}" for number in range(1_000)))
    setup.answers("s0", BROKEN)
    setup.park_request("refused")
    setup.run(1_000)
    setup.park_request("again")
    queries, query_store = 0, setup.store.query

    def counted(query: str, *values: object) -> list[tuple[Any, ...]]:
        nonlocal queries
        queries += 1
        return query_store(query, *values)

    monkeypatch.setattr(setup.store, "query", counted)
    setup.run(1_000)
    assert setup.states()[LANE, "again"] == "delivered"
    assert queries < 60
    setup.run(HOUR_MS)
    assert {each.subscription for each in setup.arrivals if "refused" in each.notifications} == {"s0"}


def test_figures_of_a_queue() -> None:
    setup = served_by("busy", "sick", takes_ms=1_000)
    setup.serve("full", capacity=2, takes_ms=1_000)
    setup.open_breaker("sick")
    begun_ms = setup.now_ms
    for number in range(5):
        setup.park_request(f"r{number}", merge=b"e" if number > 2 else b"")
    setup.run(100)
    (figures,) = setup.redelivery.statistics().queues
    assert figures._replace(busy=tuple(sorted(figures.busy))) == (
        TopicPath("q"),
        *(2, 3, begun_ms, 0, 1),
        (("busy", begun_ms), ("full", begun_ms)),
    )
    setup.run(5_000)
    (figures,) = setup.redelivery.statistics().queues
    assert (figures.waiting, figures.executing, figures.oldest_ms, figures.busy) == (0, 0, 0, ())
    assert figures.idle + figures.sick == 3


def test_servers_found_during_the_start_of_a_session_are_used() -> None:
    """They change no more: the parked log may be read before the control log."""
    setup = Setup()
    setup.park_request("r")
    setup.restart()
    setup.serve("s")
    setup.run(100)
    assert setup.arrived("s") == ["r"]


def test_a_server_that_reports_later_is_busy_until_its_result() -> None:
    setup = served_by("s")
    setup.answers("s", LATER)
    setup.park_requests(2)
    setup.run(60_000)
    assert setup.arrived("s") == ["r0"]
    (figures,) = setup.redelivery.statistics().queues
    assert (figures.waiting, figures.executing, figures.idle) == (1, 1, 0)
    assert [server for server, _ in figures.busy] == ["s"]

    for number in range(2):
        setup.report(setup.arrivals[number], "delivered")
        setup.run(1_000)
        assert setup.arrived("s") == ["r0", "r1"]
    rows = [(row.state, row.error, row.number, bool(row.push)) for row in setup.attempts if row.notification == "r0"]
    assert rows == [("parked", "later", 1, True), ("delivered", "", 1, False)]
    assert (setup.log, setup.redelivery.statistics().queues[0].executing) == ({}, 0)


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
    setup = Setup()
    setup.serve("s", capacity=capacity)
    setup.answers("s", LATER)
    setup.park_request("a")
    setup.run(1_000)
    setup.answers("s", OK)
    setup.serve("other")
    setup.read_changes()
    if event == "clock set back":
        setup.set_clock(-DAY_MS)
    elif event == "restart":
        setup.restart()
    elif event == "leaves":
        setup.end("s")
    setup.run(CALLBACK_MS - 2_000)
    assert sent(setup) == [("s", "a", 0)], "the result is awaited"
    if state:
        setup.report(setup.arrivals[0], state)
    setup.run(60_000)
    assert sent(setup) == [(name, "a", number) for number, name in enumerate(servers)]
    assert (setup.states()[LANE, "a"], setup.log) == ("delivered", {})


@pytest.mark.parametrize("reports", [False, True])
def test_a_server_is_idle_after_the_result_of_a_request_that_has_expired(reports: bool) -> None:
    setup = served_by("s")
    setup.answers("s", LATER)
    setup.park_request("old", accepted_ms=setup.now_ms - DAY_MS + 1_000)
    setup.run(10_000)
    assert setup.states()[LANE, "old"] == "expired"
    setup.answers("s", OK)
    setup.park_request("next")
    setup.run(10_000)
    assert setup.arrived("s") == ["old"]
    if reports:
        setup.report(setup.arrivals[0], "delivered")
    setup.run(1_000 if reports else CALLBACK_MS)
    assert setup.arrived("s") == ["old", "next"]
