"""The only module that uses kafka-python: from the settings to its arguments, and from its exceptions to the engine's.

kafka-python has no types; the used part is declared here as protocols. `client_fixes` replaces some of its classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

from kafka import codec, errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from kafka.partitioner import murmur2

from arborcast.core.errors import InfrastructureError
from arborcast.core.eventlog.client_fixes import ClosingSocket, LeanConsumer, LeanProducer, built
from arborcast.core.eventlog.loop_producer import LoopProducer
from arborcast.core.reasons import reason_of
from arborcast.core.settings import KafkaSettings

# Reconnect to a restarted broker within seconds; kafka-python's default backs off up to 30 s.
_RECONNECT_BACKOFF_MAX_MS = 1_000

# Retry-After for usually transient failures: about the restart of a broker.
RETRY_AFTER_S = 2.0

# Permanent failures: wrong settings. Kafka's administrator may add a missing right or user at any time.
_FINAL = (
    errors.UnsupportedSaslMechanismError,
    errors.KafkaConfigurationError,
    errors.UnsupportedVersionError,
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
)


if TYPE_CHECKING:

    class TopicPartition(NamedTuple):
        topic: str
        partition: int

else:
    # kafka-python requires its own class.
    from kafka.structs import TopicPartition as TopicPartition


class Acknowledgement(Protocol):
    """The place of an acknowledged record."""

    offset: int
    partition: int


class RecordFuture(Protocol):
    """Settled by the producer's own thread, in which the callbacks run: they must be short and must not raise."""

    def add_callback(self, call: Callable[[Acknowledgement], object]) -> object: ...

    def add_errback(self, call: Callable[[BaseException], object]) -> object: ...


class Producer(Protocol):
    """The used part of KafkaProducer."""

    @property
    def broken(self) -> bool:
        """Whether it refuses all further records: kafka-python's does after a refusal by the broker, of any record."""

    def send(
        self, topic: str, value: bytes | None = None, key: bytes | None = None, *, partition: int | None = None
    ) -> RecordFuture: ...

    def partitions_for(self, topic: str) -> set[int]: ...

    def abort(self) -> None:
        """Close, and give up everything that is not acknowledged, without waiting."""

    def flush(self, timeout: float | None = None) -> None: ...

    def close(self, timeout: float | None = None) -> None: ...


class ConsumerRecord(Protocol):
    offset: int
    partition: int
    key: bytes
    value: bytes | None
    timestamp: int  # milliseconds since the epoch


class OffsetAtTime(Protocol):
    """The first record at or after a time."""

    offset: int


class Consumer(Protocol):
    """The used part of KafkaConsumer."""

    def assign(self, partitions: Sequence[TopicPartition]) -> None: ...

    def seek(self, partition: TopicPartition, offset: int) -> None: ...

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> Mapping[TopicPartition, Sequence[ConsumerRecord]]: ...

    def beginning_offsets(
        self, partitions: Sequence[TopicPartition], timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, int]: ...

    def end_offsets(
        self, partitions: Sequence[TopicPartition], timeout_ms: int | None = None
    ) -> Mapping[TopicPartition, int]: ...

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, OffsetAtTime | None]: ...

    def position(self, partition: TopicPartition) -> int: ...

    def highwater(self, partition: TopicPartition) -> int | None: ...

    def partitions_for_topic(self, topic: str) -> set[int] | None: ...

    def topic_id(self, topic: str) -> str: ...

    def close(self, autocommit: bool = True, timeout_ms: int | None = None) -> None: ...


class PartitionState(NamedTuple):
    leader: int
    """The id of the leading broker; -1 without one."""
    replicas: int
    in_sync: int


class _AdminClient(KafkaAdminClient):  # type: ignore[misc]  # the base has no types
    """KafkaAdminClient, whose result is an empty configuration if the right to read it is missing."""

    @classmethod
    def _describe_configs_process_responses(cls, responses: Sequence[Any], *config_filter: Any) -> Any:
        for result in (each for response in responses for each in response.results):
            if result.error_code == _DENIED.errno:
                raise _refused("DescribeConfigs", result.resource_name)
        return super()._describe_configs_process_responses(responses, *config_filter)


