"""Signatures and credentials through the real job: decrypted in Spark's workers, and in no table."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.support.dispatch_job import attempt_rows, job_settings, logs, running, subscription
from tests.support.receiver import Receiver
from topic_model.errors import SignatureError
from topic_model.keyring import KeyFile, add_key
from topic_model.settings import KafkaSettings, SecretSettings
from topic_model.signatures import check
from topic_model.subscriptions import Protection, SigningSecret

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

KEY = b"a key of thirty-two bytes, whole"
TOKEN = b"Bearer hemlig-token-of-the-receiver"


def test_pushes_are_signed_and_carry_credentials(
    spark: SparkSession, tmp_path: Path, kafka_settings: KafkaSettings
) -> None:
    add_key(tmp_path / "keys", "k1")
    keys = KeyFile(tmp_path / "keys")
    settings = dataclasses.replace(
        job_settings(tmp_path, kafka_settings), secrets=SecretSettings(key_file=str(tmp_path / "keys"))
    )
    with Receiver() as receiver, logs(settings.kafka) as log:
        signed = subscription("signed", receiver.url("/signed"), "{urn:t}a")
        context = signed.sealing_context()
        protection = Protection((SigningSecret(keys.seal(KEY, context)),), keys.seal(TOKEN, context))
        log.subscribe(
            msgspec.structs.replace(signed, protection=protection),
            subscription("plain", receiver.url("/plain"), "{urn:t}a"),
        )
        with running(spark, settings):
            log.notify("{urn:t}a", b"<x/>")
            (pushed,) = receiver.wait_for(1, "/signed")
            (plain,) = receiver.wait_for(1, "/plain")
            rows = attempt_rows(settings, 2)
    check([KEY], pushed.headers, pushed.body, time.time())
    with pytest.raises(SignatureError):
        check([KEY], pushed.headers, pushed.body + b" ", time.time())
    assert pushed.headers["authorization"] == TOKEN.decode()
    assert not {"webhook-id", "webhook-signature", "authorization"} & set(plain.headers)
    assert {row["state"] for row in rows} == {"delivered"}
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert KEY not in content
            assert TOKEN.partition(b" ")[2] not in content, file
