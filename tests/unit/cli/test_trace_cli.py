"""`arborcast trace` and `why`, over tables of a stopped engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from arborcast.admin.trace import UnknownNotification
from arborcast.dispatch.tables import NOTIFICATIONS, RETRIES
from tests.support.command import Shell
from tests.support.table_rows import NOON, attempt, fill, record

pytestmark = pytest.mark.slow

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`good` got the notification, `bad` waits for it."""
    error = {"error": "server-error", "detail": "HTTP 503", "status": 503}
    record(tmp_path, attempt("n1", "good", "delivered", 40), attempt("n1", "bad", "parked", 60, **error))
    facts = {"publisher": "http://me/", "traceparent": TRACE, "priority": 5}
    notification = {"notification": "n1", "topic": "a/b", "logged_at": NOON, "payload": b"<x/>", **facts}
    fill(tmp_path, NOTIFICATIONS, [notification])
    fill(tmp_path, RETRIES, [{"delivery": "1", "notification": "n1", "subscription": "bad"}])
    monkeypatch.setenv("ARBORCAST_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("ARBORCAST_KAFKA_REQUEST_TIMEOUT_S", "1")
    monkeypatch.setenv("ARBORCAST_HOME", str(tmp_path))
    return tmp_path


EXPECTED = f"""
topic a/b
payload <x/>
trace {"a" * 32} {TRACE}
2026-01-02 12:00:00.000 +0 ms accepted by the gateway from http://me/, with priority 5
2026-01-02 12:00:00.000 +0 ms stored in the log partition 0, offset 0
1 delivered, 1 pending
time after step where detail
2026-01-02 12:00:00.060 +60 ms attempt 1: HTTP 503 after 10 ms http://bad/ (server-error)
pending bad queued after earlier messages: HTTP 503
2026-01-02 12:00:00.040 +40 ms attempt 1: HTTP 202 after 10 ms http://good/
delivered good delivered on attempt 1
""".strip().splitlines()


@pytest.mark.usefixtures("home")
def test_trace() -> None:
    lines = [" ".join(each.split()) for each in Shell().run("trace", "n1", COLUMNS="200").output.splitlines()]
    assert [each for each in EXPECTED if each not in lines] == []
    ends = [each for each in lines if each.startswith(("pending bad", "delivered good"))]
    assert ends[0].startswith("pending"), "failures first"
    assert any(each.startswith("note: the logs could not be read") for each in lines)
    narrow = Shell().run("trace", "n1", COLUMNS="80").output
    assert "2026-01-02 12:00:00.060  +60 ms" in narrow, "a time in full"
    assert "…" not in narrow


@pytest.mark.usefixtures("home")
def test_why_takes_the_id_or_the_address_of_a_subscription() -> None:
    for name in ("good", "http://broker.example/wsn/subscriptions/good"):
        (delivery,) = Shell().json("why", "--subscription", name, "--notification", "n1")["deliveries"]
        assert (delivery["subscription"], delivery["outcome"]) == ("good", "delivered")
        assert delivery["why"] == "delivered on attempt 1"
        assert delivery["steps"][0]["at"] == "2026-01-02T12:00:00.040000+00:00"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    ("notification", "message"),
    [
        ("n2", "there is no record of a notification n2.*32 hexadecimal digits"),
        ("018bcfe5687b7000b000000000000000", "the id was made at 2023-11-14 22:13:20 UTC"),
    ],
)
def test_an_unknown_notification(notification: str, message: str) -> None:
    with pytest.raises(UnknownNotification, match=f"(?s){message}"):
        Shell()("trace", notification)
