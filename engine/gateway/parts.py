"""Parts of the gateway that depend on several settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from arborcast.core.errors import ConfigError, InfrastructureError
from arborcast.core.mqtt.settings import check_installed, for_mqtt
from arborcast.core.security.ip_addresses import in_url
from arborcast.core.telemetry.metrics import Registry
from arborcast.directory.stores import open_directory
from arborcast.directory.sync import problems
from arborcast.directory.sync.sync import DirectorySync
from arborcast.engine.embedded.home import make_home
from arborcast.engine.install import jars
from arborcast.engine.processes.errors import StackError
from arborcast.engine.settings.loading import Settings
from arborcast.ingest.access.bearer import Bearer
from arborcast.ingest.access.gate import Authenticator, Gate
from arborcast.ingest.access.policy import current_policy
from arborcast.ingest.access.rates import Rates
from arborcast.ingest.access.username_token import NonceMemory
from arborcast.ingest.access.users import users_of
from arborcast.ingest.http.serving import proxies
from arborcast.ingest.mqtt import incoming
from arborcast.ingest.mqtt.rules import read_rules
from arborcast.ingest.operations.gateway import Gateway
from arborcast.ingest.soap.wsdl import ServiceDescriptions, published_documents
from arborcast.topic_model.control_log import ControlLog, OperationsLog
from arborcast.topic_model.projections.pull_store import PullLimits
from arborcast.topic_model.records.control import ControlRecord, TopicRecord
from arborcast.topic_model.records.operations import Operator, begun, control_changes
from arborcast.topic_model.topics import TopicPath

if TYPE_CHECKING:
    from arborcast.ingest.mqtt.bridge import MqttBridge

logger = logging.getLogger("arborcast.gateway")


def pull_limits(settings: Settings) -> PullLimits:
    gateway = settings.gateway
    return PullLimits(gateway.pull_messages, gateway.pull_bytes, gateway.pull_memory_bytes, gateway.pull_total_messages)


def ensure_home(settings: Settings) -> None:
    """Create the data directory, for a gateway without an engine. Raises ConfigError."""
    try:
        note = make_home(settings.home, settings.stack.home_access)
    except OSError as error:
        raise ConfigError(f"home = {settings.home} cannot be made: {error.strerror}") from error
    if note:
        logger.info("%s", note)


def gate(settings: Settings) -> Gate | None:
    """Authentication and limits before the operations; None without limits and authentication.

    Raises ConfigError for unreadable files of users or of policy.
    """
    rates, access, trusted = Rates(settings.limits), settings.access, proxies(settings.gateway)
    if not access.chosen():
        return Gate(rates, proxies=trusted) if rates.enabled else None
    users = users_of(access, settings.directory)
    if "certificate" in access.chosen() and not settings.tls.client_ca_file:
        raise ConfigError(
            "access.methods contains certificate: tls.client_ca_file must name the authorities of these certificates"
        )
    bearer = Bearer(access) if "bearer" in access.chosen() else None
    authenticator = Authenticator(access, users, bearer=bearer, nonces=_nonces(settings))
    return Gate(rates, authenticator, current_policy(access.policy_file), trusted)


def mqtt_bridge(gateway: Gateway, settings: Settings, metrics: Registry) -> MqttBridge:
    """The bridge to the broker of `mqtt.url`. Raises ConfigError."""
    mqtt = settings.mqtt
    check_installed()
    from arborcast.ingest.mqtt.bridge import MqttBridge

    refusal = for_mqtt(gateway.outbound).check_url(mqtt.base)
    if refusal is not None:
        raise ConfigError(f"mqtt.url = {mqtt.url!r} {refusal}")
    rules = read_rules(Path(mqtt.rules_file), mqtt.base)
    bridge = MqttBridge(gateway, mqtt, rules)
    if rules.incoming:  # otherwise it holds no session
        incoming.declare(metrics, lambda: bridge.connected, lambda: bridge.counts)
    return bridge


def _nonces(settings: Settings) -> NonceMemory | None:
    """Used digests of all workers, and of an earlier process; None without digests."""
    access = settings.access
    if "token" not in access.chosen() or access.users != "file":
        return None
    ensure_home(settings)
    return NonceMemory(access.token_window_s, access.token_nonces, settings.home / "nonces")


def public_url(settings: Settings, host: str, port: int) -> str:
    """The public URL; empty for plain HTTP to the listening address."""
    if settings.gateway.public_url or not settings.tls.certificate_file:
        return settings.gateway.public_url
    return f"https://{in_url(host)}:{port}"


def descriptions() -> ServiceDescriptions | None:
    """The documents of `?wsdl`; None without the published schemas: the gateway works without them."""
    try:
        (jar,) = jars.jar_paths("wsdl")
        return ServiceDescriptions(published_documents(jar))
    except (StackError, InfrastructureError) as error:
        logger.warning("no WSDL is served: %s", error)
        return None


def directory_sync(settings: Settings, log: ControlLog) -> DirectorySync | None:
    """The synchronisation of control log and directory; None without a directory. Raises ConfigError."""
    directory = open_directory(settings.directory)
    if directory is None:
        return None
    ensure_home(settings)
    home, by = settings.home, Operator("directory", directory.name)

    @contextmanager
    def recorded(records: Sequence[ControlRecord], before: Mapping[TopicPath, TopicRecord | None]) -> Iterator[object]:
        changes, more = control_changes(records, lambda path: before.get(TopicPath(path)))
        with closing(OperationsLog(settings.kafka)) as log, log.recorded(begun(by, "edit", changes, more)) as recording:
            yield recording

    return DirectorySync(directory, log.append, home / "directory-known.json", home / problems.FILE, recorded)
