"""Parts of the gateway that need a decision about settings before they can be made."""

from __future__ import annotations

import logging

from ingest.access.gate import Gate
from ingest.access.rates import Rates
from ingest.oasis import PublishedDocuments
from ingest.service_wsdl import ServiceDescriptions
from jobs.settings import Settings
from jobs.stack import jars
from jobs.stack.errors import StackError
from topic_model.control_log import ControlLog
from topic_model.directory.opening import open_directory
from topic_model.directory.sync import DirectorySync
from topic_model.errors import ConfigError, InfrastructureError
from topic_model.pull_store import PullLimits

logger = logging.getLogger("arborcast.gateway")


def pull_limits(settings: Settings) -> PullLimits:
    """How much may wait in pull points."""
    gateway = settings.gateway
    return PullLimits(gateway.pull_messages, gateway.pull_bytes, gateway.pull_memory_bytes)


def check_sizes(settings: Settings) -> None:
    """A body grows when it is stored (as UTF-8, with its namespaces); what was accepted must fit into a record."""
    needed = 3 * settings.gateway.max_body_bytes // 2 + 128 * 1024
    if settings.kafka.max_record_bytes < needed:
        raise ConfigError(
            f"kafka.max_record_bytes = {settings.kafka.max_record_bytes} is too small for gateway.max_body_bytes = "
            f"{settings.gateway.max_body_bytes}: at least {needed} are needed"
        )


def gate(settings: Settings) -> Gate | None:
    """What stands before the operations; None where nothing is limited."""
    rates = Rates(settings.limits)
    return Gate(rates) if rates.enabled else None


def descriptions() -> ServiceDescriptions | None:
    """What `?wsdl` needs; None where the published schemas are not there, which is no reason not to work."""
    try:
        (jar,) = jars.jar_paths("wsdl")
        return ServiceDescriptions(PublishedDocuments(jar))
    except (StackError, InfrastructureError) as error:
        logger.warning("no WSDL is served: %s", error)
        return None


def directory_sync(settings: Settings, log: ControlLog) -> DirectorySync | None:
    """What keeps the control log and the directory in step; None without a directory. Raises ConfigError."""
    directory = open_directory(settings.directory, settings.home / "topics.ldif")
    if directory is None:
        return None
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"home = {settings.home} cannot be made: {error.strerror}") from error
    return DirectorySync(directory, log.append, settings.home / "directory-known.json")