class Admin:
    """Administrative requests over KafkaAdminClient."""

    def __init__(self, kafka_settings: KafkaSettings) -> None:
        self._client = _connected(_AdminClient, kafka_settings, {})

    def create_topics(self, topics: Mapping[str, tuple[int, int, Mapping[str, str]]]) -> set[str]:
        """Create the missing ones of these topics, given with their partitions, replication and configuration, in one
        request, and wait until they have leaders; returns their names."""
        options = {
            name: {"num_partitions": partitions, "replication_factor": replication, "configs": dict(configs)}
            for name, (partitions, replication, configs) in topics.items()
        }
        created = set[str]()
        with translated("Kafka topics could not be created"):
            answer = self._client.create_topics(options, raise_errors=False)
        for topic in answer["topics"]:
            with translated(f"Kafka topic {topic['name']} could not be created"):
                error = errors.for_code(topic["error_code"])
                if error is _DENIED:
                    raise _refused("Create", topic["name"])
                if error is errors.NoError:
                    created.add(topic["name"])
                elif error is not errors.TopicAlreadyExistsError:
                    raise error(topic["error_message"])
        with translated("Kafka topics could not be created"):
            self._client.wait_for_topics(created)
        return created

    def configs(self, name: str) -> dict[str, str]:
        return self._configs(ConfigResourceType.TOPIC, name)

    def alter(self, name: str, configs: Mapping[str, str]) -> None:
        """Change these keys of the configuration of a topic."""
        what = f"the configuration of Kafka topic {name} could not be changed"
        with translated(what):
            resource = ConfigResource(ConfigResourceType.TOPIC, name, dict(configs))
            answer = self._client.alter_configs([resource], raise_on_unknown=False)
        result = answer["topic"][name]
        if result != "OK":
            raise InfrastructureError(f"{what}: {result}", RETRY_AFTER_S)

    def configs_of(self, names: Collection[str], keys: Collection[str]) -> dict[str, dict[str, str]]:
        """These keys of the configuration of each of these topics; none of a topic that does not exist."""
        with translated("the configuration of Kafka topics could not be read"):
            described = self._client.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, name, dict.fromkeys(keys)) for name in names],
                config_filter="all",
            )
        return {name: {key: found[key]["value"] for key in found} for name, found in described.get("topic", {}).items()}

    def partitions(self, names: Collection[str]) -> dict[str, list[PartitionState]]:
        """The state of each partition, in order, of those of these topics that exist."""
        with translated("Kafka topics could not be described"):
            topics = self._client.describe_topics(list(names))
        for topic in topics:
            if topic["error_code"] == _DENIED.errno:
                raise _refused("Describe", topic["name"])
        return {
            topic["name"]: [
                PartitionState(each["leader_id"], len(each["replica_nodes"]), len(each["isr_nodes"]))
                for each in sorted(topic["partitions"], key=lambda each: int(each["partition_index"]))
            ]
            for topic in topics
            if topic["error_code"] != errors.UnknownTopicOrPartitionError.errno
        }

    def brokers(self) -> list[int]:
        """The ids of the brokers that are up."""
        with translated("the Kafka cluster could not be described"):
            cluster = self._client.describe_cluster()
        return [each["broker_id"] for each in cluster["brokers"] if not each.get("is_fenced")]

    def broker_configs(self, broker: int) -> dict[str, str]:
        return self._configs(ConfigResourceType.BROKER, str(broker))

    def delete_before(self, name: str, partition: int, offset: int) -> None:
        """Make this the first offset of a partition, deleting earlier records."""
        with translated(f"old records of Kafka topic {name} could not be deleted"):
            self._client.delete_records({TopicPartition(name, partition): offset})

    def close(self) -> None:
        self._client.close()

    def _configs(self, kind: ConfigResourceType, name: str) -> dict[str, str]:
        what = kind.name.lower()
        with translated(f"the configuration of Kafka {what} {name} could not be read"):
            described = self._client.describe_configs([ConfigResource(kind, name)], config_filter="all")
        return {key: entry["value"] for key, entry in described[what][name].items()}


def make_producer(kafka_settings: KafkaSettings, *, linger_ms: int = 0) -> Producer:
    """A connected producer: acks=all, idempotent, every record settled within `request_timeout_s`.

    Raises InfrastructureError when no broker answers within `request_timeout_s`.
    """
    return cast(Producer, _connected(LeanProducer, kafka_settings, _producing(kafka_settings, linger_ms)))


