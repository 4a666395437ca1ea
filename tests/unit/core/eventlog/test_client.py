from __future__ import annotations

import os
import socket

import pytest
from kafka import errors

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog import client
from arborcast.core.eventlog.client import as_infrastructure_error, partition_of_key, translated
from arborcast.core.eventlog.client_fixes import ClosingSocket
from arborcast.core.eventlog.topics import specifications
from arborcast.core.settings import KafkaSettings


@pytest.mark.parametrize(
    ("key", "murmur2"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_keys_go_where_every_kafka_client_puts_them(key: bytes, murmur2: int) -> None:
    # The hash values are those of Kafka's own (Java) tests.
    assert partition_of_key(key, 7) == (murmur2 & 0x7FFFFFFF) % 7


@pytest.mark.parametrize(
    ("error", "try_again"),
    [
        (errors.KafkaTimeoutError("slow"), True),
        (errors.NotEnoughReplicasError("one left"), True),
        (errors.KafkaConnectionError("refused"), True),
        (errors.TopicAuthorizationFailedError("no"), False),
        (errors.SaslAuthenticationFailedError("who"), False),
        (errors.MessageSizeTooLargeError("big"), False),
        (OSError("no such certificate"), True),
    ],
)
def test_exceptions_of_the_library_do_not_get_out(error: Exception, try_again: bool) -> None:
    with pytest.raises(InfrastructureError, match="writing went wrong: ") as caught, translated("writing went wrong"):
        raise error
    assert (caught.value.retry_after is not None) is try_again
    assert (as_infrastructure_error("x", error).retry_after is not None) is try_again


def test_every_exception_of_the_library_is_caught() -> None:
    found = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(found) > 50
    assert [cls for cls in found if not issubclass(cls, errors.KafkaError)] == []


def test_credentials_and_authorities_reach_the_library() -> None:
    settings = KafkaSettings(
        bootstrap_servers=" a:1, b:2 ,",
        security_protocol="SASL_SSL",
        ssl_ca_file="/ca.pem",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="u",
        sasl_password="p",  # noqa: S106  # no password of anybody
    )
    arguments = client._connection(settings)
    assert arguments["bootstrap_servers"] == ["a:1", "b:2"]
    assert arguments["security_protocol"] == "SASL_SSL"
    assert arguments["ssl_cafile"] == "/ca.pem"
    assert (arguments["sasl_mechanism"], arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == (
        "SCRAM-SHA-512",
        "u",
        "p",
    )


def test_the_logs_are_what_the_design_says() -> None:
    settings = KafkaSettings(partitions=6, retention_hours=2, prefix="p.")
    logs = {log.name.removeprefix("p."): log for log in specifications(settings)}
    control, notifications, attempts = logs["control"], logs["notifications"], logs["attempts"]
    assert (logs["retained"].partitions, logs["retained"].configs["cleanup.policy"]) == (1, "compact")
    assert (control.name, control.partitions, control.configs["cleanup.policy"]) == ("p.control", 1, "compact")
    for log, name in ((notifications, "p.notifications"), (attempts, "p.attempts")):
        assert (log.name, log.partitions) == (name, 6)
        assert (log.configs["cleanup.policy"], log.configs["retention.ms"]) == ("delete", "7200000")
    for name in ("parked", "dead"):
        assert (logs[name].partitions, logs[name].configs["cleanup.policy"]) == (6, "compact")
        # A notification as long as may be still fits when it is parked.
        assert int(logs[name].configs["max.message.bytes"]) > int(notifications.configs["max.message.bytes"])


def test_a_socket_that_a_client_has_forgotten_is_closed_without_a_warning() -> None:
    sock = ClosingSocket("direct://").socket(socket.AF_INET)
    number = sock.fileno()
    del sock
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
