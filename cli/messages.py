"""`arborcast subscribe`, `unsubscribe`, `publish`, `listen`: a WS-Notification client for the shell."""

from __future__ import annotations

import codecs
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote, urlsplit

import typer

from arborcast.cli.common import (
    MESSAGES,
    SUBSCRIBING,
    JsonOption,
    NamespaceOption,
    as_interrupts,
    namespaces_of,
    note_no_job,
    resolved,
    settings_of,
)
from arborcast.core.errors import ArborcastError, ConfigError
from arborcast.core.printable import one_line
from arborcast.core.reasons import reason_of
from arborcast.engine.terminal import console, print_error, print_json, print_json_line, print_line

if TYPE_CHECKING:
    from arborcast.cli.shell_client import ShellClient
    from arborcast.client import RemoteSubscription
    from arborcast.client.listener import ReceivedMessage

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="The broker (default: the engine of --home, else gateway.public_url).", metavar="URL"),
]
TopicArgument = Annotated[
    str,
    typer.Argument(help="For instance a/b (or a:b), 'a//.' (a and all below), {urn:x}a/b, or p:a/b with -n p=urn:x."),
]
SubscriptionArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTION",
        help="Its id, as `subscriptions list` prints it, or the address that `subscribe` prints.",
    ),
]

TypesOption = Annotated[
    list[str] | None,
    typer.Option("--type", help="Only messages of this type, {urn:x}name or p:name; may be repeated.", metavar="TYPE"),
]
IntervalOption = Annotated[
    float | None, typer.Option("--interval", help="Minimum interval between messages in seconds, per topic.", min=0.001)
]
TogetherOption = Annotated[bool, typer.Option("--together", help="Apply the interval to all topics together.")]

# Never as a value on the command line, which all users of the machine can read.
SecretFileOption = Annotated[
    str | None,
    typer.Option("--secret-file", help="Sign with the secret in this file; - is standard input.", metavar="FILE"),
]


class InputError(ArborcastError):
    """Invalid input of a command."""


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=MESSAGES)(publish)
    app.command(rich_help_panel=MESSAGES)(listen)
    for command in (subscribe, unsubscribe, rotate_secret):
        app.command(rich_help_panel=SUBSCRIBING)(command)


