"""Servers of work queues over HTTP with pushes of the engine, and users that wait for their results."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
import requests

from arborcast.client import ClientError, FaultReceived
from arborcast.client.listener import Listener, ReceivedMessage
from arborcast.client.queues import worker as worker_module
from arborcast.client.queues.replies import PulledReplies
from arborcast.client.queues.worker import Invalid, Worker, reply_to
from arborcast.client.received import ReceivedPart, Requester
from arborcast.client.testing import Inbox, MemoryTransport
from arborcast.client.values import BrokerUnreachable, RemotePullPoint, RemoteSubscription, UnreadableAnswer
from arborcast.dispatch.delivery.envelope import Envelope
from arborcast.dispatch.delivery.transport.contract import PushRequest
from arborcast.dispatch.logs.attempts import Attempt
from arborcast.dispatch.queues.faults import fault_of
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.records.packages import Fragment
from arborcast.topic_model.subscriptions import EndpointReference, Subscription
from arborcast.topic_model.topics import TopicPath
from tests.support.waiting import wait_until

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


def post(request: PushRequest, url: str, headers: Mapping[str, str] | None = None) -> requests.Response:
    return requests.post(url, request.body, headers={**dict(request.headers), **(headers or {})}, timeout=120)


def push(
    worker: Worker, notification: Notification, attempt: int = 1, headers: Mapping[str, str] | None = None
) -> requests.Response:
    return post(Envelope(SERVER).request([notification], attempt), worker.url, headers)


class User(Inbox):
    """A user's listener."""

    @property
    def answers(self) -> list[tuple[str, bytes]]:
        return [(each.relates_to, each.payload) for each in self.messages]


@pytest.fixture
def user() -> Iterator[User]:
    with User() as user:
        yield user


def working(handle: Callable[[ReceivedMessage], str | bytes | None]) -> Worker:
    return Worker(handle, allow="127.0.0.0/8")


class Serves:
    """A broker's client whose subscriptions may expire, with its calls."""

    def __init__(self, broker: str = "http://127.0.0.1:8080") -> None:
        self._broker = broker
        self.calls: list[str] = []
        self.known = True

    def subscribe(self, topic: str | None, **named: object) -> RemoteSubscription:
        self.calls.append(f"subscribe for {named['lasts']}")
        return RemoteSubscription(f"{self._broker}/wsn/subscriptions/s")

    def renew(self, subscription: object, lasts: object) -> RemoteSubscription:
        self.calls.append(f"renew for {lasts}")
        if not self.known:
            raise FaultReceived("unknown", "ResourceUnknownFault")
        return RemoteSubscription(f"{self._broker}/wsn/subscriptions/s")

    def proof_for(self, address: str) -> dict[str, str]:
        return {}


def test_the_subscription_of_a_worker_is_renewed() -> None:
    client, lease = Serves(), timedelta(milliseconds=100)
    with Worker(lambda _: None, lease=lease) as worker:
        worker.serve(client, "jobs")
        wait_until(lambda: len(client.calls) >= 3)
    assert client.calls[:3] == ["subscribe for 0:00:00.100000", "renew for 0:00:00.100000", "renew for 0:00:00.100000"]


