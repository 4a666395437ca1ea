"""`arborcast subscribe`, `unsubscribe`, `publish`, `listen`: a WS-Notification client for the shell."""

from __future__ import annotations

import queue
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from core.errors import ArborcastError
from core.printable import one_line
from core.reasons import reason_of
from jobs.cli.common import ConfigOption, HomeOption, JsonOption, NamespaceOption, namespaces_of, settings_of
from jobs.terminal import console, error_console, print_json, print_json_line, say

if TYPE_CHECKING:
    from ingest.client import Client
    from ingest.client.listener import ReceivedMessage

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help="The broker (default: the engine of --home, else where the settings say).", metavar="URL"
    ),
]
TopicArgument = Annotated[
    str,
    typer.Argument(help="For instance a/b (or a:b), 'a//.' (a and all below), {urn:x}a/b, or p:a/b with -n p=urn:x."),
]


# Never as a value on the command line: everybody on the machine can read that.
SecretFileOption = Annotated[
    str | None,
    typer.Option("--secret-file", help="Sign with the secret in this file; - is standard input.", metavar="FILE"),
]


class InputError(ArborcastError):
    """What was given on the command line cannot be used."""


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (subscribe, unsubscribe, rotate_secret, publish, listen):
        app.command()(command)


def subscribe(
    topic: TopicArgument,
    to: Annotated[str, typer.Option("--to", help="Where notifications are pushed to.", metavar="URL")],
    lasts: Annotated[int | None, typer.Option("--for", help="End after so many seconds.", min=1)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Push payloads alone, without wsnt:Notify.")] = False,
    current: Annotated[bool, typer.Option("--current", help="Push at once what topics keep as their last.")] = False,
    signed: Annotated[bool, typer.Option("--signed", help="Sign pushes; the secret is printed, this once.")] = False,
    secret_file: SecretFileOption = None,
    bearer_file: Annotated[
        str | None,
        typer.Option("--bearer-file", help="Send the token in this file along; - is standard input.", metavar="FILE"),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Push nothing before what came earlier is delivered or given up.")
    ] = False,
    attempts: Annotated[int | None, typer.Option("--attempts", help="Try so many times.", min=1, max=1_000)] = None,
    lifespan: Annotated[int | None, typer.Option("--lifespan", help="Try for so many seconds.", min=1)] = None,
    namespace: NamespaceOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Subscribe a URL to a topic or a subtree; prints the subscription's address."""
    from ingest.client import Credentials, Delivery

    wishes = strict or attempts is not None or lifespan is not None
    delivery = Delivery(strict, attempts, timedelta(seconds=lifespan) if lifespan else None) if wishes else None

    with _client(url, config, home) as client:
        subscription = client.subscribe(
            topic,
            to=to,
            raw=raw,
            current=current,
            lasts=timedelta(seconds=lasts) if lasts else None,
            namespaces=namespaces_of(namespace),
            signed=signed,
            secret=_read_secret(secret_file),
            credentials=Credentials(bearer=_read_secret(bearer_file)) if bearer_file else None,
            delivery=delivery,
        )
    if json:
        secret = {"secret": subscription.secret} if subscription.secret else {}
        print_json({"address": subscription.address, "terminates": subscription.terminates, **secret})
    else:
        say(subscription.address)
        if subscription.secret:
            say(subscription.secret)


def unsubscribe(
    address: Annotated[str, typer.Argument(help="The address that `subscribe` printed.")],
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """End a subscription."""
    with _client(None, config, home) as client:
        client.unsubscribe(address)


def rotate_secret(
    address: Annotated[str, typer.Argument(help="The address that `subscribe` printed.")],
    overlap: Annotated[
        int | None, typer.Option("--overlap", help="The old secret signs too for so many seconds.", min=0)
    ] = None,
    secret_file: SecretFileOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Sign a subscription's pushes with another secret; prints it, once only, when the broker made it."""
    given = _read_secret(secret_file)
    with _client(None, config, home) as client:
        secret = client.rotate_secret(
            address, given, overlap=timedelta(seconds=overlap) if overlap is not None else None
        )
    if not given:
        say(secret)


def publish(
    topic: TopicArgument,
    file: Annotated[str, typer.Argument(help="File with one XML element; - is standard input.", metavar="(FILE | -)")],
    namespace: NamespaceOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
) -> None:
    """Publish a notification; when this returns, the broker has stored it."""
    payload = _read(file)
    with _client(url, config, home) as client:
        client.notify(topic, payload, namespaces=namespaces_of(namespace))


def listen(
    topic: TopicArgument,
    port: Annotated[int, typer.Option("--port", help="Where to receive; 0 takes a free port.", min=0, max=65_535)] = 0,
    host: Annotated[
        str, typer.Option("--host", help="Address to receive at, as the broker can reach it.")
    ] = "127.0.0.1",
    count: Annotated[int | None, typer.Option("--count", help="Stop after so many messages.", min=1)] = None,
    namespace: NamespaceOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Start a small receiver, subscribe it, and print what arrives, until Ctrl-C. With --json one line per message."""
    from ingest.client.listener import Listener

    arrived: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
    try:
        listener = Listener(arrived.put, port=port, host=host)
    except OSError as error:
        raise InputError(f"cannot listen at {host}:{port}: {reason_of(error)}; choose another with --port") from error
    with listener, _client(url, config, home) as client:
        subscription = client.subscribe(topic, to=listener.url, namespaces=namespaces_of(namespace))
        error_console().print(f"listening to {topic} at {listener.url}; Ctrl-C ends it", highlight=False, markup=False)
        try:
            received = 0
            while count is None or received < count:
                _print_message(arrived.get(), json)
                received += 1
        except KeyboardInterrupt:
            pass
        finally:
            client.unsubscribe(subscription.address)


def _print_message(message: ReceivedMessage, json: bool) -> None:
    payload = message.payload.decode()
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


def _client(url: str | None, config: Path | None, home: Path | None) -> Client:
    from jobs.engine.shell_client import ShellClient

    return ShellClient(url or _broker_url(config, home))


def _broker_url(config: Path | None, home: Path | None) -> str:
    """Where the engine of this data directory listens now; where the settings say when it does not run here."""
    from jobs.stack.state import addresses

    settings = settings_of(config, home)
    running = addresses(settings.home).get("gateway")
    return running or settings.gateway.public_url or f"http://{settings.gateway.host}:{settings.gateway.port}"


def _read_secret(file: str | None) -> str:
    return "" if file is None else _read(file).decode(errors="replace").strip()


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        # The message itself, where its file was to be named.
        advice = "; a file is meant here, or - for standard input" if file.lstrip().startswith("<") else ""
        raise InputError(f"{file} cannot be read: {reason_of(error)}{advice}") from error
