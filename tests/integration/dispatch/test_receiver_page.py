"""The page of a subscriber, with a real Kafka and the command that prints its link."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from arborcast.admin import operations, receiver_page
from arborcast.admin.control_log import read_control
from arborcast.admin.operations import OperationFilter
from arborcast.core.security.keyring import KeyFile, add_key
from arborcast.core.settings import KafkaSettings
from tests.support.broker import notifications_in
from tests.support.command import Shell
from tests.support.dispatch_job import Logs, subscription

pytestmark = pytest.mark.kafka


def test_a_printed_link_opens_the_page_with_its_test_notification(
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
    mine = receiver_page.linked(KeyFile(keys), read_control(kafka_settings), name, text, time.time())
    assert mine.id == "mine"
    sent = receiver_page.send_test(kafka_settings, mine)
    assert [(each.id, each.only) for each in notifications_in(kafka_settings)] == [(sent, "mine")]
    recorded = operations.listed(kafka_settings, OperationFilter(), 10)[0][0]
    assert (recorded.actor, recorded.action) == ("receiver of mine", "subscriptions test")
    assert (recorded.subject, recorded.result) == ("mine", f"notification {sent}")
