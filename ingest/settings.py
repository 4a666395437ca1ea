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
    """How the gateway listens and what it grants."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8080, "Port to listen on; 0 takes a free one.", minimum=0, maximum=65_535)
    public_url: str = setting(
        "",
        "Base URL under which clients reach us, used in subscription addresses; empty means http://host:port.",
    )
    page_origins: str = setting(
        "",
        "Origins of web pages that may send requests, separated by commas, such as https://pages.example:8443; those "
        "of all other pages are refused with 403. A page sends its credentials itself; cookies and what a browser has "
        "remembered do not come with its requests.",
    )
    trusted_proxies: str = setting(
        "",
        "Addresses and networks of the proxies in front, separated by commas: they are believed when they say in "
        "proxy_header which client they speak for, and what is limited for one address is counted by that one. Name "
        "the proxies alone, not a network that clients are in, and have them set the header anew or append to it.",
    )
    proxy_header: Literal["X-Forwarded-For", "Forwarded"] = setting(
        "X-Forwarded-For", "The one header that these proxies write; what clients send in the other is ignored."
    )
    workers: int = setting(
        1,
        "Processes that share the port; more than one where the machine has cores to spare.",
        minimum=1,
        maximum=256,
    )
    max_body_bytes: int = setting(
        4 * 1024 * 1024, "Larger request bodies are refused with 413.", minimum=1024, unit="bytes"
    )
    max_elements: int = setting(
        200_000,
        "Request bodies with more elements and attributes are refused with 400: each takes up to 400 bytes of memory "
        "while its body is read.",
        minimum=1_000,
    )
    inflight_bytes: int = setting(
        256 * 1024 * 1024,
        "Memory for requests that are not answered yet: bodies as they come, and what reading them takes; at least "
        "what one of the largest takes. Beyond it large bodies wait a few seconds, then get 503 (per worker).",
        minimum=16 * 1024 * 1024,
        unit="bytes",
    )
    max_header_bytes: int = setting(
        32 * 1024, "Larger heads of requests (address and headers) are refused with 431.", minimum=1024, unit="bytes"
    )
    max_headers: int = setting(100, "Requests with more headers are refused with 431.", minimum=16)
    request_timeout_s: float = setting(
        20.0, "A request that is not there as a whole within so long is refused with 408.", minimum=0.1, unit="s"
    )
    max_connections: int = setting(2_000, "Beyond this many connections new ones get 503 (per worker).", minimum=1)
    max_unacknowledged_bytes: int = setting(
        64 * 1024 * 1024,
        "Notifications that Kafka has not acknowledged yet; beyond this further ones get 503 at once.",
        minimum=1024 * 1024,
        unit="bytes",
    )
    default_termination_s: int = setting(
        0, "Granted when a Subscribe names no termination time; 0 means no end.", minimum=0, unit="s"
    )
    subscriptions_per_owner: int = setting(
        0,
        "So many subscriptions may one authenticated client have; 0 means any number. Nobody is counted where nobody "
        "has to say who it is.",
        minimum=0,
    )
    expression_steps: int = setting(
        1_024,
        "So many steps with wildcards before them, in all alternatives together, may a topic expression have: each may "
        "have to be looked at for every topic. Subscriptions that are there already stay.",
        minimum=16,
    )
    expiry_grace_s: int = setting(
        3_600,
        "Nothing accepted later is for an expired subscription, but it can be renewed for so long; then it is gone.",
        minimum=0,
        unit="s",
    )
    pull_points: int = setting(10_000, "So many pull points may be created.", minimum=0)
    triggers: int = setting(
        1_000, "So many triggers may be made; each is kept in the memory of every process.", minimum=0
    )
    share_per_owner: int = setting(
        25,
        "So much of pull_points, of triggers and of registrations may one authenticated client have, so that no client "
        "takes all; 100 is all of them. Without access.methods nothing is counted.",
        minimum=1,
        maximum=100,
        unit="%",
    )
    endpoint_idle_s: int = setting(
        600,
        "A pull point that a client of HPwsn made (by WsnProcess, or at /WSN/CreatePullPoint) ends after this, unless "
        "it is used.",
        minimum=1,
        unit="s",
    )
    pull_messages: int = setting(
        10_000, "So many messages wait in one pull point; beyond this the oldest go.", minimum=1, maximum=1_000_000
    )
    pull_bytes: int = setting(16 * 1024 * 1024, "And so many bytes.", minimum=1024, unit="bytes")
    pull_memory_bytes: int = setting(
        64 * 1024 * 1024,
        "What waits in all pull points is kept in memory up to this; the rest is read from the log when it is fetched.",
        minimum=0,
        unit="bytes",
    )
    pull_wait_s: float = setting(
        0.0, "How long a GetMessages that names no time of its own waits for the first message.", minimum=0, unit="s"
    )
    pull_max_wait_s: float = setting(
        60.0, "No GetMessages or PullMessages waits for longer.", minimum=0, maximum=3_600, unit="s"
    )
    pull_claim_s: float = setting(
        30.0,
        "Messages that were on their way to a client when their gateway died are handed out again after this.",
        minimum=1,
        unit="s",
    )
    pull_subscription_s: int = setting(
        60,
        "How long an ONVIF pull point subscription lives on after each PullMessages, at least; also what one gets that "
        "names no time.",
        minimum=1,
        unit="s",
    )
    requires_registration: bool = setting(
        False, "Only publishers that registered (RegisterPublisher) may publish, and only on their topics."
    )
    registrations: int = setting(10_000, "So many publishers may be registered.", minimum=0)
    demand_publishing: bool = setting(
        True,
        "Subscribe at publishers that registered with Demand while somebody wants what they offer. Of several gateways "
        "over one Kafka exactly one may do so.",
    )
    upstream_termination_s: int = setting(
        600, "What is asked for when subscribing at a publisher; renewed in time.", minimum=30, unit="s"
    )
    deduplication_window_s: int = setting(
        120,
        "A Notify that a publisher repeats under the same wsa:MessageID within this is accepted once; 0 accepts all.",
        minimum=0,
        maximum=86_400,
        unit="s",
    )
    keep_alive_s: int = setting(30, "Idle connections are closed after this.", minimum=1, unit="s")
    stop_timeout_s: float = setting(
        2.0, "At a stop, requests under way get so long to be answered.", minimum=0, maximum=60, unit="s"
    )
    hang_timeout_s: float = setting(
        20.0,
        "Of several workers, one whose event loop does not come round for this long is killed and replaced by their "
        "parent. 0: never. Less than stack.hang_timeout_s, or the whole gateway is.",
        minimum=0,
        maximum=3_600,
        unit="s",
    )

    @property
    def pages(self) -> PageRule:
        """Which requests of web pages are taken."""
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
    """The framed TCP edge of the gateway: small binary frames on connections that are kept. It listens on gateway.host,
    with [tls] where that has a certificate; rates and users are the gateway's."""

    port: int = setting(0, "Port to listen on; 0 for no framed edge.", minimum=0, maximum=65_535)
    max_frame_bytes: int = setting(
        4 * 1024 * 1024, "Longer frames end their connection.", minimum=1024, maximum=1024 * 1024 * 1024, unit="bytes"
    )
    max_connections: int = setting(10_000, "Beyond this many connections new ones are refused (per worker).", minimum=1)
    idle_s: float = setting(
        60.0, "A connection on which nothing comes for so long is closed; clients send PING.", minimum=1, unit="s"
    )


