"""For any failures of servers, job and clock: every request ends, and repetitions are numbered."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.topic_model.records.results import State
from tests.support.redelivery_world import BROKEN, DAY_MS, HOUR_MS, LATER, OK, REFUSED, World

NAMES = ("s1", "s2", "s3")

ANSWERS = {
    "ok": OK,
    "broken": BROKEN,
    "refused": REFUSED,
    "silent": PushResult(0, "timeout", "no answer", duration_s=15.0),
    "invalid": PushResult(422),
    "gone": PushResult(410),
    "busy": PushResult(503, retry_after_s=30.0),
    "later": LATER,
}

Step = tuple[str, int, str]

# Frequent steps are listed several times.
ASK = st.tuples(st.just("ask"), st.integers(1, 6), st.just(""))
RUN = st.tuples(st.just("run"), st.sampled_from((1, 15, 15, 50, 100, 3_000, 60_000, HOUR_MS)), st.just(""))

STEPS = st.lists(
    st.one_of(
        *(ASK, ASK, ASK, RUN, RUN, RUN),
        st.tuples(st.just("serve"), st.integers(1, 3), st.sampled_from(NAMES)),
        st.tuples(st.just("leave"), st.just(0), st.sampled_from(NAMES)),
        st.tuples(st.just("suspend"), st.just(0), st.sampled_from(NAMES)),
        st.tuples(st.just("resume"), st.just(0), st.sampled_from(NAMES)),
        *(st.tuples(st.just(answer), st.just(0), st.sampled_from(NAMES)) for answer in ANSWERS),
        st.tuples(st.just("report"), st.integers(0, 6), st.sampled_from(("delivered", "failed", "refused"))),
        st.tuples(st.just("kill"), st.just(0), st.just("")),
        st.tuples(st.just("crash"), st.integers(0, 6), st.sampled_from(("", "attempts", "all"))),
    ),
    min_size=4,
    max_size=40,
)


class History:
    """Applies the steps to a world."""

    def __init__(self) -> None:
        self.world = World()
        self.requested = 0
        self.capacity: dict[str, int] = {}
        for number, name in enumerate(NAMES):
            self.world.serve(name, takes_ms=10 + 33 * number)
            self.capacity[name] = 1

    def step(self, what: str, number: int, name: str) -> None:
        world = self.world
        match what:
            case "ask":
                for _ in range(number):
                    self.requested += 1
                    merge = b"e" if self.requested % 3 else b""
                    world.ask(f"r{self.requested}", priority=self.requested % 2, merge=merge)
            case "serve":
                world.serve(name, capacity=number)
                self.capacity[name] = max(number, self.capacity[name])
            case "leave":
                if name in world.subscriptions:
                    del world.subscriptions[name]
            case "suspend":
                world.suspended_now.add(name)
            case "resume":
                world.suspended_now.discard(name)
            case "report":
                for arrival in world.arrivals[len(world.arrivals) - number - 1 :][:1]:
                    world.report(arrival, cast(State, name))
            case "run":
                world.run(number)
            case "kill":
                world.restart()
            case "crash":
                world.writes_left = number
                world.landing = {"": (), "attempts": (True, False, False), "all": (True, True, True)}[name]
            case _:
                answer = ANSWERS[what]
                world.endpoints[f"http://{name}/"].answer = lambda _: answer
        world.hear()
        # A server that answers 410 is unsubscribed.
        for each in world.gone_said:
            world.subscriptions.pop(each, None)
        world.gone_said.clear()
        world.hear()

    def heal(self) -> None:
        """No further failures; enough time for all requests to end."""
        self.world.writes_left = None
        self.world.suspended_now.clear()
        for name in NAMES:
            self.world.endpoints[f"http://{name}/"].answer = lambda _: OK
            if name not in self.world.subscriptions:
                self.world.serve(name)
        self.world.hear()
        self.world.run(HOUR_MS)
        self.world.hear()
        self.world.run(DAY_MS)


@given(STEPS)
def test_every_request_ends_and_repetitions_are_numbered(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.step(*step)
    history.heal()
    world = history.world
    ended: defaultdict[str, set[str]] = defaultdict(set)
    for row in world.attempts:
        ended[row.notification].add(row.state)
    for number in range(1, history.requested + 1):
        assert ended[f"r{number}"] & {"delivered", "dead", "expired"}, f"r{number}: {ended[f'r{number}']}"
    assert (world.log, world.store.count, world.redelivery.lanes) == ({}, 0, 0)
    had: Counter[str] = Counter()
    for arrival in world.arrivals:
        assert 0 <= arrival.sequence <= 5
        for request in arrival.notifications:
            assert arrival.sequence or not had[request], f"{request} is repeated without a number"
            had[request] += 1
    for name in NAMES:
        assert world.most_at.get(f"http://{name}/", 0) <= history.capacity[name] + (world.crashes > 0) * 3
    assert world.too_much == []