@pytest.mark.parametrize("passed_s", [3_601, -7_200], ids=["expired", "put back"])
def test_a_worker_subscribes_again_after_an_expiry_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, passed_s: int
) -> None:
    """Where the clock was put back, it may have expired."""
    client, now = Serves(), [10_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with Worker(lambda _: None, lease=timedelta(hours=1)) as worker:
        worker.serve(client, "jobs")
        client.known = False
        now[0] += passed_s
        for _ in range(3):
            worker.leases.renew()
    calls = [each.split()[0] for each in client.calls]
    assert calls == ["subscribe", "renew", "subscribe", "renew"], "the second one was unsubscribed"
    assert "its queue is no longer served" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "user.example"])
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
def test_answers_go_to_permitted_networks_only(
    user: User,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    brokers: tuple[str, ...],
    allow: str,
    answered: bool,
    host: str,
) -> None:
    """A user may send any URL. A refused one does not make the server repeat the request."""
    real = socket.getaddrinfo

    def resolve(name: str, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if name == "user.example" else name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    done: list[ReceivedMessage] = []
    with Worker(done.append, allow=allow) as worker:
        for broker in brokers:
            worker.serve(Serves(broker), "jobs")
        request = asked(user=user.url.replace("127.0.0.1", host))
        assert [push(worker, request, attempt).status_code for attempt in (1, 2)] == [202, 202]
    assert len(done) == 1
    assert bool(user.answers) is answered
    assert ("add its network" in caplog.text) is not answered


def test_answers_go_into_pull_points_of_a_private_broker() -> None:
    transport = MemoryTransport()
    with Worker(lambda _: None, transport=transport) as worker:
        worker.serve(Serves("http://10.0.0.5:8080"), "jobs")
        for number, url in enumerate(("http://10.0.0.5:8080/wsn/pullpoints/p", "http://10.0.0.5/wsn/pullpoints/p")):
            assert push(worker, asked(f"n{number}", url)).status_code == 202
    assert [each.url for each in transport.sent] == ["http://10.0.0.5:8080/wsn/pullpoints/p"]


def test_results_are_reported_to_a_broker_of_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    """A stranger may push a request with any address for its result."""
    reports, broker, go_on = MemoryTransport(), "http://10.0.0.5:8080", threading.Event()

    def work(_: ReceivedMessage) -> None:
        assert go_on.wait(120)

    with Worker(work, capacity=2, transport=reports, later=True) as worker:
        worker.serve(Serves(broker), "jobs")
        for name, address in (("n1", "http://10.0.0.6/admin?x=/results/"), ("n2", f"{broker}/results/x")):
            answer = push(worker, asked(name, user=""), headers={"Arborcast-Callback": address, "Arborcast-Push": name})
            assert answer.headers["Arborcast-Result"] == "later"
        go_on.set()
        wait_until(lambda: len(reports.sent) + caplog.text.count("the result of a request was not reported") == 2)
        assert "add its network" in caplog.text
    assert [each.url for each in reports.sent] == [f"{broker}/results/x"]


def test_requests_are_executed_answered_then_acknowledged(user: User) -> None:
    done: list[tuple[str, bytes, str | None]] = []

    def handle(request: ReceivedMessage) -> bytes | None:
        assert len(user.messages) < len(done) + 1
        done.append((request.notification_id, request.payload, request.topic))
        return None if request.notification_id == "silent" else b"<?xml version='1.0'?><done/>"

    with working(handle) as worker:
        request = asked(user=user.url)
        for attempt in (1, 2, 3):
            assert push(worker, request, attempt).status_code == 202
            assert user.answers == [("urn:n1", b"<done/>")]
            assert done == [("n1", b"<job/>", "{urn:t}jobs")], "a repetition is not executed again"
        # Without the number of the attempt, an operator requested another execution.
        assert push(worker, request).status_code == 202
        assert ([each[0] for each in done], len(user.messages)) == (["n1", "n1"], 2)
        assert push(worker, asked("silent", user.url)).status_code == 202
        assert user.answers[2][0] == "urn:silent"
        assert b"Done" in user.answers[2][1]
        assert push(worker, asked("n2", user="")).status_code == 202
    assert (len(done), len(user.messages)) == (4, 3), "no answer without a request for one"


@pytest.mark.parametrize("later", [False, True])
def test_a_repetition_waits_for_the_end_of_the_first_execution(later: bool) -> None:
    begun, go, done, reports = threading.Event(), threading.Event(), list[int](), MemoryTransport()
    named = {"Arborcast-Callback": "http://broker/results/x", "Arborcast-Push": "p"} if later else {}

    def handle(request: ReceivedMessage) -> None:
        begun.set()
        assert go.wait(120)
        done.append(request.sequence)

    with Worker(handle, transport=reports, later=later) as worker, ThreadPoolExecutor(3) as threads:
        pushes = []
        for attempt in (1, 2, 3):
            pushes.append(threads.submit(push, worker, asked(user=""), attempt, named))
            assert begun.wait(120)
            if later:
                assert pushes[-1].result(120).headers["Arborcast-Result"] == "later"
        go.set()
        assert [each.result(120).status_code for each in pushes] == [202] * 3
        wait_until(lambda: len(reports.sent) == 3 * later)
    assert (done, [json.loads(each.body)["state"] for each in reports.sent]) == ([0], ["delivered"] * (3 * later))


def test_invalid_requests_are_refused_and_failed_ones_repeated() -> None:
    handle = Mock(side_effect=[Invalid("no such part"), RuntimeError("no paper"), None])
    with working(handle) as worker:
        refused = push(worker, asked(user=""))
        assert (refused.status_code, refused.text) == (422, "no such part")
        assert push(worker, asked("n2", user="")).status_code == 500
        assert push(worker, asked("n2", user=""), attempt=2).status_code == 202
    assert handle.call_count == 3


def test_a_lost_answer_is_sent_again_at_the_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "_PAUSES_S", ())
    stopped, handle = User(), Mock(return_value="<done/>")
    request = asked(user=stopped.url)
    with working(handle) as worker:
        stopped.stop()  # no listener at the port
        assert [push(worker, request, attempt).status_code for attempt in (1, 2)] == [424, 424]
        with User(port=stopped.port) as back:
            assert [push(worker, request, attempt).status_code for attempt in (3, 4)] == [202, 202]
    assert (handle.call_count, back.answers) == (1, [("urn:n1", b"<done/>")])


def test_a_listener_with_once_drops_repetitions() -> None:
    handle = Mock(side_effect=[RuntimeError, None, None])
    with Listener(handle, once=True) as listener:
        envelope = Envelope(Subscription("s", EndpointReference(listener.url)))
        attempts = [("n1", 1), ("n1", 2), ("n1", 3), ("n2", 4)]
        requested = [envelope.request([asked(name)], attempt) for name, attempt in attempts]
        assert [post(each, listener.url).status_code for each in requested] == [500, 202, 202, 202]
    seen = [(message.notification_id, message.sequence) for (message,), _ in handle.call_args_list]
    assert seen == [("n1", 0), ("n1", 1), ("n2", 3)]