@dataclass(frozen=True)
class ZmqSettings:
    """The ZeroMQ edges: sockets for clients that speak ZeroMQ, in a process of their own, which is a client of the
    framed edge. An address is bound, or connected to when it begins with `>`; empty for no such socket."""

    enabled: bool = setting(False, "Whether the embedded engine starts the ZeroMQ edges. Needs the extra zmq.")
    subscribe: str = setting("tcp://127.0.0.1:5555", "XPUB, for SUB sockets that receive.")
    publish: str = setting("tcp://127.0.0.1:5556", "SUB, for PUB sockets that publish, at most once.")
    pipeline: str = setting("tcp://127.0.0.1:5557", "PULL, for PUSH sockets that publish, held back when need be.")
    asked: str = setting("tcp://127.0.0.1:5558", "ROUTER, for REQ sockets that publish and want an answer.")
    tasks: str = setting("", "PUSH, for PULL sockets of workers: each message of tasks_topics goes to one of them.")
    results: str = setting("", "PULL, for PUSH sockets of workers that have a result.")
    tasks_topics: str = setting("", "The topics whose messages are tasks, as in `arborcast subscribe`: jobs//.")
    topics: Literal["slash", "colon"] = setting(
        "slash", "How topics are written to receivers: a/b, or a:b as the older system had it. Both are read."
    )
    send_hwm: int = setting(1_000, "Messages that wait for one receiver; beyond it they are dropped.", minimum=1)
    receive_hwm: int = setting(
        1_000,
        "Messages that wait to be read from one publisher, each part of up to twice framed.max_frame_bytes.",
        minimum=1,
    )
    io_threads: int = setting(1, "Threads of ZeroMQ's own; not more than cores.", minimum=1, maximum=64)
    user: str = setting("", "Who the edges are to the gateway, where it has users.")
    password: str = setting("", "The password of that user.", secret=True)
    curve_key_file: str = setting(
        "", "The secret key of the sockets (a .key_secret file of ZeroMQ's), for CURVE. Needed off this machine."
    )
    clients_file: str = setting(
        "", "With CURVE: a TOML file of clients, [[client]] with key, user and password; others may not connect."
    )
    tls_ca_file: str = setting("", "Whose certificate the gateway's is, where that has [tls]; empty: the system's.")
    metrics_port: int = setting(0, "Port on which the edges show metrics; 0 for none.", minimum=0, maximum=65_535)


