"""For any failures of servers, job and clock: every request ends, and repetitions are numbered."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from arborcast.dispatch.delivery.transport.contract import PushResult
from arborcast.topic_model.records.results import State
from tests.support.redelivery_setup import BROKEN, DAY_MS, HOUR_MS, LATER, OK, REFUSED, Setup

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
REQUEST = st.tuples(st.just("request"), st.integers(1, 6), st.just(""))
RUN = st.tuples(st.just("run"), st.sampled_from((1, 15, 15, 50, 100, 3_000, 60_000, HOUR_MS)), st.just(""))

STEPS = st.lists(
    st.one_of(
        *(REQUEST, REQUEST, REQUEST, RUN, RUN, RUN),
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
    """Applies the steps to a setup."""

    def __init__(self) -> None:
        self.setup = Setup()
        self.requested = 0
        self.capacity: dict[str, int] = {}
        for number, name in enumerate(NAMES):
            self.setup.serve(name, takes_ms=10 + 33 * number)
            self.capacity[name] = 1

    def step(self, what: str, number: int, name: str) -> None:
        setup = self.setup
        match what:
            case "request":
                for _ in range(number):
                    self.requested += 1
                    merge = b"e" if self.requested % 3 else b""
                    setup.park_request(f"r{self.requested}", priority=self.requested % 2, merge=merge)
            case "serve":
                setup.serve(name, capacity=number)
                self.capacity[name] = max(number, self.capacity[name])
            case "leave":
                if name in setup.subscriptions:
                    del setup.subscriptions[name]
            case "suspend":
                setup.suspended_now.add(name)
            case "resume":
                setup.suspended_now.discard(name)
            case "report":
                for arrival in setup.arrivals[len(setup.arrivals) - number - 1 :][:1]:
                    setup.report(arrival, cast(State, name))
            case "run":
                setup.run(number)
            case "kill":
                setup.restart()
            case "crash":
                setup.writes_left = number
                setup.landing = {"": (), "attempts": (True, False, False), "all": (True, True, True)}[name]
            case _:
                answer = ANSWERS[what]
                setup.endpoints[f"http://{name}/"].answer = lambda _: answer
        setup.read_changes()
        # A server that answers 410 is unsubscribed.
        for each in setup.gone_reported:
            setup.subscriptions.pop(each, None)
        setup.gone_reported.clear()
        setup.read_changes()

    def heal(self) -> None:
        """No further failures; enough time for all requests to end."""
        self.setup.writes_left = None
        self.setup.suspended_now.clear()
        for name in NAMES:
            self.setup.endpoints[f"http://{name}/"].answer = lambda _: OK
            if name not in self.setup.subscriptions:
                self.setup.serve(name)
        self.setup.read_changes()
        self.setup.run(HOUR_MS)
        self.setup.read_changes()
        self.setup.run(DAY_MS)


@given(STEPS)
def test_every_request_ends_and_repetitions_are_numbered(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.step(*step)
    history.heal()
    setup = history.setup
    ended: defaultdict[str, set[str]] = defaultdict(set)
    for row in setup.attempts:
        ended[row.notification].add(row.state)
    for number in range(1, history.requested + 1):
        assert ended[f"r{number}"] & {"delivered", "dead", "expired"}, f"r{number}: {ended[f'r{number}']}"
    assert (setup.log, setup.store.count, setup.redelivery.lanes) == ({}, 0, 0)
    had: Counter[str] = Counter()
    for arrival in setup.arrivals:
        assert 0 <= arrival.sequence <= 5
        for request in arrival.notifications:
            assert arrival.sequence or not had[request], f"{request} is repeated without a number"
            had[request] += 1
    for name in NAMES:
        assert setup.most_at.get(f"http://{name}/", 0) <= history.capacity[name] + (setup.crashes > 0) * 3
    assert setup.too_much == []