def subscribe(
    topic: TopicArgument,
    to: Annotated[str, typer.Option("--to", help="Where notifications are pushed to.", metavar="URL")],
    lasts: Annotated[int | None, typer.Option("--for", help="Duration in seconds.", min=1)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Push payloads alone, without wsnt:Notify.")] = False,
    cloudevents: Annotated[
        Literal["binary", "structured", "batched"] | None,
        typer.Option("--cloudevents", help="Push CloudEvents, in this content mode."),
    ] = None,
    current: Annotated[bool, typer.Option("--current", help="Push at once what topics keep as their last.")] = False,
    signed: Annotated[bool, typer.Option("--signed", help="Sign pushes; the secret is printed, this once.")] = False,
    secret_file: SecretFileOption = None,
    bearer_file: Annotated[
        str | None,
        typer.Option("--bearer-file", help="Send the token in this file along; - is standard input.", metavar="FILE"),
    ] = None,
    kind: Annotated[
        Literal["signal", "command", "state", "event", "request"] | None,
        typer.Option("--kind", help="Preset for a kind of information; other options override it."),
    ] = None,
    reliability: Annotated[
        Literal["strict", "adaptive", "timely"] | None,
        typer.Option(
            "--reliability", help="strict: try until it is delivered, in order; timely: at once or not at all."
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Push a message only after earlier ones are delivered or given up.")
    ] = False,
    attempts: Annotated[int | None, typer.Option("--attempts", help="Maximum attempts.", min=1, max=1_000)] = None,
    lifespan: Annotated[int | None, typer.Option("--lifespan", help="Lifespan of messages in seconds.", min=1)] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline", help="Send the subscriber a notice after this many seconds without a message.", min=0.5
        ),
    ] = None,
    per_topic: Annotated[
        bool, typer.Option("--per-topic", help="Apply the deadline to each topic with a message.")
    ] = False,
    priority: Annotated[
        int, typer.Option("--priority", help="Larger is pushed to first when room is short.", min=-100, max=100)
    ] = 0,
    interval: IntervalOption = None,
    together: TogetherOption = False,
    queue: Annotated[
        int | None,
        typer.Option(
            "--queue", help="Serve the work queue TOPIC, N requests at a time.", min=1, max=1_000, metavar="N"
        ),
    ] = None,
    kinds: TypesOption = None,
    namespace: NamespaceOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Subscribe a URL to a topic or a subtree; prints the subscription's address."""
    from arborcast.client import Credentials, Delivery

    topic = topic_of(topic, url, namespace)
    given: dict[str, Any] = {
        "reliability": reliability,
        "strict": strict or None,
        "maximum_attempts": attempts,
        "lifespan": duration(lifespan),
        "deadline": duration(deadline),
        "deadline_per_topic": per_topic or None,
        "priority": priority or None,
        "minimum_interval": duration(interval),
        "interval_per_topic": False if together else None,
    }
    delivery = replace(
        Delivery.of(kind) if kind else Delivery(), **{name: value for name, value in given.items() if value is not None}
    )
    with client_of(url) as client:
        subscription = client.subscribe(
            topic,
            to=to,
            raw=raw,
            cloudevents=cloudevents or "",
            current=current or kind == "state",
            lasts=duration(lasts),
            namespaces=namespaces_of(namespace),
            signed=signed,
            secret=_read_secret(secret_file),
            credentials=Credentials(bearer=_read_secret(bearer_file)) if bearer_file else None,
            delivery=None if delivery == Delivery() else delivery,
            types=kinds or (),
            queue=queue or 0,
        )
    if json:
        secret = {"secret": subscription.secret} if subscription.secret else {}
        print_json({"address": subscription.address, "terminates": subscription.terminates, **secret})
    else:
        print_line(subscription.address)
        if subscription.secret:
            print_line(subscription.secret)


def topic_of(topic: str, url: str | None, namespace: list[str] | None) -> str:
    """The expression with topics in place of codes; as it is for a broker elsewhere, whose codes are unknown."""
    return topic if url is not None else resolved(topic, namespaces_of(namespace))


def unsubscribe(subscription: SubscriptionArgument, url: UrlOption = None) -> None:
    """End a subscription."""
    broker = url or _broker_url(subscription)
    with client_of(broker) as client:
        client.unsubscribe(_address(subscription, broker))


def rotate_secret(
    subscription: SubscriptionArgument,
    overlap: Annotated[
        int | None, typer.Option("--overlap", help="Seconds in which the old secret signs, too.", min=0)
    ] = None,
    secret_file: SecretFileOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Sign a subscription's pushes with another secret."""
    given = _read_secret(secret_file)
    broker = url or _broker_url(subscription)
    with client_of(broker) as client:
        secret = client.rotate_secret(_address(subscription, broker), given, overlap=duration(overlap))
    if json:
        print_json({} if given else {"secret": secret})
    elif not given:
        print_line(secret)


def publish(
    topic: Annotated[str, typer.Argument(help="For instance a/b (or a:b), {urn:x}a/b, or p:a/b with -n p=urn:x.")],
    file: Annotated[
        str, typer.Argument(help="File with one XML element, or JSON; - is standard input.", metavar="(FILE | -)")
    ],
    lifespan: Annotated[
        float | None, typer.Option("--lifespan", help="Validity in seconds: it is not pushed later.", min=0.001)
    ] = None,
    valid_until: Annotated[
        str | None,
        typer.Option("--valid-until", help="Push it until 2030-01-31T12:00:00Z, and not later.", metavar="TIME"),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority", help="Larger values are pushed first; default: that of the topic.", min=-100, max=100
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option("--type", help="The type, {urn:x}name or p:name; default: the element's name.", metavar="TYPE"),
    ] = "",
    reliable: Annotated[
        bool, typer.Option("--reliable", help="Keep it for timely subscribers, too, until they can be reached.")
    ] = False,
    namespace: NamespaceOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Publish a notification, and wait until the broker has stored it. Prints its id, for `trace` and `why`."""
    payload = _element(read_file(file), "standard input" if file == "-" else file)
    topic = topic_of(topic, url, namespace)
    until = _time(valid_until) if valid_until is not None else None
    with client_of(url) as client:
        made = client.notify(
            topic,
            payload,
            namespaces=namespaces_of(namespace),
            valid_until=until,
            lifespan=duration(lifespan),
            type=kind,
            priority=priority,
            reliable=reliable,
        )
    if url is None:
        note_no_job()
    if json:
        print_json({"notification_id": made or None})
    elif made:
        print_line(made)
    else:
        print_error("stored; the broker returned no id")


def listen(
    topic: TopicArgument,
    port: Annotated[int, typer.Option("--port", help="Where to receive; 0 takes a free port.", min=0, max=65_535)] = 0,
    host: Annotated[
        str, typer.Option("--host", help="Address to receive at, as the broker can reach it.")
    ] = "127.0.0.1",
    count: Annotated[int | None, typer.Option("--count", help="Stop after this number of messages.", min=1)] = None,
    namespace: NamespaceOption = None,
    url: UrlOption = None,
    json: JsonOption = False,
) -> None:
    """Start a small receiver, subscribe it, and print notifications until Ctrl-C. With --json one line per message. The
    subscription ends with the command, or five minutes after the command was killed or its machine has failed."""
    from arborcast.cli.output_queue import OutputQueue
    from arborcast.cli.shell_client import LeasedSubscription
    from arborcast.client.listener import Listener

    topic = topic_of(topic, url, namespace)
    arrived = OutputQueue()
    try:
        listener = Listener(arrived.put, port=port, host=host)
    except OSError as error:
        raise InputError(
            f"cannot listen at {host}:{port}: {reason_of(error)}; choose others with --host or --port"
        ) from error
    with listener, client_of(url) as client, as_interrupts(signal.SIGTERM, signal.SIGHUP):

        def subscribe_for(lasts: timedelta) -> RemoteSubscription:
            return client.subscribe(topic, to=listener.url, lasts=lasts, namespaces=namespaces_of(namespace))

        with (
            suppress(KeyboardInterrupt),
            LeasedSubscription(client, subscribe_for, print_error, ended=arrived.end, reachable=client.is_reachable),
        ):
            print_error(f"listening to {topic} at {listener.url}; Ctrl-C ends it")
            received = 0
            while count is None or received < count:
                message = arrived.get()
                if message is None:
                    raise InputError("the subscription was ended by another client: no more notifications will arrive")
                print_message(message, json)
                received += 1


def print_message(message: ReceivedMessage, json: bool) -> None:
    """Print a received notification, and close its file."""
    content = message.payload
    if message.file is not None:  # joined from parts
        with message.file as file:
            content = file.read()
    payload = content.decode()
    if json:
        line = {
            "topic": message.topic,
            "payload": payload,
            "notification_id": message.notification_id,
            "attempt": message.attempt,
            "replay": message.replay,
        }
        print_json_line(line)
        return
    from rich.text import Text

    again = f"  (attempt {message.attempt})" if message.attempt > 1 else ""
    again += f"  (replay {message.replay})" if message.replay else ""
    console().print(
        Text.assemble(
            (time.strftime("%H:%M:%S "), "dim"),
            (one_line(message.topic or ""), "bold cyan"),
            (f"  {one_line(message.notification_id)}" if message.notification_id else "", "dim"),
            f"{one_line(again)}\n  {payload}",
        ),
        soft_wrap=True,
    )


def _address(subscription: str, broker: str) -> str:
    """Where a subscription is managed, by its id at this broker or by the address itself."""
    if "://" in subscription:
        return subscription
    from arborcast.wire.endpoints import Kind

    base = urlsplit(broker)
    return f"{base.scheme}://{base.netloc}{Kind.SUBSCRIPTION.value}{quote(subscription, safe='')}"


def client_of(url: str | None) -> ShellClient:
    """A client of the broker at `url`, else of the gateway."""
    from arborcast.cli.shell_client import ShellClient

    return ShellClient(url or _broker_url())


def _broker_url(subscription: str = "") -> str:
    """The address of a `subscription`, if it is one, else that of the gateway. Raises InfrastructureError."""
    from arborcast.admin.connection import gateway_url

    settings = settings_of()
    return subscription if "://" in subscription else gateway_url(settings)


def duration(seconds: float | None) -> timedelta | None:
    """A duration in seconds, as an option. Raises ConfigError."""
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError) as error:  # ValueError: NaN
        raise ConfigError(f"{seconds} is not a number of seconds that a broker accepts") from error


def _time(text: str) -> datetime:
    """A time of UTC unless it names another zone."""
    try:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"--valid-until is a time such as 2030-01-31T12:00:00Z, not {text}") from error


def xml_element(data: bytes, where: str) -> bytes:
    """A payload that is XML. Raises MalformedMessage with its own line and column, not those of the request, and
    ClientError."""
    from arborcast.client.calls import as_text
    from arborcast.wire.xml_reading import read_payload

    return read_payload(as_text(data).encode(), what=where).document


def _element(data: bytes, where: str) -> bytes:
    """A payload as XML: JSON in the element that POST /publish makes of it. Raises InputError, and as `xml_element`."""
    first = data.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if not first:
        raise InputError(f"{where} is empty: one XML element is needed, or JSON")
    if first == b"<":
        return xml_element(data, where)
    import msgspec

    from arborcast.topic_model import legacy_content
    from arborcast.wire.answers import text

    try:
        msgspec.json.decode(data)
        json = data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{where} is neither an XML element nor JSON in UTF-8: {error!s:.200}") from error
    return legacy_content.wrap(text(json.strip()), {})


def _read_secret(file: str | None) -> str:
    """The secret or token in a file; empty without a file. Raises InputError for an empty one: pushes would have no
    signature, and no token."""
    if file is None:
        return ""
    secret = read_file(file).decode(errors="replace").strip()
    if not secret:
        raise InputError(f"{'standard input' if file == '-' else file} is empty: a secret or token is needed")
    return secret


def read_file(file: str) -> bytes:
    """The contents of a file or of standard input. Raises InputError."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        # The message itself, where its file was to be named.
        advice = "; a file is meant here, or - for standard input" if file.lstrip().startswith("<") else ""
        raise InputError(f"{file} cannot be read: {reason_of(error)}{advice}") from error
