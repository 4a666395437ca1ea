"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError, TopicError
from arborcast.core.security.web_pages import PageRule, read_origins
from arborcast.core.settings import setting
from arborcast.topic_model.topics import TopicPath, is_system, parse_path


@dataclass(frozen=True)
class GatewaySettings:
    """The gateway."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8080, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65_535)
    public_url: str = setting(
        "",
        "Base URL of the gateway for clients, in addresses of subscriptions; empty: http://host:port.",
    )
    page_origins: str = setting(
        "",
        "Origins of web pages that may send requests, separated by commas; others get 403.",
    )
    trusted_proxies: str = setting(
        "",
        "Addresses and networks of reverse proxies, separated by commas, whose proxy_header has the client's address.",
    )
    proxy_header: Literal["X-Forwarded-For", "Forwarded"] = setting(
        "X-Forwarded-For", "The header that these proxies write."
    )
    workers: int = setting(
        1,
        "Processes that share the port; raise it where cores are free.",
        minimum=1,
        maximum=256,
    )
    max_body_bytes: int = setting(
        4 * 1024 * 1024, "Larger request bodies are refused with 413.", minimum=1024, unit="bytes"
    )
    max_elements: int = setting(
        200_000,
        "Request bodies with more elements and attributes are refused with 400; each takes up to 400 bytes.",
        minimum=1_000,
    )
    inflight_bytes: int = setting(
        256 * 1024 * 1024,
        "Memory for unanswered requests in parsed form (per worker); beyond it large bodies wait for five "
        "seconds, then get 503.",
        minimum=16 * 1024 * 1024,
        unit="bytes",
    )
    max_header_bytes: int = setting(
        32 * 1024, "Longer heads of requests are refused with 431.", minimum=1024, unit="bytes"
    )
    max_headers: int = setting(100, "Requests with more headers are refused with 431.", minimum=16)
    request_timeout_s: float = setting(
        20.0, "Incomplete requests are refused with 408 after this time.", minimum=0.1, unit="s"
    )
    max_connections: int = setting(2_000, "Further connections get 503 (per worker).", minimum=1)
    max_unacknowledged_bytes: int = setting(
        64 * 1024 * 1024,
        "Notifications that Kafka has not acknowledged; further ones get 503.",
        minimum=1024 * 1024,
        unit="bytes",
    )
    default_termination_s: int = setting(
        0, "Granted to a Subscribe without a termination time; 0: no end.", minimum=0, unit="s"
    )
    subscriptions_per_owner: int = setting(
        0,
        "Subscriptions of one authenticated client; 0: no limit.",
        minimum=0,
    )
    expression_steps: int = setting(
        1_024,
        "Maximum number of steps after wildcards in a topic expression.",
        minimum=16,
    )
    expiry_grace_s: int = setting(
        3_600,
        "Time after its expiry in which a subscription can be renewed; it misses notifications of that time.",
        minimum=0,
        unit="s",
    )
    pull_points: int = setting(10_000, "Maximum number of pull points.", minimum=0)
    triggers: int = setting(1_000, "Maximum number of triggers; every process has them in memory.", minimum=0)
    share_per_owner: int = setting(
        25,
        "Share of pull_points, triggers and registrations that one authenticated client may use.",
        minimum=1,
        maximum=100,
        unit="%",
    )
    endpoint_idle_s: int = setting(
        600,
        "Pull points of HPwsn clients end after this time without use.",
        minimum=1,
        unit="s",
    )
    pull_messages: int = setting(
        10_000, "Messages in one pull point; beyond it the oldest are dropped.", minimum=1, maximum=1_000_000
    )
    pull_bytes: int = setting(16 * 1024 * 1024, "Bytes in one pull point; likewise.", minimum=1024, unit="bytes")
    pull_memory_bytes: int = setting(
        64 * 1024 * 1024,
        "Memory for messages of all pull points; others are read from the log.",
        minimum=0,
        unit="bytes",
    )
    pull_wait_s: float = setting(0.0, "Wait for the first message, where GetMessages names none.", minimum=0, unit="s")
    pull_max_wait_s: float = setting(
        60.0, "Maximum wait of GetMessages and PullMessages.", minimum=0, maximum=3_600, unit="s"
    )
    pull_claim_s: float = setting(
        30.0,
        "Messages in transit when their gateway died are handed out again after this time.",
        minimum=1,
        unit="s",
    )
    pull_subscription_s: int = setting(
        60,
        "Default and minimum lifetime of an ONVIF pull point subscription after each PullMessages.",
        minimum=1,
        unit="s",
    )
    stream_lease_s: int = setting(
        600,
        "Event streams end after this time without a connection.",
        minimum=10,
        unit="s",
    )
    requires_registration: bool = setting(False, "Only registered publishers may publish, on their topics.")
    registrations: int = setting(10_000, "Maximum number of registered publishers.", minimum=0)
    deduplication_window_s: int = setting(
        120,
        "Time in which a Notify repeated with the same wsa:MessageID is stored once; 0: every time.",
        minimum=0,
        maximum=86_400,
        unit="s",
    )
    keep_alive_s: int = setting(30, "Idle connections are closed after this time.", minimum=1, unit="s")
    stop_timeout_s: float = setting(2.0, "Time for requests in progress at a stop.", minimum=0, maximum=60, unit="s")
    hang_timeout_s: float = setting(
        20.0,
        "One of several workers without progress for this time is killed and replaced; less than "
        "stack.hang_timeout_s. 0: never.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )

    @property
    def pages(self) -> PageRule:
        """The rule for requests of web pages."""
        wanted = read_origins(self.page_origins, "gateway.page_origins")
        return PageRule(self.host, self.public_url, wanted, "gateway.public_url", "gateway.page_origins")

    def __post_init__(self) -> None:
        if self.trusted_proxies:
            # Here, so that a command which only reads settings does not load what reads requests.
            from arborcast.ingest.access.proxies import trusted_networks

            trusted_networks(self.trusted_proxies)
        read_origins(self.page_origins, "gateway.page_origins")
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise ConfigError(f"gateway.public_url must begin with http:// or https://, not {self.public_url!r}")


@dataclass(frozen=True)
class FramedSettings:
    """The framed TCP edge, on gateway.host, with the gateway's TLS, rates and users."""

    port: int = setting(0, "Port to listen on; 0: no framed edge.", minimum=0, maximum=65_535)
    max_frame_bytes: int = setting(
        4 * 1024 * 1024, "Longer frames end their connection.", minimum=1024, maximum=1024 * 1024 * 1024, unit="bytes"
    )
    max_connections: int = setting(10_000, "Further connections are refused (per worker).", minimum=1)
    idle_s: float = setting(
        60.0, "Connections without a frame for this time are closed; clients send PING.", minimum=1, unit="s"
    )


