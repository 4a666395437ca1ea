"""The console as a process, over a real Kafka."""

from __future__ import annotations

import csv
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from arborcast.admin.control_log import read_tree
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.logs.dead_letters import DeadLetter
from arborcast.dispatch.logs.parked import DeadLetterLog, Delivery, Place
from arborcast.engine.processes.processes import resident
from arborcast.engine.settings.loading import toml
from arborcast.ingest.access.users_file import made, write_users
from arborcast.topic_model.control_log import ControlLog
from arborcast.topic_model.records.control import SubscriptionRecord, TopicPolicy, TopicRecord
from arborcast.topic_model.records.notifications import Notification
from arborcast.topic_model.topics import TopicPath
from tests.support.certificates import make_certificates
from tests.support.console import submitted
from tests.support.console_process import running_console, trust
from tests.support.routing import make_subscription
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

PATIENCE_S = 120.0

PASSWORD = "what only she knows"  # noqa: S105


@pytest.fixture
def log(kafka_settings: KafkaSettings) -> Iterator[ControlLog]:
    with closing(ControlLog(kafka_settings)) as log:
        log.ensure_created()
        yield log


def test_topics_are_defined_and_deliveries_are_shown(
    tmp_path: Path, kafka_settings: KafkaSettings, log: ControlLog
) -> None:
    log.append([TopicRecord(TopicPath("a/b"), code="1")])
    with (
        running_console(tmp_path, kafka_settings) as (url, process),
        httpx.Client(base_url=url, timeout=PATIENCE_S) as browser,
    ):
        page = browser.get("/topics?at=a&do=add").raise_for_status()
        page = submitted(browser, page, "/topics/put", name="c", priority="7")
        page = submitted(browser, browser.get("/topics/review"), "/topics/save")
        assert "Saved: 1 added" in page.text
        assert read_tree(kafka_settings).policy(TopicPath("a/c")) == TopicPolicy(priority=7)

        log.append([TopicRecord(TopicPath("elsewhere"))])
        wait_until(lambda: "elsewhere" in browser.get("/topics").text, "the page shows it", timeout_s=PATIENCE_S)

        page = browser.get("/topics?at=a/c")
        log.append([TopicRecord(TopicPath("a/c"), policy=TopicPolicy(priority=8))])
        submitted(browser, page, "/topics/put", priority="9")
        # Without a wait: a save reads earlier records of the log first.
        page = submitted(browser, browser.get("/topics/review"), "/topics/save")
        assert page.status_code == 409
        assert read_tree(kafka_settings).policy(TopicPath("a/c")).priority == 8

        # The memory of a question must be released.
        assert browser.get("/deliveries/dead").status_code == 200
        assert resident(process) < 64 * 2**20

        log.append([SubscriptionRecord(make_subscription("s1", "a", consumer="http://here.example/"))])
        for path, shown in (
            ("waiting", "No pending deliveries"),
            ("dead", "No dead letters"),
            ("audit?since=1h", "All accounted for"),
        ):
            assert shown in browser.get(f"/deliveries/{path}").text
        assert "there is no record of a notification 0123" in browser.get("/deliveries?notification=0123").text
        wait_until(lambda: browser.get("/subscriptions/s1").status_code == 200, "it is known", timeout_s=PATIENCE_S)
        page = submitted(browser, browser.get("/subscriptions/s1"), "/subscriptions/act", action="pause")
        assert "1 subscription paused" in page.text
        # With the modules for tables and audits, which are loaded once.
        assert resident(process) < 140 * 2**20

        # Idle connections do not block other visitors.
        with ExitStack() as held:
            for _ in range(300):
                address = ("127.0.0.1", httpx.URL(url).port or 0)
                held.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            assert httpx.get(f"{url}/topics", timeout=PATIENCE_S).status_code == 200


def test_a_long_list_is_a_file_and_takes_no_memory(
    tmp_path: Path, kafka_settings: KafkaSettings, log: ControlLog
) -> None:
    made = 5_000
    log.append([SubscriptionRecord(make_subscription("s1", "a", consumer="http://here.example/"))])
    with closing(DeadLetterLog(kafka_settings)) as dead:
        for number in range(made):
            message = Notification(f"n{number}", TopicPath("a"), b"<x/>", 1)
            letter = DeadLetter("s1", "http://here.example/", message, "dead", number // 2, 6, "connect", "=1" * 1_700)
            dead.write_dead_letter(Delivery("s1", Place(0, 0, number)), letter)
        dead.settle(PATIENCE_S)
    with (
        running_console(tmp_path, kafka_settings) as (url, process),
        httpx.Client(base_url=url, timeout=PATIENCE_S) as browser,
    ):
        # With the view of the log, which is loaded once.
        assert "Showing 100 of 5,000" in browser.get("/deliveries/dead").text
        before = resident(process)
        with browser.stream("GET", "/deliveries/dead?topic=a&format=csv") as answer:
            answer.encoding = "utf-8-sig"
            found = [row["notification"] for row in csv.DictReader(answer.iter_lines())]
            size = answer.num_bytes_downloaded
        assert found == [f"n{number}" for number in reversed(range(made))]
        assert size > 16 * 2**20
        assert resident(process) - before < size / 2
        page = submitted(browser, browser.get("/deliveries/dead?reason=connect"), "/views", name="refused")
        assert page.url.query == b"reason=connect"
    with running_console(tmp_path, kafka_settings) as (url, _):
        assert "refused" in httpx.get(f"{url}/deliveries/dead", timeout=PATIENCE_S).text, (
            "after a restart, in another browser"
        )


def test_users_from_the_network_sign_in_over_tls(
    tmp_path: Path, kafka_settings: KafkaSettings, log: ControlLog
) -> None:
    log.append([TopicRecord(TopicPath("a/b"))])
    write_users({"anna": made("anna", PASSWORD, frozenset(), keep_clear=False)}, tmp_path / "users.toml")
    tls = make_certificates(tmp_path)
    lines = (
        "[access]",
        'methods = "basic"',
        "[tls]",
        f"certificate_file = {toml(tls.certificate('server'))}",
        f"key_file = {toml(tls.key('server'))}",
        'minimum = "1.3"',
    )
    with (
        running_console(tmp_path, kafka_settings, *lines, host="0.0.0.0", tls=tls) as (url, _),  # noqa: S104  # requests use loopback
        httpx.Client(base_url=url, verify=trust(tls), timeout=PATIENCE_S) as browser,
    ):
        older = ssl.create_default_context(cafile=tls.authority)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/sign-in", verify=older)
        page = browser.get("/topics", follow_redirects=True)
        assert page.url.path == "/sign-in"
        assert "Secure" in page.history[0].headers["set-cookie"]
        page = submitted(browser, page, "/sign-in", name="anna", password="wrong")  # noqa: S106
        assert page.status_code == 403
        page = submitted(browser, page, "/sign-in", name="anna", password=PASSWORD)
        assert page.url.path == "/topics"
        assert "anna" in page.text
        # Without a policy all users may read, and none may write.
        assert "New root topic" not in page.text