def make_loop_producer(kafka_settings: KafkaSettings) -> LoopProducer:
    """As `make_producer`, for an event loop. Blocks until it is connected."""
    return _connected(LoopProducer, kafka_settings, _producing(kafka_settings))


def _producing(kafka_settings: KafkaSettings, linger_ms: int = 0) -> dict[str, Any]:
    total_ms = int(kafka_settings.request_timeout_s * 1000)
    return _CLIENT | {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": linger_ms,
        # With idempotence kafka-python has one batch per partition in progress: under load batches must grow.
        "batch_size": 256 * 1024,
        "max_request_size": kafka_settings.max_record_bytes,
        # Leaves time for one failed request and its repetition within the time promised to callers.
        "request_timeout_ms": max(total_ms // 2, 500),
        "delivery_timeout_ms": total_ms + linger_ms,
        "max_block_ms": total_ms,
    }


def can_read(compression_type: str) -> bool:
    """Whether records in this `compression.type` of a topic can be read: some need a package beside kafka-python."""
    return bool(getattr(codec, f"has_{compression_type}", lambda: True)())


_FETCH_BYTES = 8 * 1024 * 1024


def make_consumer(kafka_settings: KafkaSettings, *, wait_ms: int, max_records: int = 2_000) -> Consumer:
    """A connected consumer without group and without a default position: a lost position is an error, not a reset.

    `wait_ms` is the maximum time for which the broker holds an empty fetch. Requests on one connection are answered in
    order, so any other request (end_offsets) may wait as long.
    """
    timeout_ms = int(kafka_settings.request_timeout_s * 1000)
    arguments = _CLIENT | {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        # Half of a short timeout: kafka-python refuses a longer wait, and the request behind it needs time, too.
        "fetch_max_wait_ms": min(wait_ms, timeout_ms // 2),
        "max_poll_records": max_records,
        "max_partition_fetch_bytes": max(kafka_settings.max_record_bytes, 1024 * 1024),
        # For one response of a broker, over all partitions. A larger record is returned alone.
        "fetch_max_bytes": _FETCH_BYTES,
        "request_timeout_ms": timeout_ms,
    }
    return cast(Consumer, _connected(LeanConsumer, kafka_settings, arguments))


_Connected = TypeVar("_Connected", Producer, LoopProducer)


def producer_for(
    kafka_settings: KafkaSettings, topics: Sequence[str], connect: Callable[[KafkaSettings], _Connected]
) -> tuple[_Connected, list[int]]:
    """A producer that has the metadata of these topics, so that the first record does not wait, and their numbers of
    partitions. On failure it raises InfrastructureError and leaves no connection."""
    producer = connect(kafka_settings)
    try:
        partitions = []
        for topic in topics:
            with translated(f"Kafka topic {topic} cannot be looked up"):
                partitions.append(len(producer.partitions_for(topic)))
    except BaseException:
        producer.abort()
        raise
    return producer, partitions


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key by Kafka's default partitioner, for readers in any language. Records of subscriptions are
    spread by `dispatch.logs.attempts.partition_of_subscription`."""
    return int(murmur2(key) & 0x7FFFFFFF) % partitions


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn kafka-python's exceptions into InfrastructureError; `what` begins the message."""
    try:
        yield
    except (errors.KafkaError, RuntimeError) as error:  # the latter is KafkaAdminClient's without a controller
        raise as_infrastructure_error(what, error) from error
    except OSError as error:
        # kafka-python does not wrap errors of unreadable certificates and unresolvable names.
        where = f"{error.filename}: " if error.filename else ""
        raise InfrastructureError(f"{what}: {where}{reason_of(error)}", RETRY_AFTER_S) from error


_DENIED = errors.TopicAuthorizationFailedError


def _refused(operation: str, topic: str) -> InfrastructureError:
    return as_infrastructure_error(f"Kafka refuses {operation} on topic {topic}", _DENIED())


def as_infrastructure_error(what: str, error: BaseException) -> InfrastructureError:
    """The InfrastructureError for an exception of kafka-python."""
    retry_after = None if isinstance(error, _FINAL) else RETRY_AFTER_S
    return InfrastructureError(f"{what}: {meaning_of(error)}", retry_after)


_T = TypeVar("_T")


def _connected(factory: Callable[..., _T], kafka_settings: KafkaSettings, arguments: dict[str, Any]) -> _T:
    with translated(f"Kafka at {kafka_settings.bootstrap_servers} does not answer"):
        return built(factory, _connection(kafka_settings) | arguments)


# A client requests the leaders of partitions only at this interval, even when a broker is down. A single broker gets
# fewer requests.
_METADATA_AGE_MS = 3_000
_METADATA_AGE_ONE_BROKER_MS = 60_000

# Common arguments of producers and consumers.
_CLIENT: dict[str, Any] = {
    # A request for a missing log must not create it with the broker's defaults.
    "allow_auto_create_topics": False,
    # kafka-python's own metrics are unused, and computed for every record.
    "metrics_enabled": False,
}


def _connection(kafka_settings: KafkaSettings) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "bootstrap_servers": [s.strip() for s in kafka_settings.bootstrap_servers.split(",") if s.strip()],
        "client_id": "arborcast",
        "metadata_max_age_ms": _METADATA_AGE_ONE_BROKER_MS if kafka_settings.one_broker else _METADATA_AGE_MS,
        "security_protocol": kafka_settings.security_protocol,
        "bootstrap_timeout_ms": int(kafka_settings.request_timeout_s * 1000),
        "request_timeout_ms": int(kafka_settings.request_timeout_s * 1000),
        "reconnect_backoff_max_ms": _RECONNECT_BACKOFF_MAX_MS,
        "proxy_url": f"{ClosingSocket.SCHEMES[0]}://",
    }
    if kafka_settings.ssl_ca_file:
        arguments["ssl_cafile"] = kafka_settings.ssl_ca_file
    if kafka_settings.security_protocol in ("SSL", "SASL_SSL"):
        arguments["ssl_check_hostname"] = kafka_settings.ssl_check_hostname
    if kafka_settings.ssl_certificate_file:
        arguments["ssl_certfile"] = kafka_settings.ssl_certificate_file
        arguments["ssl_keyfile"] = kafka_settings.ssl_key_file or None
        arguments["ssl_password"] = kafka_settings.ssl_key_password or None
    if kafka_settings.sasl_mechanism:
        arguments["sasl_mechanism"] = kafka_settings.sasl_mechanism
        arguments["sasl_plain_username"] = kafka_settings.sasl_username
        arguments["sasl_plain_password"] = kafka_settings.sasl_password
    return arguments


# Kafka's errors and their meaning for operators.
_MEANING: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (
        (errors.SaslAuthenticationFailedError,),
        "it does not accept the credentials: see kafka.sasl_username, kafka.sasl_password and kafka.sasl_mechanism",
    ),
    ((errors.UnsupportedSaslMechanismError,), "it does not support the mechanism in kafka.sasl_mechanism"),
    (
        (errors.AuthorizationError,),
        "its access rules do not allow this to the user{}: the administrator of Kafka can grant it",
    ),
    ((errors.UnknownTopicOrPartitionError,), "there is no such topic"),
    (
        (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError),
        "the record is too large: it exceeds kafka.max_record_bytes or the topic's max.message.bytes",
    ),
    ((errors.KafkaTimeoutError,), "no answer in time"),
)


# kafka-python has no exception for the refusal of an idempotent producer.
_NO_PRODUCER_ID = "InitProducerIdResponse: [Error 31]"


def _what(names: object = "", *_: object) -> str:
    """The refused topics that an exception of kafka-python names, in brackets; empty without any."""
    found = ", ".join(names) if isinstance(names, set) else names
    return f" ({found})" if found else ""


def meaning_of(error: BaseException) -> str:
    """A message for operators; with Kafka's name of the error if it is not in the table."""
    if _NO_PRODUCER_ID in str(error):
        error = errors.ClusterAuthorizationFailedError("Write on any topic")
    for kinds, words in _MEANING:
        if isinstance(error, kinds):
            return words.format(_what(*error.args))
    if not isinstance(error, errors.KafkaError):
        return str(error)
    text = " ".join(str(each) for each in error.args) or getattr(error, "description", "") or "no reason was given"
    return f"{text} ({type(error).__name__})"