@dataclass(frozen=True)
class ZmqSettings:
    """The ZeroMQ edges, in a process of their own. An address is bound, or connected to if it begins with `>`. Empty:
    no such socket."""

    enabled: bool = setting(False, "Start the ZeroMQ edges with the embedded engine. Needs the extra zmq.")
    subscribe: str = setting("tcp://127.0.0.1:5555", "XPUB, for SUB sockets that receive.")
    publish: str = setting("tcp://127.0.0.1:5556", "SUB, for PUB sockets that publish, at most once.")
    pipeline: str = setting("tcp://127.0.0.1:5557", "PULL, for PUSH sockets that publish, with flow control.")
    asked: str = setting("tcp://127.0.0.1:5558", "ROUTER, for REQ sockets that publish and wait for the result.")
    tasks: str = setting("", "PUSH, for PULL sockets of workers: each message of tasks_topics goes to one.")
    results: str = setting("", "PULL, for PUSH sockets of workers that publish results.")
    tasks_topics: str = setting("", "Topic expression of tasks, such as jobs//.")
    topics: Literal["slash", "colon"] = setting("slash", "Form of sent topics: a/b, or a:b as in the older system.")
    send_hwm: int = setting(1_000, "Messages waiting for one receiver; others are dropped.", minimum=1)
    user: str = setting("", "User of the edges at a gateway with users.")
    password: str = setting("", "Its password.", secret=True)
    curve_key_file: str = setting(
        "", "Secret key of the sockets for CURVE (a ZeroMQ .key_secret file). Required beyond loopback."
    )
    clients_file: str = setting(
        "", "Clients that may connect with CURVE: TOML, [[client]] with key, user and password."
    )
    tls_ca_file: str = setting("", "Authority of the gateway's certificate; empty: the system's.")
    metrics_port: int = setting(0, "Port of the edges' metrics; 0: none.", minimum=0, maximum=65_535)


@dataclass(frozen=True)
class TopicSettings:
    """The topic set."""

    fixed: bool = setting(False, "Refuse unknown topics; otherwise they are added on first use.")
    maximum: int = setting(1_000_000, "Number of topics up to which notifications add new ones.", minimum=1)
    new_per_minute: int = setting(
        6_000,
        "Topics that notifications may add per minute (per worker), then 503. Those that a subscription names"
        " do not count; those of its wildcards count apart.",
        minimum=0,
    )
    codes: Literal["given", "position"] = setting(
        "given",
        "given: topics have only codes that were set. position: others have one of their place, such as 1.4.A.",
    )
    default: str = setting(
        "",
        "Topic of a Notify without one, such as plant/other or {urn:t}a/b; empty: it is refused.",
    )
    retain_all: bool = setting(
        False,
        "Retain the last message of all topics, unless their policy excludes it. Notifications are written twice.",
    )
    check_types: bool = setting(
        False,
        "Refuse notifications of other than their topic's message types.",
    )

    def __post_init__(self) -> None:
        try:
            _ = self.default_path
        except TopicError as error:
            raise ConfigError(f"topics.default = {self.default!r} is not the path of a topic: {error}") from error
        if is_system(self.default):
            raise ConfigError(f"topics.default = {self.default!r} is for the engine's own events: name another topic")

    @property
    def default_path(self) -> TopicPath | None:
        """The topic of a Notify without one; None if it is refused."""
        return parse_path(self.default) if self.default else None


@dataclass(frozen=True)
class FragmentSettings:
    """Messages in parts, of old publishers and for old subscribers."""

    bytes: int = setting(
        3_000,
        "Maximum size of a part for old subscribers, on topics with the routing word split; 0: no parts.",
        minimum=0,
        unit="bytes",
    )
    timeout_s: float = setting(
        30.0,
        "A message is given up after this time without a further part.",
        minimum=1,
        maximum=1_800,
        unit="s",
    )
    open: int = setting(
        1_000,
        "Incomplete messages of one client (without authentication: of all).",
        minimum=1,
    )
    max_bytes: int = setting(
        0,
        "Maximum size of a message; larger ones are given up. 0: gateway.max_body_bytes; beyond that raise "
        "kafka.max_record_bytes and gateway.max_unacknowledged_bytes, too.",
        minimum=0,
        maximum=128 * 1024 * 1024,
        unit="bytes",
    )
