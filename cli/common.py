"""Options and questions that several commands share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand
from typer.main import get_command
from typer.models import CommandFunctionType

from arborcast.core.errors import ConfigError, NotFound
from arborcast.engine.terminal import note_if_slow, print_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from arborcast.admin.filters import TopicTest
    from arborcast.core.settings import KafkaSettings
    from arborcast.engine.settings.loading import Scalar, Settings
    from arborcast.topic_model.topics import TopicPath


# The groups of `arborcast --help`.
ENGINE = "The engine"
MESSAGES = "Messages"
SUBSCRIBING = "Topics and subscriptions"
FATES = "Deliveries"
OPERATING = "Operating"

NamespaceOption = Annotated[
    list[str] | None,
    typer.Option("--namespace", "-n", help="Declare a prefix used in a topic; may be repeated.", metavar="PREFIX=URI"),
]

TopicArgument = Annotated[str, typer.Argument(help="For instance a/b, a:b, {urn:x}a/b, or p:a/b with -n p=urn:x.")]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

MOST = 1_000_000_000
"""Maximum of a limit: a number that the indexes can take."""

ListedOption = Annotated[int, typer.Option("--limit", help="Maximum number.", min=1, max=MOST)]

LimitOption = Annotated[int | None, typer.Option("--limit", help="Maximum number.", min=1, max=MOST)]


_CONFIG: ContextVar[Path | None] = ContextVar("--config", default=None)
_HOME: ContextVar[Path | None] = ContextVar("--home", default=None)


def _options(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Settings file (default: arborcast.toml here, if there is one).",
            metavar="FILE",
            readable=False,  # settings_of reports an unreadable file, with the remedy
            expose_value=False,
            callback=lambda file: _CONFIG.set(file),
        ),
    ] = None,
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            help="Data directory of the engine (default: .arborcast here).",
            metavar="DIR",
            readable=False,
            expose_value=False,
            callback=lambda folder: _HOME.set(folder),
        ),
    ] = None,
) -> None: ...


@cache
def _engine_options() -> list[Any]:
    app = typer.Typer(add_completion=False)
    app.command()(_options)
    return get_command(app).params


class EngineCommand(TyperCommand):
    """A command with --config and --home, which are no parameters of its function: `settings_of` has their values."""

    def __init__(self, *given: Any, params: list[Any], **named: Any) -> None:
        super().__init__(*given, params=[*params, *_engine_options()], **named)


class CommandGroup(typer.Typer):
    """Commands about an engine, except those registered with another class."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = EngineCommand, **named: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(name, cls=cls, **named)


def settings_of(overrides: dict[str, Scalar] | None = None) -> Settings:
    """The effective settings for a command. Raises ConfigError, also for a data directory of another user: the
    state of its engine cannot be read."""
    from arborcast.engine.settings.loading import load_settings

    settings = load_settings(_CONFIG.get(), _HOME.get(), overrides)
    path = settings.home
    if os.path.isfile(path):
        raise ConfigError(f"the data directory {path} is a file; name a folder with --home DIR")
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(
            f"this user may not look into the data directory {path}: be its owner, or have it shared with "
            'stack.home_access = "group"; --home names another'
        )
    return settings


def existing(settings: Settings) -> Settings:
    """The settings. Raises NotFound if there is no data directory, so that an empty list is one of an engine."""
    if not settings.home.is_dir():
        raise NotFound(f"there is no data directory {settings.home}; --home names another")
    return settings


def namespaces_of(declarations: list[str] | None) -> dict[str, str]:
    """The prefixes given with --namespace. Raises ConfigError."""
    found = {}
    for declaration in declarations or ():
        prefix, equals, uri = declaration.partition("=")
        if not equals or not prefix:
            raise ConfigError(f"--namespace {declaration}: a prefix and a URI are needed, for instance p=urn:x")
        found[prefix] = uri
    return found


