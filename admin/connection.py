"""The Kafka and the gateway of an engine."""

from __future__ import annotations

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded.home import Home
from arborcast.engine.embedded.state import addresses, has_own_broker, reachable_kafka
from arborcast.engine.settings.loading import Settings


def kafka_of(settings: Settings) -> KafkaSettings:
    """The Kafka of the engine that runs in this data directory; if none runs, that of the settings.

    Raises InfrastructureError within seconds if no broker answers, and if the broker is the embedded one and does not
    run: the port may be another engine's.
    """
    kafka = reachable_kafka(settings)
    if kafka is settings.kafka and has_own_broker(settings):
        raise InfrastructureError(
            f"no engine runs in {settings.home}, so its logs cannot be read: `arborcast up` starts one, --home names "
            'another; for an external Kafka set stack.broker = "external" and kafka.bootstrap_servers'
        )
    from arborcast.engine.embedded import questions  # commands that use only the gateway do not load it

    if unreachable := questions.unreachable_reason(kafka):
        advice = (
            "is it running, and is kafka.bootstrap_servers right?"
            if kafka is settings.kafka
            else f"`arborcast status --home {settings.home}` shows the state of the engine"
        )
        raise InfrastructureError(f"Kafka cannot be reached: {unreachable} ({advice})")
    return kafka


def gateway_url(settings: Settings) -> str:
    """The address of the gateway of the engine that runs in this data directory; if none runs, that of the settings.

    Raises InfrastructureError if the data directory belongs to a stopped engine: another engine may listen at its port.
    """
    known = addresses(settings.home).get("gateway") or settings.gateway.public_url
    if known:
        return known
    if has_own_broker(settings) or Home(settings.home).state_file.exists():
        raise InfrastructureError(
            f"no engine runs in {settings.home}: `arborcast up` starts one, --home names another, and --url a broker "
            "elsewhere (as does gateway.public_url in the settings)"
        )
    return settings.gateway_url
