"""Settings of the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arborcast.core.errors import ConfigError, TopicError
from arborcast.core.security.web_pages import PageRule, read_origins
from arborcast.core.settings import check_url, setting
from arborcast.topic_model.topics import TopicPath, is_system, parse_path


@dataclass(frozen=True)
class GatewaySettings:
    """The gateway."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8080, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65_535)
    public_url: str = setting("", "Base URL for clients; empty: http://host:port.")
    page_origins: str = setting("", "Origins of web pages that may send requests; others get 403.")
    trusted_proxies: str = setting(
        "", "Addresses and networks of reverse proxies whose proxy_header has the client's address."
    )
    proxy_header: Literal["X-Forwarded-For", "Forwarded"] = setting("X-Forwarded-For", "Their header.")
    workers: int = setting(1, "Processes that share the port.", minimum=1, maximum=256)
    max_body_bytes: int = setting(4 * 1024 * 1024, "Larger bodies get 413.", minimum=1024, unit="bytes")
    max_elements: int = setting(
        200_000, "Bodies with more elements and attributes get 400; each takes up to 400 bytes.", minimum=1_000
    )
    inflight_bytes: int = setting(
        256 * 1024 * 1024,
        "Memory for unanswered requests (per worker); beyond it large bodies wait five seconds, then get 503.",
        minimum=16 * 1024 * 1024,
        unit="bytes",
    )
    max_header_bytes: int = setting(32 * 1024, "Longer heads get 431.", minimum=1024, unit="bytes")
    max_headers: int = setting(100, "Requests with more get 431.", minimum=16)
    request_timeout_s: float = setting(20.0, "Incomplete requests then get 408.", minimum=0.1, unit="s")
    max_connections: int = setting(
        2_000, "Further connections replace unused ones, or get 503 (per worker).", minimum=1
    )
    max_unacknowledged_bytes: int = setting(
        64 * 1024 * 1024, "Not acknowledged by Kafka; further notifications get 503.", minimum=1024 * 1024, unit="bytes"
    )
    default_termination_s: int = setting(
        0, "For a Subscribe without a termination time; 0: no end.", minimum=0, unit="s"
    )
    subscriptions_per_owner: int = setting(0, "Subscriptions of one authenticated client; 0: no limit.", minimum=0)
    expression_steps: int = setting(1_024, "Steps after wildcards in a topic expression.", minimum=16)
    xpath_expressions: int = setting(
        100, "XPath topic expressions; each takes memory for each selected topic.", minimum=0
    )
    expiry_grace_s: int = setting(
        3_600,
        "Time in which an expired subscription can be renewed; it misses that time's notifications.",
        minimum=0,
        unit="s",
    )
    pull_points: int = setting(10_000, "Maximum number.", minimum=0)
    triggers: int = setting(1_000, "Maximum number.", minimum=0)
    share_per_owner: int = setting(
        25,
        "One authenticated client's share of pull_points, triggers, registrations, xpath_expressions.",
        minimum=1,
        maximum=100,
        unit="%",
    )
    endpoint_idle_s: int = setting(600, "Unused pull points of HPwsn clients end after this time.", minimum=1, unit="s")
    pull_messages: int = setting(
        10_000, "Per pull point; beyond it the oldest are dropped.", minimum=1, maximum=1_000_000
    )
    pull_bytes: int = setting(16 * 1024 * 1024, "Per pull point; else as pull_messages.", minimum=1024, unit="bytes")
    pull_memory_bytes: int = setting(
        64 * 1024 * 1024, "Memory for all pull points; other messages are read from the log.", minimum=0, unit="bytes"
    )
    pull_total_messages: int = setting(
        1_000_000, "All pull points, 300 bytes of memory each; the longest drops its oldest.", minimum=1
    )
    pull_wait_s: float = setting(0.0, "Where GetMessages names none.", minimum=0, unit="s")
    pull_max_wait_s: float = setting(60.0, "Of GetMessages and PullMessages.", minimum=0, maximum=3_600, unit="s")
    pull_claim_s: float = setting(
        # Claims are renewed every second at the shortest, and other gateways check them as often.
        30.0,
        "Messages in transit at a gateway's death are handed out again then.",
        minimum=3,
        unit="s",
    )
    pull_subscription_s: int = setting(
        60, "Lifetime of an ONVIF pull point subscription after each PullMessages.", minimum=1, unit="s"
    )
    stream_lease_s: int = setting(600, "Event streams without a connection end then.", minimum=10, unit="s")
    requires_registration: bool = setting(False, "Only registered publishers may publish.")
    registrations: int = setting(10_000, "Maximum number of publishers.", minimum=0)
    deduplication_window_s: int = setting(
        120,
        "Repetitions with the same wsa:MessageID are stored once; 0: every time.",
        minimum=0,
        maximum=86_400,
        unit="s",
    )
    keep_alive_s: int = setting(30, "For idle connections.", minimum=1, unit="s")
    stop_timeout_s: float = setting(2.0, "For requests in progress.", minimum=0, maximum=60, unit="s")
    hang_timeout_s: float = setting(
        20.0,
        "One of several workers without progress is replaced; less than stack.hang_timeout_s. 0: never.",
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
            # A local import: commands that only read settings do not load the code for requests.
            from arborcast.ingest.access.proxies import trusted_networks

            trusted_networks(self.trusted_proxies)
        read_origins(self.page_origins, "gateway.page_origins")
        if self.public_url:
            check_url("gateway.public_url", self.public_url)


@dataclass(frozen=True)
class FramedSettings:
    """The framed TCP edge, on gateway.host, with the gateway's TLS, rates and users."""

    port: int = setting(0, "Port to listen on; 0: no framed edge.", minimum=0, maximum=65_535)
    max_frame_bytes: int = setting(
        4 * 1024 * 1024, "Longer frames end their connection.", minimum=1024, maximum=1024 * 1024 * 1024, unit="bytes"
    )
    max_connections: int = setting(10_000, "Further connections are refused (per worker).", minimum=1)
    idle_s: float = setting(60.0, "Connections without a frame are closed; clients send PING.", minimum=1, unit="s")


@dataclass(frozen=True)
class ZmqSettings:
    """The ZeroMQ edges. An address is bound, or connected to if it begins with `>`. Empty:
    no such socket."""

    enabled: bool = setting(False, "Start with the embedded engine. Needs the extra zmq.")
    subscribe: str = setting("tcp://127.0.0.1:5555", "XPUB, for SUB sockets that receive.")
    publish: str = setting("tcp://127.0.0.1:5556", "SUB, for PUB sockets that publish, at most once.")
    pipeline: str = setting("tcp://127.0.0.1:5557", "PULL, for PUSH sockets that publish, with flow control.")
    requests: str = setting("tcp://127.0.0.1:5558", "ROUTER, for REQ sockets that publish and wait for the result.")
    tasks: str = setting("", "PUSH, for PULL sockets of workers: each message of tasks_topics goes to one.")
    results: str = setting("", "PULL, for PUSH sockets of workers that publish results.")
    tasks_topics: str = setting("", "Topic expression of tasks, such as jobs//.")
    topics: Literal["slash", "colon"] = setting("slash", "Form of sent topics: a/b or a:b.")
    send_hwm: int = setting(1_000, "Messages per receiver; others are dropped.", minimum=1, maximum=1_000_000)
    user: str = setting("", "User of the edges at a gateway with users.")
    password: str = setting("", "Its password.", secret=True)
    curve_key_file: str = setting("", "Secret key for CURVE (.key_secret file), required beyond loopback.")
    clients_file: str = setting("", "CURVE clients: TOML, [[client]] with key, user and password.")
    tls_ca_file: str = setting("", "The gateway's authority; empty: the system's.")
    metrics_port: int = setting(0, "0: none.", minimum=0, maximum=65_535)


@dataclass(frozen=True)
class TopicSettings:
    """The topic set."""

    fixed: bool = setting(False, "Refuse unknown topics; otherwise they are added on first use.")
    maximum: int = setting(1_000_000, "Topics up to which notifications add new ones.", minimum=1)
    new_per_minute: int = setting(
        6_000,
        "Topics that notifications may add per minute (per worker), then 503. Those that a subscription names"
        " do not count; those of its wildcards count apart.",
        minimum=0,
    )
    codes: Literal["given", "position"] = setting(
        "given", "position: topics without a given code have one of their place, such as 1.4.A."
    )
    default: str = setting("", "Topic of a Notify without one; empty: it is refused.")
    retain_all: bool = setting(
        False, "Retain the last message of all topics, unless their policy excludes it; writes notifications twice."
    )
    check_types: bool = setting(False, "Refuse notifications of other than their topic's message types.")

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


LEAST_PART = 500
"""Bytes of a part for old subscribers: with less there is no room for content beside its wrapper."""


@dataclass(frozen=True)
class FragmentSettings:
    """Messages in parts, of the older protocol."""

    bytes: int = setting(
        3_000,
        "Size of a part for old subscribers, on topics with the routing word split; 0: no parts, else from 500.",
        minimum=0,
        unit="bytes",
    )
    timeout_s: float = setting(30.0, "Wait for a further part.", minimum=1, maximum=1_800, unit="s")
    open: int = setting(1_000, "Incomplete messages of one client (without authentication: of all).", minimum=1)
    max_bytes: int = setting(
        0,
        "Of a message. 0: gateway.max_body_bytes; above raise kafka.max_record_bytes, max_unacknowledged_bytes, too.",
        minimum=0,
        maximum=128 * 1024 * 1024,
        unit="bytes",
    )

    def __post_init__(self) -> None:
        if 0 < self.bytes < LEAST_PART:
            raise ConfigError(f"fragments.bytes = {self.bytes} must be 0 (no parts) or at least {LEAST_PART}")
