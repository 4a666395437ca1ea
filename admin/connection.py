"""The Kafka of an engine, for questions and changes."""

from __future__ import annotations

from arborcast.core.errors import InfrastructureError
from arborcast.core.settings import KafkaSettings
from arborcast.engine.embedded import questions
from arborcast.engine.embedded.state import has_own_broker, reachable_kafka
from arborcast.engine.settings.loading import Settings


def kafka_of(settings: Settings) -> KafkaSettings:
    """The Kafka of the engine that runs in this data directory; if none runs, the one in the settings.

    Raises InfrastructureError within seconds when no broker answers, and when the broker would be the embedded one and
    does not run: the port may be another engine's.
    """
    kafka = reachable_kafka(settings)
    if kafka is settings.kafka and has_own_broker(settings):
        raise InfrastructureError(
            f"no engine runs in {settings.home}, so its logs cannot be read: `arborcast up` starts one, --home names "
            'another; where Kafka is not ours, stack.broker = "external" and kafka.bootstrap_servers say so'
        )
    if away := questions.why_away(kafka):
        advice = (
            "is it up, and does kafka.bootstrap_servers say where?"
            if kafka is settings.kafka
            else f"`arborcast status --home {settings.home}` says how the engine is"
        )
        raise InfrastructureError(f"Kafka cannot be reached: {away} ({advice})")
    return kafka
