"""The page of a subscriber, with a real Kafka, a real job and the command that prints its link."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from arborcast.admin import operations, receiver_page
from arborcast.admin.control_log import read_control
from arborcast.admin.messages import last_attempts
from arborcast.admin.operations import OperationFilter
from arborcast.core.errors import ConfigError, NotFound
from arborcast.core.security.keyring import KeyFile, add_key
from arborcast.core.settings import KafkaSettings
from tests.support.command import Shell
from tests.support.dispatch_job import Logs, Own, subscription
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


@pytest.mark.spark
def test_a_test_notification_and_the_last_attempts(own: Own, receiver: Receiver) -> None:
    kafka, name = own.job.settings.kafka, own.name("mine")
    own.subscribe("mine", receiver.url("/half"), "a")
    own.subscribe("other", receiver.url("/other"), "a")
    mine = read_control(kafka).table.get(name)
    assert mine is not None
    sent = receiver_page.send_test(kafka, mine)
    recorded = operations.listed(kafka, OperationFilter(), 10)[0][0]
    assert (recorded.who, recorded.what) == (f"receiver of {name}", "subscriptions test")
    assert (recorded.subject, recorded.result) == (name, f"notification {sent}")

    def last(most: int) -> list[tuple[str, str, int]]:
        return [(row.notification, row.state, row.status) for row in last_attempts(kafka, name, most).attempts]

    wait_until(lambda: last(10) == [(sent, "delivered", 202), (sent, "parked", 500)])
    assert last(1) == [(sent, "delivered", 202)]
    assert receiver.received("/other") == []
    assert last_attempts(kafka, own.name("other"), 10).attempts == ()


def test_the_command_prints_a_link_that_opens_the_page(
    log: Logs, kafka_settings: KafkaSettings, tmp_path: Path
) -> None:
    log.subscribe(subscription("mine", "http://r/", "a"), subscription("other", "http://r/", "a"))
    run = Shell(tmp_path / "arborcast.toml", kafka_settings, "subscriptions", "link")
    keys = tmp_path / "home" / "secrets.keys"
    keys.parent.mkdir()
    add_key(keys, "k1")
    url = json.loads(run("mine", "--days", "1", "--json"))["link"]
    assert url.startswith("http://127.0.0.1:8088/receiver/mine/")
    assert run("mine").startswith("http://127.0.0.1:8088/receiver/mine/")
    _, _, name, text = urlsplit(url).path.split("/")
    marks, control = KeyFile(keys), read_control(kafka_settings)
    assert receiver_page.linked(marks, control, name, text, time.time()).id == "mine"
    with pytest.raises(NotFound):
        receiver_page.linked(marks, control, "other", text, time.time())
    log.end("mine")
    with pytest.raises(NotFound):
        receiver_page.linked(marks, read_control(kafka_settings), name, text, time.time())
    with pytest.raises(ConfigError, match="up to 90 days"):
        run("other", "--days", "365")
