"""Queues in the world of the redelivery: whom requests go to, and what follows from the answers."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import msgspec
import pytest
from lxml import etree

from arborcast.core.security.keyring import KeyRing
from arborcast.core.settings import SecretSettings
from arborcast.dispatch.delivery.credentials import Vault
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.logs.parked import Tries
from arborcast.dispatch.queues.faults import QueueUsers
from arborcast.dispatch.settings import PushSettings
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.results import ANSWER, ServedRequest, may_answer
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_transport import FakeTransport
from tests.support.redelivery_world import BROKEN, DAY_MS, HOUR_MS, LATER, OK, REFUSED, FakeEndpoint, World, retry

LANE = "queue:q"
INVALID = PushResult(422)
FAULT = PushResult(
    500,
    response=b'<s:Envelope xmlns:s="s" xmlns:q="urn:arborcast:queue"><s:Body><s:Fault><s:Code><s:Value>s:Receiver'
    b"</s:Value><s:Subcode><s:Value>q:Invalid</s:Value></s:Subcode></s:Code>",
)


def test_one_of_the_servers_gets_each_request_the_one_that_is_idle_for_the_longest_first() -> None:
    world = World()
    for name in ("s1", "s2", "s3"):
        world.serve(name)
    for number in range(7):
        world.ask(f"r{number}")
    world.run(1_000)
    assert [(each.subscription, *each.notifications) for each in world.arrivals] == [
        (f"s{number % 3 + 1}", f"r{number}") for number in range(7)
    ]
    assert {state for _, state in world.states().items()} == {"delivered"}
    assert {name for name, _ in world.states()} == {LANE}
    assert world.log == {}
    assert world.store.count == 0


def test_what_is_not_acknowledged_is_sent_again_to_the_same_server_with_numbers_from_1_to_5() -> None:
    world = World(retry=retry(breaker_failures=1_000))
    world.serve("s1")
    world.serve("s2")
    world.endpoints["http://s1/"].answer = lambda _: BROKEN
    world.ask("r")
    world.run(DAY_MS // 2)
    assert [(each.subscription, each.attempt, each.sequence) for each in world.arrivals] == [
        ("s1", 1, 0),
        ("s1", 2, 1),
        ("s1", 3, 2),
        ("s1", 4, 3),
        ("s1", 5, 4),
        ("s1", 6, 5),
    ]
    (letter,) = world.buried
    assert (letter.subscription, letter.endpoint, letter.state, letter.number) == (LANE, "http://s1/", "dead", 6)
    assert world.log == {}


def test_when_a_server_turns_sick_others_get_what_it_had() -> None:
    world = World()
    world.serve("s1", capacity=3)
    world.serve("s2")
    world.endpoints["http://s1/"].answer = lambda _: REFUSED
    for number in range(8):
        world.ask(f"r{number}")
    world.run(1_000)
    assert Counter(world.states().values()) == {"delivered": 8}
    assert world.health.get("http://s1/").breaker == "open"
    again = [each for each in world.arrivals if each.subscription == "s2" and each.attempt > 1]
    assert again
    assert all(each.sequence for each in again)


def test_a_server_that_unsubscribes_leaves_what_it_had_to_others() -> None:
    world = World()
    world.serve("s1")
    world.endpoints["http://s1/"].answer = lambda _: BROKEN
    world.ask("r")
    world.run(100)
    world.serve("s2")
    del world.subscriptions["s1"]
    world.hear()
    world.run(100)
    assert world.arrived("s2") == ["r"]
    assert world.arrivals[-1].sequence == 1


def test_a_push_that_was_under_way_when_its_server_left_counts() -> None:
    world = World()
    world.serve("s1", takes_ms=1_000)
    world.ask("r")
    world.run(100)
    del world.subscriptions["s1"]
    world.hear()
    world.run(2_000)
    assert world.states() == {(LANE, "r"): "delivered"}


@pytest.mark.parametrize("answer", [INVALID, FAULT, PushResult(404)])
def test_what_one_server_refuses_another_does(answer: PushResult) -> None:
    world = World()
    for name in ("s1", "s2", "s3"):
        world.serve(name)
    world.endpoints["http://s1/"].answer = lambda _: answer
    for number in range(9):
        world.ask(f"r{number}")
    world.run(1_000)
    assert Counter(world.states().values()) == {"delivered": 9}
    assert world.buried == []
    assert world.now_ms - world.arrivals[-1].at_ms > 900, "nobody waits for it"


def test_what_all_servers_refuse_is_a_dead_letter() -> None:
    world = World()
    for name in ("s1", "s2", "s3"):
        world.serve(name)
        world.endpoints[f"http://{name}/"].answer = lambda ids: INVALID if ids == ("bad",) else OK
    world.ask("bad")
    world.ask("good")
    world.run(1_000)
    assert world.states() == {(LANE, "bad"): "dead", (LANE, "good"): "delivered"}
    (letter,) = world.buried
    assert (letter.error, letter.status) == ("invalid", 422)
    assert sorted(each.subscription for each in world.arrivals if each.notifications == ("bad",)) == ["s1", "s2", "s3"]


def test_when_the_last_who_has_not_refused_leaves_it_is_given_up() -> None:
    world = World()
    world.serve("s1")
    world.serve("s2", takes_ms=10_000)
    world.endpoints["http://s1/"].answer = lambda _: INVALID
    world.ask("bad")
    world.ask("other")
    world.run(100)
    assert world.states()[LANE, "bad"] == "parked"
    del world.subscriptions["s2"]
    world.hear()
    world.run(100)
    assert world.states()[LANE, "bad"] == "dead"


def test_a_server_that_says_410_is_gone_and_another_does_it() -> None:
    world = World()
    world.serve("s1")
    world.serve("s2")
    world.endpoints["http://s1/"].answer = lambda _: PushResult(410)
    for number in range(4):
        world.ask(f"r{number}")
    world.run(1_000)
    assert world.gone_said == ["s1"]
    assert Counter(each.subscription for each in world.arrivals) == {"s1": 1, "s2": 4}


def test_what_may_have_been_sent_before_a_crash_says_so() -> None:
    world = World()
    world.serve("s", takes_ms=1_000)
    world.ask("r0")
    world.ask("r1")
    world.run(100)
    world.restart()
    world.ask("r2")
    world.run(HOUR_MS)
    assert [(each.notifications[0], each.sequence) for each in world.arrivals] == [
        ("r0", 0),
        ("r0", 1),
        ("r1", 1),
        ("r2", 0),
    ]
    assert Counter(world.states().values()) == {"delivered": 3}


def test_a_paused_or_suspended_server_gets_nothing() -> None:
    world = World()
    world.serve("s1")
    world.serve("s2")
    world.suspended_now.add("s1")
    world.hear()
    world.ask("r0")
    world.ask("r1")
    world.run(1_000)
    assert world.arrived("s2") == ["r0", "r1"]
    world.suspended_now.clear()
    world.hear()
    world.ask("r2")
    world.ask("r3")
    world.run(1_000)
    assert (world.arrived("s2")[2:], world.arrived("s1")) == (["r2"], ["r3"])
    assert world.too_much == []


def test_with_a_server_the_other_subscriptions_of_its_endpoint_are_suspended() -> None:
    world = World(retry=retry(suspend_after_s=3_600.0))
    world.serve("s")
    world.subscribe("other", endpoint="s")
    world.endpoints["http://s/"].answer = lambda _: REFUSED
    world.ask("r")
    world.park("other", "n")
    world.run(2 * HOUR_MS)
    assert set(world.suspended_said) == {"s", "other"}


def test_when_the_clock_is_put_back_what_was_tried_is_due() -> None:
    world = World()
    world.serve("s")
    world.endpoints["http://s/"].answer = lambda _: BROKEN if len(world.arrivals) == 1 else OK
    world.ask("r")
    world.run(100)
    world.set_clock(-DAY_MS)
    world.run(100)
    assert world.arrived("s") == ["r", "r"]


@pytest.mark.parametrize("capacity", [1, 2])
def test_when_the_clock_is_put_back_a_result_is_awaited_for_its_time_and_no_longer(capacity: int) -> None:
    world = World()
    world.serve("s", capacity=capacity)
    world.endpoint("s").answer = lambda ids: LATER
    world.ask("a")
    world.run(1_000)
    world.set_clock(-DAY_MS)
    callback_ms = int(PushSettings().callback_s * 1000)
    world.run(callback_ms - 1_000)
    assert [each.sequence for each in world.arrivals] == [0]
    world.endpoint("s").answer = lambda ids: OK
    world.run(60_000)
    assert [each.sequence for each in world.arrivals] == [0, 1]
    assert world.states()[LANE, "a"] == "delivered"


def test_whoever_awaits_an_answer_hears_that_none_will_come() -> None:
    world = World(retry=retry(breaker_failures=1_000))
    world.serve("s")
    answers = {"bad": INVALID, "silent": BROKEN}
    world.endpoints["http://s/"].answer = lambda ids: answers.get(ids[0], OK)
    for name in ("good", "bad", "silent"):
        world.ask(name, reply_to=f"http://user/{name}")
    world.run(DAY_MS // 2)
    del world.subscriptions["s"]
    world.hear()
    world.ask("late", reply_to="http://user/late")
    world.ask("nobody")
    world.run(2 * DAY_MS)
    assert [url for url, _ in world.faults] == [f"http://user/{name}" for name in ("bad", "silent", "late")]
    for (_, body), code in zip(world.faults, ("Invalid", "Unanswered", "Expired"), strict=True):
        assert f"<faultcode>q:{code}</faultcode>" in body
    assert "<wsa:RelatesTo>urn:late</wsa:RelatesTo>" in world.faults[-1][1]


def test_whoever_awaits_it_in_a_pull_point_of_ours_finds_it_there() -> None:
    """Without a way through the gateway, which would ask who we are."""
    world = World()
    world.serve("s")
    world.endpoints["http://s/"].answer = lambda ids: INVALID
    world.ask("bad", reply_to="http://gateway/wsn/pullpoints/p1", reply_point="p1")
    world.run(10_000)
    ((point, element),) = world.faults
    assert point == "p1"
    root = etree.fromstring(element)
    assert root.findtext(".//{*}ProducerReference/{*}ReferenceParameters/{*}RelatesTo") == "urn:bad"
    assert root.findtext(".//{*}Message/{*}Fault/faultcode") == "q:Invalid"
    assert world.states() == {("queue:q", "bad"): "dead"}


def test_many_are_told_without_all_at_once() -> None:
    world = World()
    for number in range(3_000):
        world.ask(f"r{number}", reply_to="http://user/")
    world.run(2 * DAY_MS)
    assert len(world.faults) == 3_000
    assert world.most_in_flight <= 32
    assert world.log == {}


def test_a_server_learns_where_the_answer_is_awaited_and_nobody_else() -> None:
    asked = Notification(
        "n1",
        TopicPath("q"),
        b"<x/>",
        1,
        message_id="urn:1",
        queue=True,
        reply_to=EndpointReference("http://u/?a=1&b=2", ("<who xmlns='urn:u'>me</who>",)),
    )
    plain = Subscription("plain", EndpointReference("http://h/"))
    server = Subscription("server", EndpointReference("http://h/"), queue=1)
    entry = (
        b'<ac:Request id="n1"><wsa:MessageID>urn:1</wsa:MessageID><wsa:ReplyTo>'
        b"<wsa:Address>http://u/?a=1&amp;b=2</wsa:Address><wsa:ReferenceParameters><who xmlns='urn:u'>me</who>"
        b"</wsa:ReferenceParameters></wsa:ReplyTo></ac:Request>"
    )
    assert entry in Envelope(server).request([asked], 1).body
    assert b"Request" not in Envelope(plain).request([asked], 1).body


def test_a_server_is_given_a_mark_for_the_pull_point_where_an_answer_is_awaited() -> None:
    """Of each request that it does, until the lifespan ends, and a minute: it may be given it at the last moment."""
    keys = KeyRing({"k": b"k" * 32})
    point = EndpointReference("http://gateway/wsn/pullpoints/p1")

    def asked(number: int, reply_point: str = "p1", valid_until_ms: int = 0) -> Notification:
        return Notification(
            *(f"n{number}", TopicPath("q"), b"<x/>", 1_000),
            message_id=f"urn:{number}",
            reply_to=point,
            reply_point=reply_point,
            valid_until_ms=valid_until_ms,
        )

    def body(server: Subscription, now_s: float = 2.0) -> bytes:
        together = [asked(0), asked(1, valid_until_ms=5_000), asked(2, reply_point="")]
        return Envelope(server, Vault(SecretSettings(), keys), lifespan_s=20.0).request(together, 1, now_s).body

    server = Subscription("server", EndpointReference("http://h/"), queue=1, owner="bert")
    entries = etree.fromstring(body(server)).iter("{*}Request")
    marks = [entry.findtext(f".//{{*}}ReferenceParameters/{ANSWER}") for entry in entries]
    for number, until_ms in enumerate((81_000, 65_000)):
        mark, request = marks[number], ServedRequest("p1", f"urn:{number}", "bert")
        assert mark is not None
        assert may_answer(mark, request, until_ms, keys)
        assert not may_answer(mark, request, until_ms + 1, keys)
    assert marks[2] is None, "another address needs none"
    assert b">90000." in body(server, 30.0), "what is sent again later may be answered, too"
    assert b"Answer" not in body(msgspec.structs.replace(server, owner=""))
    assert b"Answer" not in body(msgspec.structs.replace(server, queue=0))


def test_equal_requests_that_wait_are_done_once_at_the_place_of_the_first() -> None:
    world = World()
    world.serve("s", takes_ms=100)
    world.ask("busy", merge=b"e")
    world.run(50)
    for number in range(50):
        world.ask(f"r{number:02}", merge=b"e" if number % 2 else b"f", reply_to=f"http://user/{number}")
    world.ask("other")
    world.run(HOUR_MS)
    assert [len(each.notifications) for each in world.arrivals] == [1, 25, 25, 1], "not with what is being done"
    assert [each.notifications[0] for each in world.arrivals] == ["busy", "r00", "r01", "other"]
    rows = [row for row in world.attempts if row.error == "merged"]
    assert (len(rows), {row.state for row in rows}) == (48, {"delivered"})
    assert Counter(world.states().values()) == {"delivered": 52}
    assert world.faults == []
    assert world.log == {}


def test_no_more_is_done_together_than_one_push_may_say_of_those_who_ask() -> None:
    world = World()
    world.serve("s", takes_ms=100)
    world.ask("busy", merge=b"e")
    world.run(50)
    for number in range(60):
        world.ask(f"r{number:02}", merge=b"e", reply_to=f"http://user/{number}?{'q' * 16_000}")
    world.run(HOUR_MS)
    together = [len(each.notifications) for each in world.arrivals]
    assert (sum(together), set(together[1:-1])) == (61, {16})
    assert Counter(world.states().values()) == {"delivered": 61}


def test_what_is_done_together_is_sent_again_together_and_ends_together() -> None:
    world = World(retry=retry(breaker_failures=1_000))
    world.serve("s")
    world.endpoints["http://s/"].answer = lambda _: BROKEN
    for number in range(3):
        world.ask(f"r{number}", merge=b"e", reply_to=f"http://user/{number}")
    world.run(1_000)
    world.ask("later", merge=b"e")
    world.run(DAY_MS // 2)
    sent = [each for each in world.arrivals if "r0" in each.notifications]
    assert [(each.notifications, each.sequence) for each in sent] == [
        (("r0", "r1", "r2"), number) for number in range(6)
    ]
    assert Counter(world.states().values()) == {"dead": 4}
    assert len(world.faults) == 3


def test_who_was_to_go_with_one_that_is_too_old_goes_by_itself() -> None:
    world = World()
    world.serve("s")
    world.endpoints["http://s/"].answer = lambda _: BROKEN if len(world.arrivals) == 1 else OK
    world.ask("short", merge=b"e", valid_until_ms=world.now_ms + 3_000)
    world.ask("long", merge=b"e")
    world.run(100)
    del world.subscriptions["s"]
    world.hear()
    world.run(10_000)
    world.serve("s")
    world.hear()
    world.run(1_000)
    assert world.states() == {(LANE, "short"): "expired", (LANE, "long"): "delivered"}


def test_pushes_of_queues_are_bounded_in_bytes() -> None:
    world = World()
    size = 10 * 1024 * 1024
    for number in range(12):
        world.serve(f"s{number}", takes_ms=1_000)
        world.ask(f"r{number}", payload=b"x" * size)
    world.run(500)
    assert len(world.arrivals) == 4, "half of 64 MiB, and the request that goes beyond it"
    world.run(HOUR_MS)
    assert world.store.count == 0


def test_a_server_and_other_subscriptions_share_the_limit_of_their_endpoint() -> None:
    world = World(push=PushSettings(max_in_flight_per_endpoint=2))
    world.serve("s", capacity=8)
    world.subscribe("other", endpoint="s")
    world.endpoints["http://s/"].takes_ms = 100
    for number in range(6):
        world.ask(f"r{number}")
        world.park("other", f"n{number}", Tries(1, 1, world.now_ms))
    world.run(DAY_MS)
    assert world.most_at == {"http://s/": 2}
    assert world.store.count == 0


def test_a_slot_for_a_server_of_a_queue_that_ends_at_this_moment_is_passed_on() -> None:
    world = World(push=PushSettings(max_in_flight_per_endpoint=1))
    world.serve("a", queue="qa")
    other = world.serve("b", queue="qb")
    at_a = world.subscriptions["a"].consumer
    world.subscriptions["b"] = msgspec.structs.replace(other, consumer=at_a)

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


def test_a_turn_costs_no_more_with_a_thousand_idle_servers() -> None:
    world = World()
    for number in range(1_000):
        world.serve(f"s{number}")
    world.endpoints["http://s0/"].answer = lambda _: BROKEN
    world.ask("refused")
    world.run(1_000)
    world.ask("again")
    asked, ask = 0, world.store.query

    def counted(query: str, *values: object) -> list[tuple[Any, ...]]:
        nonlocal asked
        asked += 1
        return ask(query, *values)

    world.store.query = counted  # type: ignore[method-assign]
    world.run(1_000)
    assert world.states()[LANE, "again"] == "delivered"
    assert asked < 60
    world.run(HOUR_MS)
    assert {each.subscription for each in world.arrivals if "refused" in each.notifications} == {"s0"}


def test_how_a_queue_stands() -> None:
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
    oldest_ms = world.now_ms
    assert figures._replace(busy=tuple(sorted(figures.busy))) == (
        TopicPath("q"),
        *(2, 3, begun_ms, 0, 1),
        (("busy", begun_ms), ("full", begun_ms)),
    )
    assert oldest_ms > begun_ms
    world.run(5_000)
    (figures,) = world.redelivery.statistics().queues
    assert (figures.waiting, figures.executing, figures.oldest_ms, figures.busy) == (0, 0, 0, ())
    assert figures.idle + figures.sick == 3


def test_servers_that_are_learned_of_while_a_session_begins_are_known() -> None:
    """Nobody is told of them yet: the log of what is parked may be read before that of subscriptions."""
    world = World()
    world.ask("r")
    world.restart()
    world.serve("s")
    world.run(100)
    assert world.arrived("s") == ["r"]


def test_a_user_that_cannot_be_reached_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    transport = FakeTransport(lambda _: PushResult(0, "connect", "refused"))
    users = QueueUsers(transport, cast(Any, None))
    row = Attempt("n", LANE, TopicPath("q"), "", 0, "", "expired", 1, 2, 0.0)
    for name in ("away", "away", "gone"):
        request = Notification("n", TopicPath("q"), b"<x/>", 1, reply_to=EndpointReference(f"http://{name}/"))
        users.unanswered(request, row)
        transport.drive(0.0)
    assert [vars(each)["endpoint"] for each in caplog.records] == ["http://away/", "http://gone/"]


def test_a_server_that_reports_later_is_busy_until_its_result() -> None:
    world = World()
    world.serve("s")
    world.endpoint("s").answer = lambda ids: LATER
    world.ask("a")
    world.ask("b")
    world.run(60_000)
    assert world.arrived("s") == ["a"]
    (figures,) = world.redelivery.statistics().queues
    assert (figures.waiting, figures.executing, figures.idle) == (1, 1, 0)
    assert [server for server, _ in figures.busy] == ["s"]

    world.report(world.arrivals[0], "delivered")
    world.run(1_000)
    assert world.arrived("s") == ["a", "b"]
    assert world.states()[LANE, "a"] == "delivered"
    rows = [(row.state, row.error, row.number, bool(row.push)) for row in world.attempts if row.notification == "a"]
    assert rows == [("parked", "later", 1, True), ("delivered", "", 1, False)]
    world.report(world.arrivals[1], "delivered")
    world.run(1_000)
    assert (world.log, world.redelivery.statistics().queues[0].executing) == ({}, 0)


def test_an_accepted_request_without_a_result_in_time_is_sent_again_with_a_number() -> None:
    world = World()
    world.serve("s")
    world.endpoint("s").answer = lambda ids: LATER
    world.ask("a")
    callback_ms = int(PushSettings().callback_s * 1000)
    world.run(callback_ms - 1_000)
    assert [each.sequence for each in world.arrivals] == [0]
    world.endpoint("s").answer = lambda ids: OK
    world.run(60_000)
    assert [each.sequence for each in world.arrivals] == [0, 1]
    assert world.states()[LANE, "a"] == "delivered"
    assert not world.log


@pytest.mark.parametrize(("state", "then"), [("refused", "other"), ("failed", "s")])
def test_a_later_result_that_is_bad_leads_to_another_server_or_to_a_repetition(state: Any, then: str) -> None:
    world = World()
    world.serve("s")
    world.endpoint("s").answer = lambda ids: LATER
    world.ask("a")
    world.run(1_000)
    world.endpoint("s").answer = lambda ids: OK
    if state == "refused":
        world.serve("other")
        world.hear()
    world.report(world.arrivals[0], state)
    world.run(60_000)
    assert [each.subscription for each in world.arrivals] == ["s", then]
    assert world.arrivals[1].sequence == 1
    assert world.states()[LANE, "a"] == "delivered"


@pytest.mark.parametrize("result", [True, False])
def test_a_result_counts_after_a_restart_and_is_not_awaited_for_longer(result: bool) -> None:
    world = World()
    world.serve("s")
    world.endpoint("s").answer = lambda ids: LATER
    world.ask("a")
    world.run(1_000)
    world.restart()
    world.run(1_000)
    assert world.arrived("s") == ["a"]
    world.endpoint("s").answer = lambda ids: OK
    if result:
        world.report(world.arrivals[0], "delivered")
    world.run(int(PushSettings().callback_s * 1000) + 60_000)
    assert world.arrived("s") == ["a"] * (1 if result else 2)
    assert world.states()[LANE, "a"] == "delivered"


def test_the_result_of_a_server_that_left_counts() -> None:
    world = World()
    world.serve("s")
    world.endpoint("s").answer = lambda ids: LATER
    world.ask("a")
    world.run(1_000)
    del world.subscriptions["s"]
    world.serve("other")
    world.hear()
    world.run(60_000)
    assert world.arrived("other") == []
    world.report(world.arrivals[0], "delivered")
    world.run(1_000)
    assert world.states()[LANE, "a"] == "delivered"
