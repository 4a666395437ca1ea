"""The page of a subscriber, with a real Kafka, a real job and the command that prints its link."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyspark.sql import SparkSession

from arborcast.admin import operations, receiver_page
from arborcast.admin.control_log import read_control
from arborcast.admin.messages import last_attempts
from arborcast.admin.operations import OperationFilter
from arborcast.core.errors import ConfigError, NotFound
from arborcast.core.security.keyring import KeyFile, add_key
from arborcast.core.settings import KafkaSettings
from arborcast.dispatch.settings import JobSettings
from tests.support.command import Shell
from tests.support.dispatch_job import Logs, running, subscription
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka


@pytest.mark.spark
def test_a_test_reaches_its_subscription_alone_and_the_last_attempts_are_shown(
    spark: SparkSession, settings: JobSettings, log: Logs, kafka_settings: KafkaSettings
) -> None:
    with Receiver() as receiver:
        log.subscribe(
            subscription("mine", receiver.url("/half"), "a"), subscription("other", receiver.url("/other"), "a")
        )
        with running(spark, settings):
            mine = read_control(kafka_settings).table.get("mine")
            assert mine is not None
            name = receiver_page.send_test(kafka_settings, mine)
            ((recorded,), _) = operations.listed(kafka_settings, OperationFilter(), 10)
            assert (recorded.who, recorded.what) == ("receiver of mine", "subscriptions test")
            assert (recorded.subject, recorded.result) == ("mine", f"notification {name}")

            def delivered() -> bool:
                rows = last_attempts(kafka_settings, "mine", 10).attempts
                return [(row.notification, row.state, row.status) for row in rows] == [
                    (name, "delivered", 202),
                    (name, "parked", 500),
                ]

            wait_until(delivered)
            assert receiver.received("/other") == []
            (newest,) = last_attempts(kafka_settings, "mine", 1).attempts
            assert newest.state == "delivered"
            assert last_attempts(kafka_settings, "other", 10).attempts == ()


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
