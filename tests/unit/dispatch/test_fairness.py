"""The order of pushes, and the share of one endpoint or host."""

from __future__ import annotations

from collections import Counter, deque
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.delivery.capacity import scopes_of
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest, PushResult
from arborcast.dispatch.hot.lanes import Lane, Lanes
from arborcast.dispatch.hot.pump import Pump, PumpRun
from arborcast.topic_model.routing import Found
from arborcast.topic_model.subscriptions import DeliveryPolicy, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.fake_journal import FakeJournal
from tests.support.fake_transport import FakeTransport
from tests.support.hot import intake_of, limits, outcomes_in, received
from tests.support.make import subscription

TOPIC = TopicPath("a")

to = partial(subscription, form="raw")


def prior(name: str, priority: int) -> Subscription:
    return to(name, policy=DeliveryPolicy(priority=priority))


def served(lanes: Lanes, in_flight: int) -> list[str]:
    """The subscriptions in the order of their pushes, with this many in flight; the oldest push ends first."""
    order: list[str] = []
    in_flight_ids: deque[str] = deque()
    while not lanes.empty:
        while len(in_flight_ids) < in_flight and (taken := lanes.take()) is not None:
            order.append(taken[0].id)
            in_flight_ids.append(taken[0].id)
        lanes.settle(in_flight_ids.popleft(), TOPIC)
    return order


def test_a_long_lane_does_not_delay_short_ones() -> None:
    lanes = Lanes(limits(1, 1_000, 100, 100))
    for number in range(2_000):
        lanes.add(received(offset=number), to("long"))
    for number in range(100):
        lanes.add(received(), to(f"short{number}"))

    order = served(lanes, in_flight=4)

    last_short = max(index for index, name in enumerate(order) if name != "long")
    assert last_short < 150, "each short lane waits for at most one push of the long one"
    assert len(order) == 2_100


def test_priority_and_every_eighth_turn_for_the_lowest() -> None:
    lanes = Lanes(limits(1, 1_000, 100, 100))
    for number in range(100):
        for name, priority in (("low", -1), ("middle", 0), ("high", 5), ("mate", 5)):
            lanes.add(received(offset=number), prior(name, priority))

    order = served(lanes, in_flight=2)

    assert order[:9] == ["high", "mate"] * 3 + ["high", "low", "mate"]
    while_high = Counter(order[:200])
    assert while_high["low"] == 25, "every eighth turn"
    assert while_high["high"] - while_high["mate"] in (-1, 0, 1)
    assert while_high["middle"] == 0, "the lowest waiting priority has the turn"


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 1)), max_size=60),
    st.integers(1, 3),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_limits_hold_and_no_lane_waits_without_need(
    messages: list[tuple[int, int, int]], per_endpoint: int, per_host: int, random: object
) -> None:
    """For any order of ends: pushes are within the limits, and a lane waits only at a full endpoint or host."""
    lanes = Lanes(limits(1, 1_000, per_endpoint, per_host))
    address: dict[str, str] = {}
    waiting: Counter[str] = Counter()
    for number, (lane, path, host) in enumerate(messages):
        name = f"s{lane}-{path}-{host}"
        address[name] = f"http://h{host}:{lane}/{path}" if lane else f"http://h{host}/{path}"
        lanes.add(received(offset=number), to(name, url=address[name]))
        waiting[name] += 1
    in_flight_ids: list[str] = []

    while not lanes.empty:
        while (taken := lanes.take()) is not None:
            in_flight_ids.append(taken[0].id)
            waiting[taken[0].id] -= 1
        endpoints = Counter(address[name] for name in in_flight_ids)
        hosts = Counter(scopes_of(address[name])[1] for name in in_flight_ids)
        assert max(endpoints.values()) <= per_endpoint
        assert max(hosts.values()) <= per_host
        for name in (name for name, count in waiting.items() if count and name not in in_flight_ids):
            full = endpoints[address[name]] == per_endpoint or hosts[scopes_of(address[name])[1]] == per_host
            assert full, f"{name} waits below the limits"
        ended = in_flight_ids.pop(random.randrange(len(in_flight_ids)))  # type: ignore[attr-defined]  # Hypothesis' own random
        lanes.settle(ended, TOPIC)

    assert not +waiting


class FanOut:
    """An intake, its lanes and the pump. The receivers answer at once, and no time passes."""

    def __init__(self, per_host: int = 1_000) -> None:
        self.journal = FakeJournal()
        outcomes = outcomes_in(self.journal)
        self.intake = intake_of(outcomes, limits=limits(per_host=per_host))
        self.lanes = self.intake.lanes
        self.most_lanes = 0
        self.transport = FakeTransport(self._answer)
        self.pump = Pump(self.transport, Envelope, 50, 2.0, now=lambda: 1.0, clock=lambda: 0.0)
        self.run = PumpRun(self.lanes, outcomes, self.intake.fill)

    def _answer(self, request: PushRequest) -> PushResult:
        self.most_lanes = max(self.most_lanes, self.lanes.waiting_lanes + self.lanes.busy)
        return PushResult(202)

    def take(self, name: str, topic: str, offset: int, targets: list[Subscription]) -> None:
        self.intake.take(received(name, offset, topic, accepted_ms=1_000), Found(targets, []))

    def push(self, answers: int) -> None:
        self.pump.begin(self.run)
        for _ in range(answers):
            self.transport.drive(0.0)
            self.pump.begin(self.run)

    @property
    def urls(self) -> list[str]:
        return [request.url for request in self.transport.sent]


def many(count: int) -> list[Subscription]:
    return [to(f"s{number}", url=f"http://host/{number}") for number in range(count)]


def test_a_notification_for_many_has_few_lanes_at_a_time() -> None:
    setup = FanOut()
    setup.take("n", "a", 5, many(1_000))
    assert setup.lanes.oldest() == 5
    setup.push(999)
    assert (setup.lanes.oldest(), setup.lanes.empty) == (5, False)
    setup.push(1)

    assert sorted(setup.urls) == sorted({f"http://host/{number}" for number in range(1_000)})
    assert (setup.lanes.oldest(), setup.lanes.empty) == (None, True)
    assert setup.most_lanes <= 50 + 32


def test_prune_examines_few_lanes_of_many_recipients() -> None:
    setup = FanOut(per_host=20)
    setup.take("n", "a", 5, many(1_000))
    setup.push(10)
    looked: list[Lane] = []
    setup.lanes.prune(looked.append)
    assert len(looked) <= 32
    assert len(list(setup.lanes.waiting())) <= 32
    assert setup.lanes.busy == 20


def test_a_notification_for_many_is_pushed_beside_a_backlog() -> None:
    setup = FanOut()
    long = to("long", url="http://host/long")
    for number in range(1_000):
        setup.take(f"l{number}", f"t{number}", number, [long])
    setup.take("n", "a", 1_000, many(300))
    setup.push(1_000)
    assert sum("/long" not in url for url in setup.urls) == 300


def test_each_recipient_gets_a_topic_in_order() -> None:
    setup = FanOut(per_host=20)
    targets = many(200)
    setup.take("n1", "a", 5, targets)
    setup.push(30)
    setup.take("n2", "a", 6, targets[:3])
    setup.take("n3", "a", 7, targets)
    setup.push(500)
    assert setup.lanes.empty
    for number, each in enumerate(targets):
        got = [row.notification for row in setup.journal.rows if row.subscription == each.id]
        assert got == (["n1", "n2", "n3"] if number < 3 else ["n1", "n3"])