def test_an_answer_through_a_pull_point_names_its_request(user: User) -> None:
    request = ReceivedMessage(b"<job/>", TopicPath("{urn:t}jobs"))
    answer = reply_to(Requester("n1", "urn:n1", RemotePullPoint(PULL_POINT)), request, "<done/>")
    body, headers = answer.encode("1.1", "urn:a1")
    assert requests.post(user.url, body, headers=headers, timeout=120).status_code == 202
    assert (user.answers, user.messages[0].topic) == ([("urn:n1", b"<done/>")], "{urn:t}jobs")
    assert b"<wsnt:Notify" in body


@pytest.mark.parametrize("address", ["", PULL_POINT])
def test_a_fault_of_the_engine_is_raised_in_the_wait(address: str) -> None:
    row = Attempt("n1", "queue:jobs", TopicPath("jobs"), "", 3, "", "dead", 1, 2, 0.0, "invalid")
    with Listener() as listener:
        listener.replies.begin("urn:n1")
        notification = asked(user=address or listener.url)
        assert notification.reply_to is not None
        post(fault_of(notification, notification.reply_to, row), listener.url)
        with pytest.raises(FaultReceived, match="refused this") as caught:
            listener.replies.wait("urn:n1", time.monotonic() + 120)
    assert caught.value.fault == "Invalid"


class Broker:
    """A broker whose pull point returns these messages or errors, one after the other."""

    def __init__(self) -> None:
        self.made = self.destroyed = 0
        self.answers: list[list[ReceivedMessage] | ClientError] = []

    def create_pull_point(self) -> RemotePullPoint:
        self.made += 1
        return RemotePullPoint(PULL_POINT)

    def get_messages(
        self, pull_point: RemotePullPoint, maximum: int | None = None, *, wait_s: float | None = None
    ) -> list[ReceivedMessage]:
        if not self.answers:
            time.sleep(0.01)
            return []
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def destroy_pull_point(self, pull_point: RemotePullPoint) -> None:
        self.destroyed += 1


def test_answers_are_fetched_during_a_wait() -> None:
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
    # The pull point has ended: this wait fails, and the next request has another one.
    broker.answers.append(FaultReceived("no such pull point", "ResourceUnknownFault"))
    with pytest.raises(FaultReceived):
        replies.wait("urn:2", time.monotonic() + 120)
    assert replies.address
    broker.answers.append([ReceivedMessage(b"<do", part=ReceivedPart("m", Fragment(True, True, True, 0), b"<do"))])
    with pytest.raises(ClientError, match="could not be stored"):
        replies.wait("urn:2", time.monotonic() + 120)
    assert replies.address
    assert broker.made == 3
    replies.close()
    assert broker.destroyed == 1
    with pytest.raises(ClientError):
        replies.wait("urn:2", time.monotonic() + 120)


@pytest.mark.parametrize("error", [UnreadableAnswer("answered 502"), FaultReceived("too many requests", "", 429)])
def test_the_pull_point_of_answers_remains_after_a_failure_that_does_not_end_it(error: ClientError) -> None:
    broker = Broker()
    replies = PulledReplies(broker)
    assert replies.address
    broker.answers.append(error)
    replies.begin("urn:1")
    with pytest.raises(type(error)):
        replies.wait("urn:1", time.monotonic() + 120)
    replies.end("urn:1")
    assert replies.address
    broker.answers.append([ReceivedMessage(b"<done/>", relates_to="urn:2")])
    replies.begin("urn:2")
    assert replies.wait("urn:2", time.monotonic() + 120) == b"<done/>"
    replies.close()
    assert (broker.made, broker.destroyed) == (1, 1)


def test_a_worker_acknowledges_requests_and_reports_results_later() -> None:
    reports, go_on = MemoryTransport(), threading.Event()

    def work(request: ReceivedMessage) -> None:
        assert go_on.wait(120)
        if request.notification_id == "invalid":
            raise Invalid("which part?")
        if request.notification_id == "broken":
            raise RuntimeError("no paper")

    with Worker(work, capacity=3, transport=reports, later=True) as worker:
        for name in ("done", "invalid", "broken"):
            named = {"Arborcast-Callback": f"http://broker/results/{name}", "Arborcast-Push": f"p-{name}"}
            answer = push(worker, asked(name, user=""), headers=named)
            assert (answer.status_code, answer.headers.get("Arborcast-Result")) == (202, "later")
        assert reports.sent == []
        go_on.set()
        wait_until(lambda: len(reports.sent) == 3)
        assert {each.url: json.loads(each.body) for each in reports.sent} == {
            "http://broker/results/done": {"push": "p-done", "state": "delivered", "text": ""},
            "http://broker/results/invalid": {"push": "p-invalid", "state": "refused", "text": "which part?"},
            "http://broker/results/broken": {"push": "p-broken", "state": "failed", "text": "the worker failed"},
        }
        # Without an address for the result: acknowledged after the execution.
        answer = push(worker, asked("invalid", user=""))
        assert (answer.status_code, answer.headers.get("Arborcast-Result")) == (422, None)