def agreed(question: str) -> bool:
    """Whether the person at the terminal confirms. Raises ConfigError where standard input ends without an answer."""
    try:
        return typer.confirm(question, err=True)
    except typer.Abort:
        if sys.stdin.isatty():
            raise
        print_error("")  # ends the line of the question
        raise ConfigError("standard input has no answer: --yes confirms") from None


@contextmanager
def as_interrupts(*signals: signal.Signals) -> Iterator[None]:
    """These signals end a command as Ctrl-C does, with its clean-up; not ignored ones, as nohup ignores SIGHUP. Further
    ones do not end the clean-up: a closed terminal sends SIGHUP twice."""
    before = {number: signal.getsignal(number) for number in signals}
    before = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, lambda *_: None)  # processes that are started would inherit SIG_IGN
        signal.default_int_handler(number, frame)

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def note_omitted(number: int) -> None:
    """Report the number of rows beyond the limit of a list; nothing for none."""
    if number > 0:
        print_error(f"and {number:,} more: --limit shows them")


def condition(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """A condition as it was given. Refuses an empty one, as of an unset variable in a script: without a condition the
    command would be for all deliveries."""
    source = context.get_parameter_source(parameter.name or "")
    if not value.strip() and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("it is empty; leave it out where it is no condition")
    return value


SubscriptionOption = Annotated[
    str,
    typer.Option("--subscription", help="Only deliveries to this subscription.", metavar="ID", callback=condition),
]

NotificationOption = Annotated[
    str, typer.Option("--notification", help="Only this notification.", metavar="ID", callback=condition)
]

AcceptedSinceOption = Annotated[
    str,
    typer.Option(
        "--since", help="Only notifications accepted since: 30m, 2h, 7d, or 2026-01-31T12:00.", metavar="TIME"
    ),
]

UntilOption = Annotated[
    str,
    typer.Option(
        "--until", help="Only before this time; as --since.", metavar="TIME", show_default="now", callback=condition
    ),
]

TopicsOption = Annotated[
    str,
    typer.Option(
        "--topic", help="Only these topics: a/b, a:b, 'a//.' (a and all below).", metavar="TOPIC", callback=condition
    ),
]


def kafka_of() -> KafkaSettings:
    """The Kafka of the running engine of this data directory, else the configured one. Raises InfrastructureError
    within seconds without a broker; see `admin.connection`."""
    from arborcast.admin import connection
    from arborcast.engine.embedded.state import reachable_kafka

    settings = settings_of()
    servers = reachable_kafka(settings).bootstrap_servers
    with note_if_slow(f"Kafka at {servers} has not answered yet; waiting for some seconds"):
        return connection.kafka_of(settings)


def note_no_job() -> None:
    """Warn when the engine of this data directory has no streaming job: nothing is delivered."""
    from arborcast.engine.embedded.status import NO_JOB, job_state

    if job_state(settings_of().home) == "none":
        print_error(f"note: {NO_JOB}")


def resolved(text: str, namespaces: Mapping[str, str]) -> str:
    """A topic or expression as it was typed, with topics in the place of their codes (`code:1.4.A`). Only where there
    may be one the logs are read. Raises ExpressionError, InfrastructureError."""
    if "code:" not in text:
        return text
    from arborcast.admin.control_log import read_tree
    from arborcast.topic_model.expressions import with_codes

    return with_codes(text, namespaces, read_tree(kafka_of()).paths_with_code)


def one_topic(text: str, namespace: list[str] | None) -> TopicPath:
    """The one topic that is named, by path or by code. Raises TopicError, ExpressionError, InfrastructureError."""
    from arborcast.admin import topics

    namespaces = namespaces_of(namespace)
    return topics.one_topic(resolved(text, namespaces), namespaces)


def topic_filter(topic: str, namespace: list[str] | None) -> TopicTest:
    """The topics of --topic and --namespace. Raises ConfigError."""
    from arborcast.admin.filters import TopicTest

    return TopicTest(topic, tuple(namespaces_of(namespace).items()))
