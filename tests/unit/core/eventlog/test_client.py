from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import MagicMock, create_autospec, patch

import pytest
from kafka import codec, errors
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, TopicAuthorizationFailedError

from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.core.eventlog import client, writers
from arborcast.core.eventlog.client import Admin, PartitionState, as_infrastructure_error, partition_of_key, translated
from arborcast.core.eventlog.topics import ensure_topics, specifications
from arborcast.core.eventlog.writers import LogWriter
from arborcast.core.settings import KafkaSettings


@pytest.mark.parametrize(
    ("key", "murmur2"), [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)]
)
def test_keys_have_the_partitions_of_all_kafka_clients(key: bytes, murmur2: int) -> None:
    # The hash values are those of Kafka's own (Java) tests.
    assert partition_of_key(key, 7) == (murmur2 & 0x7FFFFFFF) % 7


def test_every_exception_of_the_library_is_caught() -> None:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert [cls for cls in found if not issubclass(cls, errors.KafkaError)] == []
    again = (
        errors.KafkaTimeoutError,
        errors.NotEnoughReplicasError,
        errors.KafkaConnectionError,
        errors.TopicAuthorizationFailedError,
        errors.SaslAuthenticationFailedError,
        OSError,
        RuntimeError,  # without a controller
    )
    never = (errors.UnsupportedSaslMechanismError, errors.MessageSizeTooLargeError)
    for kind in (*again, *never):
        with (
            pytest.raises(InfrastructureError, match="writing went wrong: ") as caught,
            translated("writing went wrong"),
        ):
            raise kind("so")
        for error in (caught.value, as_infrastructure_error("x", kind("so"))):
            assert (error.retry_after is not None) is (kind in again), kind


def test_credentials_and_authorities_reach_the_library() -> None:
    settings = KafkaSettings(
        bootstrap_servers=" a:1, b:2 ,",
        security_protocol="SASL_SSL",
        ssl_ca_file="/ca.pem",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="u",
        sasl_password="p",  # noqa: S106  # not a real password
    )
    expected = {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "SASL_SSL",
        "ssl_cafile": "/ca.pem",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }
    assert {name: client._connection(settings)[name] for name in expected} == expected


def test_a_fetch_ends_within_the_shortest_request_timeout() -> None:
    """kafka-python refuses a longer one as a wrong configuration, which no retry repairs."""
    nowhere = KafkaSettings(bootstrap_servers="127.0.0.1:1", request_timeout_s=1)
    with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:1 does not answer: .*ECONNREFUSED") as caught:
        client.make_consumer(nowhere, wait_ms=2_000)
    assert caught.value.retry_after is not None


def test_the_logs_of_the_design() -> None:
    logs = {log.name: log for log in specifications(KafkaSettings(partitions=6, retention_hours=2, prefix="p."))}
    made = {name: (log.partitions, log.configs["cleanup.policy"]) for name, log in logs.items()}
    for name in ("retained", "control"):
        assert made[f"p.{name}"] == (1, "compact")
    for name in ("notifications", "attempts"):
        assert (made[f"p.{name}"], logs[f"p.{name}"].configs["retention.ms"]) == ((6, "delete"), "7200000")
    longest = int(logs["p.notifications"].configs["max.message.bytes"])
    for name in ("parked", "dead"):
        assert made[f"p.{name}"] == (6, "compact")
        assert int(logs[f"p.{name}"].configs["max.message.bytes"]) > longest, (
            "the longest notification fits when parked"
        )
    for log in specifications(KafkaSettings(max_record_bytes=256 * 1024 * 1024)):
        segment_bytes = int(log.configs.get("segment.bytes", 2**30))
        assert segment_bytes >= int(log.configs["max.message.bytes"]), f"Kafka refuses a larger record in {log.name}"


CONTROL = KafkaSettings().topic("control")
CONFIGS = dict(specifications(KafkaSettings())[0].configs)
ONE = {CONTROL: [PartitionState(1, 1, 1)]}


