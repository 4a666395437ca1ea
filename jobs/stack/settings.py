"""Settings of the embedded stack; an engine on existing Kafka and Spark needs none of them."""

from __future__ import annotations

from dataclasses import dataclass

from topic_model.settings import setting


@dataclass(frozen=True)
class StackSettings:
    """What `arborcast up` starts, and how much of the machine it may use."""

    kafka_port: int = setting(9092, "Port of the embedded broker; 0 picks a free one.", minimum=0, maximum=65_535)
    kafka_heap_mb: int = setting(256, "Java heap of the embedded broker.", minimum=128, unit="MB")
    spark_heap_mb: int = setting(512, "Java heap of the streaming job.", minimum=256, unit="MB")
    spark_master: str = setting("local[4,4]", "Spark master of the streaming job; slots and tries per task.")
    stop_timeout_s: float = setting(10.0, "All parts together get this long to stop.", minimum=1, unit="s")