@dataclass(frozen=True)
class TopicSettings:
    """What topics there may be, and what holds for all of them."""

    fixed: bool = setting(False, "A fixed topic set refuses unknown topics; an open one adds them on first use.")
    maximum: int = setting(
        1_000_000, "With an open set: no topic is added by a notification beyond this many.", minimum=1
    )
    new_per_minute: int = setting(
        6_000,
        "With an open set: notifications may add this many topics per minute (per worker). Beyond it they get 503. "
        "Topics that a subscription reaches by a wildcard have the same number of their own; those that one names are "
        "not counted.",
        minimum=0,
    )
    codes: Literal["given", "position"] = setting(
        "given",
        "Which topics have a code: those that were given one, or with position all, the others from their places "
        "(1.4.A: the tenth topic below the fourth below the first). What was given so stays when this is changed back.",
    )
    default: str = setting(
        "",
        "A path such as plant/other or {urn:t}a/b: the topic of a Notify that names none, which the schema allows. "
        "Empty: it is refused.",
    )
    retain_all: bool = setting(
        False,
        "Topics keep their last message for GetCurrentMessage and new subscribers, except those whose own policy says "
        "no. Each notification is then written twice.",
    )
    check_types: bool = setting(
        False,
        "A notification whose type is none of the message types of its topic is refused. Its type is what its "
        "publisher says (p:Publication Type), else the name of its payload's element; a topic without message types "
        "takes all.",
    )

    def __post_init__(self) -> None:
        try:
            _ = self.default_path
        except TopicError as error:
            raise ConfigError(f"topics.default = {self.default!r} is no path of a topic: {error}") from error
        if is_system(self.default):
            raise ConfigError(f"topics.default = {self.default!r} is for the engine's own events: name another topic")

    @property
    def default_path(self) -> TopicPath | None:
        """The topic of a Notify that names none; None where that is refused."""
        return parse_path(self.default) if self.default else None


@dataclass(frozen=True)
class FragmentSettings:
    """Messages of old publishers that come in parts, and for old subscribers leave in parts."""

    bytes: int = setting(
        3_000,
        "Of topics whose routing says split: messages to old subscribers leave in parts of at most so many bytes, the "
        "wrapper among them. 0: never.",
        minimum=0,
        unit="bytes",
    )
    timeout_s: float = setting(
        30.0,
        "When no further part comes for so long, a message is given up, which is told to operators and kept in the "
        "table incomplete. At most half of the hour that parts are kept.",
        minimum=1,
        maximum=1_800,
        unit="s",
    )
    open: int = setting(
        1_000,
        "So many messages of one client may lack parts at a time; where nobody has to say who it is, of all together.",
        minimum=1,
    )
    max_bytes: int = setting(
        0,
        "What the parts of one message that have to be put together may have in all; beyond it the part is refused and "
        "the message given up. 0: as gateway.max_body_bytes. One that is larger needs larger kafka.max_record_bytes "
        "and gateway.max_unacknowledged_bytes, too.",
        minimum=0,
        maximum=128 * 1024 * 1024,
        unit="bytes",
    )
