"""Spans of the real job, made in Spark's workers, at a collector. Skipped where the extra `otel` is not installed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.dispatch_job import logs, subscription
from tests.support.dispatch_process import running_job
from tests.support.receiver import Receiver
from topic_model.notifications import Notification, encode
from topic_model.settings import KafkaSettings
from topic_model.topics import TopicPath

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed")

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_push_is_a_span_at_the_collector_and_its_receiver_is_told_of_it(
    tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    with Receiver() as receiver, logs(kafka_settings) as log:
        log.subscribe(subscription("s", receiver.url("/in"), "a//."))
        with running_job(tmp_path, kafka_settings, {"tracing.endpoint": receiver.url("/v1/traces")}) as job:
            context = f"00-{TRACE}-{SPAN}-01"
            key, value = encode(
                Notification("n1", TopicPath("a/b"), b"<x/>", int(time.time() * 1000), traceparent=context)
            )
            log.raw(value, key)
            deadline = time.monotonic() + 60
            while not (receiver.received("/in") and receiver.received("/v1/traces")):
                assert time.monotonic() < deadline, job.log()
                time.sleep(0.05)
            told = receiver.received("/in")[0].headers["traceparent"]
            spans = receiver.received("/v1/traces")[0].body
    assert told[3:35] == TRACE
    assert told != context, "that of the push, not of the publisher"
    for each in (TRACE, SPAN, told[36:52]):
        assert bytes.fromhex(each) in spans
    assert b"arborcast-dispatch" in spans
