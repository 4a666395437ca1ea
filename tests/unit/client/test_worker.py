"""Servers of work queues over HTTP, with pushes as the engine writes them; and users who await their answers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
import requests

from arborcast.client import ClientError, FaultReceived
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.client.queues import worker as worker_module
from arborcast.client.queues.replies import PulledReplies
from arborcast.client.queues.worker import Invalid, Worker, reply_to
from arborcast.client.received import Asker
from arborcast.client.transport import HttpAnswer
from arborcast.client.values import BrokerUnreachable, RemotePullPoint, RemoteSubscription
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.queues.faults import fault_of
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath

SERVER = Subscription("server", EndpointReference("http://worker/"), queue=1)

PULL_POINT = "http://gateway/wsn/pullpoints/p1"


def asked(name: str = "n1", user: str = "http://user/", payload: bytes = b"<job/>") -> Notification:
    return Notification(
        name,
        TopicPath("{urn:t}jobs"),
        payload,
        1,
        message_id=f"urn:{name}",
        queue=True,
        reply_to=EndpointReference(user, ('<u:who xmlns:u="urn:u">me</u:who>',)) if user else None,
    )


def post(request: PushRequest, url: str) -> requests.Response:
    return requests.post(url, request.body, headers=dict(request.headers), timeout=120)


def push(worker: Worker, notification: Notification, attempt: int = 1) -> requests.Response:
    return post(Envelope(SERVER).request([notification], attempt), worker.url)


class Heard:
    """A user's listener, and what it was told."""

    def __init__(self, port: int = 0) -> None:
        self.messages: list[ReceivedMessage] = []
        self.listener = Listener(self.messages.append, port=port)

    @property
    def answers(self) -> list[tuple[str, bytes]]:
        return [(each.relates_to, each.payload) for each in self.messages]


@pytest.fixture
def user() -> Iterator[Heard]:
    heard = Heard()
    with heard.listener:
        yield heard


@contextmanager
def working(handle: Callable[[ReceivedMessage], str | bytes | None]) -> Iterator[Worker]:
    with Worker(handle, allow="127.0.0.0/8") as worker:
        yield worker


class Serves:
    """A client of a broker at this address."""

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def subscribe(self, topic: str | None, **_: object) -> RemoteSubscription:
        return RemoteSubscription(f"{self._broker}/wsn/subscriptions/s")

    def renew(self, subscription: object, lasts: object) -> RemoteSubscription:
        raise NotImplementedError

    def proof_for(self, address: str) -> dict[str, str]:
        return {}