def ensured(
    configs: list[dict[str, dict[str, str]]],
    partitions: list[dict[str, list[PartitionState]]],
    current: dict[str, str] | None = None,
) -> MagicMock:
    """The client that checks the existing log `control`, with these descriptions one after the other; with its
    `current` configuration it alters the log."""
    admin: MagicMock = create_autospec(Admin, instance=True)
    admin.create_topics.return_value = set()
    admin.configs_of.side_effect = configs
    admin.partitions.side_effect = partitions
    admin.configs.return_value = current
    with patch("arborcast.core.eventlog.topics.Admin", return_value=admin):
        ensure_topics(KafkaSettings(request_timeout_s=60.0), only=["control"], alter=current is not None)
    return admin


def test_the_creation_of_a_topic_by_another_process_is_awaited() -> None:
    made = {CONTROL: CONFIGS}
    admin = ensured([{}, made, made], [{}, {}, {}, {}, ONE])
    assert (admin.configs_of.call_count, list(admin.create_topics.call_args.args[0])) == (3, [CONTROL])


def test_the_creation_of_existing_topics_is_not_requested() -> None:
    ensured([{CONTROL: CONFIGS}], [ONE, ONE]).create_topics.assert_not_called()


def test_segments_keep_room_for_records_from_before_a_reduction() -> None:
    """Kafka refuses a record above the size of a segment."""
    before = CONFIGS | {"max.message.bytes": str(2**27), "segment.bytes": str(2**27 + 2**14)}
    altered = ensured([{CONTROL: before}], [ONE, ONE], before).alter.call_args.args[1]
    assert altered == {"segment.bytes": str(2**27)}


@pytest.mark.parametrize(
    ("config", "partitions", "words"),
    [
        ({"cleanup.policy": "delete"}, 1, "=delete, compact is needed"),
        ({"cleanup.policy": "compact,delete"}, 1, "=compact,delete, compact is needed"),
        ({"max.message.bytes": "1048588"}, 1, "max.message.bytes=1048588, 8388608 is needed"),
        ({"compression.type": "zstd"}, 1, "compression.type=zstd, which cannot be read here"),
        ({}, 3, "has 3 partitions, it must have one"),
    ],
)
def test_an_existing_topic_with_an_unusable_configuration_is_refused(
    config: dict[str, str], partitions: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "has_zstd", lambda: False)
    with pytest.raises(ConfigError, match=words):
        ensured([{CONTROL: CONFIGS | config}], [{CONTROL: ONE[CONTROL] * partitions}] * 2)
    for readable in ("gzip", "producer", "uncompressed"):
        ensured([{CONTROL: CONFIGS | {"compression.type": readable}}], [ONE, ONE])


class PlayedProducer:
    """A producer that settles each record at once: with this failure, or at offset 7."""

    def __init__(self, failure: Exception | None = None, broken: bool = False) -> None:
        self.failure = failure
        self.broken = broken
        self.aborted = False

    def send(self, *_: object, **__: object) -> PlayedProducer:
        return self

    def add_callback(self, call: Callable[[object], object]) -> None:
        if self.failure is None:
            call(SimpleNamespace(offset=7))

    def add_errback(self, call: Callable[[BaseException], object]) -> None:
        if self.failure is not None:
            call(self.failure)

    def abort(self) -> None:
        self.aborted = True


def test_a_failure_of_the_broker_replaces_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    strict, sick = PlayedProducer(MessageSizeTooLargeError("too large")), PlayedProducer(KafkaTimeoutError("gone"))
    broken = PlayedProducer(TopicAuthorizationFailedError("control"), broken=True)
    producers = [strict, sick, broken, PlayedProducer()]
    monkeypatch.setattr(writers, "make_producer", lambda _: producers.pop(0))

    log = LogWriter(KafkaSettings(), "control")
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="too large"):
            log.append_encoded([(b"k", b"v")])
    assert (strict.aborted, len(producers)) == (False, 3)

    log = LogWriter(KafkaSettings(), "control")
    for failed in (sick, broken):
        with pytest.raises(InfrastructureError, match="the control log cannot be written"):
            log.append_encoded([(b"k", b"v")])
        assert failed.aborted
    assert log.append_encoded([(b"k", b"v")]) == 7