class Leases(Serves):
    """A client of a broker that loses subscriptions, and the calls that it gets."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:8080")
        self.calls: SimpleQueue[str] = SimpleQueue()
        self.known = True

    def subscribe(self, topic: str | None, **named: object) -> RemoteSubscription:
        self.calls.put(f"subscribe for {named['lasts']}")
        return super().subscribe(topic)

    def renew(self, subscription: object, lasts: object) -> RemoteSubscription:
        self.calls.put(f"renew for {lasts}")
        if not self.known:
            raise FaultReceived("unknown", "ResourceUnknownFault")
        return super().subscribe("jobs")


def test_the_subscription_of_a_worker_ends_with_it_and_is_renewed_until_then() -> None:
    client, lease = Leases(), timedelta(milliseconds=100)
    with Worker(lambda _: None, lease=lease) as worker:
        worker.serve(client, "jobs")
        assert [client.calls.get(timeout=60) for _ in range(3)] == [
            "subscribe for 0:00:00.100000",
            "renew for 0:00:00.100000",
            "renew for 0:00:00.100000",
        ]


def test_a_worker_subscribes_again_after_an_expiry_and_not_after_an_unsubscribe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, now = Leases(), [1_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with Worker(lambda _: None, lease=timedelta(hours=1)) as worker:
        worker.serve(client, "jobs")
        client.known = False
        now[0] += 3_601
        worker.leases.renew()
        worker.leases.renew()
        worker.leases.renew()
    calls = [client.calls.get_nowait().split()[0] for _ in range(client.calls.qsize())]
    assert calls == ["subscribe", "renew", "subscribe", "renew"]


@pytest.mark.parametrize(
    ("brokers", "allow", "answered"),
    [
        ((), "", False),
        (("http://broker.example:8080",), "", False),
        (("http://127.0.0.1:8080",), "", True),
        (("http://127.0.0.1:8080", "http://broker.example:8080"), "", False),
        (("http://broker.example:8080",), "127.0.0.1", True),
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_answers_go_where_the_operator_of_a_server_lets_them(
    user: Heard,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    brokers: tuple[str, ...],
    allow: str,
    answered: bool,
    named: bool,
) -> None:
    """A user names any URL. One that is refused is no reason to do the request again, nor to have it sent again."""
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host == "user.example" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = user.listener.url.replace("127.0.0.1", "user.example" if named else "127.0.0.1")
    done: list[ReceivedMessage] = []
    with Worker(done.append, allow=allow) as worker:
        for broker in brokers:
            worker.serve(Serves(broker), "jobs")
        assert push(worker, asked(user=url)).status_code == 202
        assert push(worker, asked(user=url), attempt=2).status_code == 202
    assert len(done) == 1
    assert bool(user.answers) is answered
    assert ("add its network" in caplog.text) is not answered


def test_a_broker_in_a_private_network_takes_answers_into_its_pull_points() -> None:
    posted: list[str] = []

    class Posts:
        def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
            posted.append(url)
            return HttpAnswer(202)

    with Worker(lambda _: None, transport=Posts()) as worker:
        worker.serve(Serves("http://10.0.0.5:8080"), "jobs")
        for number, url in enumerate(("http://10.0.0.5:8080/wsn/pullpoints/p", "http://10.0.0.5/wsn/pullpoints/p")):
            assert push(worker, asked(f"n{number}", url)).status_code == 202
    assert posted == ["http://10.0.0.5:8080/wsn/pullpoints/p"]


def test_a_request_is_done_answered_and_then_acknowledged(user: Heard) -> None:
    done: list[ReceivedMessage] = []

    def handle(request: ReceivedMessage) -> bytes:
        assert not user.messages
        done.append(request)
        return b"<?xml version='1.0'?><done/>"

    with working(handle) as worker:
        assert push(worker, asked(user=user.listener.url)).status_code == 202
    assert [(each.payload, each.topic) for each in done] == [(b"<job/>", "{urn:t}jobs")]
    assert user.answers == [("urn:n1", b"<done/>")]


def test_what_has_nothing_to_say_says_so_and_who_awaits_nothing_gets_nothing(user: Heard) -> None:
    with working(lambda _: None) as worker:
        assert push(worker, asked(user=user.listener.url)).status_code == 202
        assert push(worker, asked("n2", user="")).status_code == 202
    assert [(id, b"Done" in payload) for id, payload in user.answers] == [("urn:n1", True)]


def test_a_repeat_of_what_is_done_is_acknowledged_and_not_done_again(user: Heard) -> None:
    done: list[str] = []
    with working(lambda request: done.append(request.notification_id)) as worker:
        notification = asked(user=user.listener.url)
        assert [push(worker, notification, attempt).status_code for attempt in (1, 2, 3)] == [202, 202, 202]
        assert (done, len(user.messages)) == (["n1"], 1)
        # Without a number it is somebody's wish that it be done once more.
        assert push(worker, notification).status_code == 202
    assert done == ["n1", "n1"]


def test_a_repeat_of_what_is_being_done_waits_for_its_end() -> None:
    begun, go, done = threading.Event(), threading.Event(), []

    def handle(request: ReceivedMessage) -> None:
        begun.set()
        assert go.wait(120)
        done.append(request.sequence)

    with working(handle) as worker:
        statuses: list[int] = []

        def send(attempt: int) -> threading.Thread:
            sending = threading.Thread(
                target=lambda: statuses.append(push(worker, asked(user=""), attempt).status_code)
            )
            sending.start()
            return sending

        pushes = [send(1)]
        assert begun.wait(120)
        pushes += [send(2), send(3)]
        go.set()
        for each in pushes:
            each.join(120)
    assert (statuses, done) == ([202, 202, 202], [0])


def test_what_cannot_be_done_is_refused_and_what_fails_is_asked_for_again() -> None:
    answers: list[Exception | None] = [Invalid("no such part"), RuntimeError("no paper"), None]

    def handle(_: ReceivedMessage) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    with working(handle) as worker:
        refused = push(worker, asked(user=""))
        assert (refused.status_code, refused.text) == (422, "no such part")
        assert push(worker, asked("n2", user="")).status_code == 500
        assert push(worker, asked("n2", user=""), attempt=2).status_code == 202
    assert answers == []


def test_an_answer_that_does_not_arrive_is_brought_with_the_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_PAUSES_S", ())
    done: list[str] = []
    heard = Heard()
    url = heard.listener.url

    def handle(request: ReceivedMessage) -> str:
        done.append(request.notification_id)
        return "<done/>"

    with working(handle) as worker:
        heard.listener.stop()  # no process listens there any more
        assert push(worker, asked(user=url)).status_code == 424
        assert push(worker, asked(user=url), attempt=2).status_code == 424
        back = Heard(port=int(url.rstrip("/").rpartition(":")[2]))
        with back.listener:
            assert push(worker, asked(user=url), attempt=3).status_code == 202
            assert push(worker, asked(user=url), attempt=4).status_code == 202
    assert done == ["n1"]
    assert back.answers == [("urn:n1", b"<done/>")]


def test_a_listener_that_wants_everything_once_drops_repeats() -> None:
    seen: list[tuple[str, int]] = []
    failing = [True]

    def handle(message: ReceivedMessage) -> None:
        seen.append((message.notification_id, message.sequence))
        if failing.pop() if failing else False:
            raise RuntimeError

    with Listener(handle, once=True) as listener:
        envelope = Envelope(Subscription("s", EndpointReference(listener.url)))
        requested = [envelope.request([asked("n1")], attempt) for attempt in (1, 2, 3)]
        assert [post(each, listener.url).status_code for each in requested] == [500, 202, 202]
        assert post(envelope.request([asked("n2")], 4), listener.url).status_code == 202
    assert seen == [("n1", 0), ("n1", 1), ("n2", 3)]


def test_an_answer_through_a_pull_point_is_a_notification_that_names_its_request() -> None:
    told: list[ReceivedMessage] = []
    with working(lambda _: None) as worker, Listener(told.append) as listener:
        messages: list[ReceivedMessage] = []
        worker._handle_request = messages.append
        push(worker, asked(user=""))
        (request,) = messages
        asker = Asker("n1", "urn:n1", RemotePullPoint(PULL_POINT))
        headers, body = reply_to(asker, request, "<done/>")
        assert requests.post(listener.url, body, headers=headers, timeout=120).status_code == 202
    assert [(each.relates_to, each.payload, each.topic) for each in told] == [("urn:n1", b"<done/>", "{urn:t}jobs")]
    assert b"<wsnt:Notify" in body


ROW = Attempt("n1", "queue:jobs", TopicPath("jobs"), "", 3, "", "dead", 1, 2, 0.0, "invalid")


@pytest.mark.parametrize("address", ["", PULL_POINT])
def test_a_fault_of_the_engine_is_raised_where_the_answer_is_awaited(address: str) -> None:
    with Listener() as listener:
        listener.replies.begin("urn:n1")
        notification = asked(user=address or listener.url)
        assert notification.reply_to is not None
        post(fault_of(notification, notification.reply_to, ROW), listener.url)
        with pytest.raises(FaultReceived, match="refused this") as caught:
            listener.replies.wait("urn:n1", time.monotonic() + 120)
    assert caught.value.fault == "Invalid"


class Broker:
    """A pull point whose messages the test says."""

    def __init__(self) -> None:
        self.made = self.destroyed = 0
        self.answers: list[list[ReceivedMessage] | ClientError] = []
        self.asked = threading.Event()

    def create_pull_point(self) -> RemotePullPoint:
        self.made += 1
        return RemotePullPoint(PULL_POINT)

    def get_messages(
        self, pull_point: RemotePullPoint, maximum: int | None = None, *, wait_s: float | None = None
    ) -> list[ReceivedMessage]:
        self.asked.set()
        if not self.answers:
            time.sleep(0.01)
            return []
        answer = self.answers.pop(0)
        if isinstance(answer, ClientError):
            raise answer
        return answer

    def destroy_pull_point(self, pull_point: RemotePullPoint) -> None:
        self.destroyed += 1


def test_answers_are_fetched_while_any_is_awaited() -> None:
    broker = Broker()
    replies = PulledReplies(broker)
    assert broker.made == 0
    assert replies.address == replies.address
    replies.begin("urn:1")
    broker.answers += [BrokerUnreachable("away"), [ReceivedMessage(b"<other/>", relates_to="urn:0")]]
    broker.answers.append([ReceivedMessage(b"<done/>", relates_to="urn:1")])
    assert replies.wait("urn:1", time.monotonic() + 120) == b"<done/>"
    replies.end("urn:1")
    replies.begin("urn:2")
    with pytest.raises(TimeoutError):
        replies.wait("urn:2", time.monotonic())
    replies.close()
    assert (broker.made, broker.destroyed) == (1, 1)
    with pytest.raises(ClientError):
        replies.wait("urn:2", time.monotonic() + 120)


def test_a_pull_point_that_is_gone_is_said_at_once_and_made_anew() -> None:
    broker = Broker()
    replies = PulledReplies(broker)
    _ = replies.address
    broker.answers.append(FaultReceived("no such pull point", "ResourceUnknownFault"))
    replies.begin("urn:1")
    with pytest.raises(FaultReceived):
        replies.wait("urn:1", time.monotonic() + 120)
    _ = replies.address
    assert broker.made == 2
    replies.close()


class Reports:
    """A transport, and the results that it took to the broker."""

    def __init__(self) -> None:
        self.taken: SimpleQueue[tuple[str, Any]] = SimpleQueue()

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> HttpAnswer:
        self.taken.put((url, json.loads(body)))
        return HttpAnswer(204)


def push_for_later(worker: Worker, name: str, **headers: str) -> requests.Response:
    request = Envelope(SERVER).request([asked(name, user="")], 1)
    named = {"Arborcast-Callback": f"http://broker/results/{name}", "Arborcast-Push": f"p-{name}", **headers}
    return requests.post(worker.url, request.body, headers={**dict(request.headers), **named}, timeout=120)


def test_a_worker_acknowledges_a_request_before_it_is_done_and_reports_its_result() -> None:
    reports, go_on = Reports(), threading.Event()

    def work(request: ReceivedMessage) -> None:
        assert go_on.wait(120)
        if request.notification_id == "invalid":
            raise Invalid("which part?")
        if request.notification_id == "broken":
            raise RuntimeError("no paper")

    with Worker(work, capacity=3, transport=reports, later=True) as worker:
        for name in ("done", "invalid", "broken"):
            answer = push_for_later(worker, name)
            assert (answer.status_code, answer.headers.get("Arborcast-Result")) == (202, "later")
        assert reports.taken.empty()
        go_on.set()
        taken = dict(reports.taken.get(timeout=120) for _ in range(3))
    assert taken == {
        "http://broker/results/done": {"push": "p-done", "state": "delivered", "text": ""},
        "http://broker/results/invalid": {"push": "p-invalid", "state": "refused", "text": "which part?"},
        "http://broker/results/broken": {"push": "p-broken", "state": "failed", "text": "the server failed"},
    }


def test_without_an_address_for_the_result_a_request_is_acknowledged_when_it_is_done() -> None:
    done: list[str] = []

    def work(request: ReceivedMessage) -> None:
        done.append(request.notification_id)

    with Worker(work, later=True) as worker:
        answer = push(worker, asked("n1", user=""))
        assert (answer.status_code, answer.headers.get("Arborcast-Result"), done) == (202, None, ["n1"])


def test_a_repetition_of_a_request_that_is_being_done_waits_for_its_end() -> None:
    reports, go_on = Reports(), threading.Event()
    begun: SimpleQueue[str] = SimpleQueue()

    def work(request: ReceivedMessage) -> None:
        begun.put(request.notification_id)
        assert go_on.wait(120)

    with Worker(work, transport=reports, later=True) as worker:
        push_for_later(worker, "n1")
        assert begun.get(timeout=120) == "n1"
        push_for_later(worker, "n1", **{"Arborcast-Sequence": "1"})
        go_on.set()
        states = [reports.taken.get(timeout=120)[1]["state"] for _ in range(2)]
    assert (states, begun.empty()) == (["delivered", "delivered"], True)
