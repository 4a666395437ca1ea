"""Settings of what can be seen from outside: metrics and their history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from topic_model.settings import setting


@dataclass(frozen=True)
class MetricsSettings:
    """Where metrics are shown, beside the gateway's own `/metrics`. Nobody is asked for a password: keep to loopback,
    or to a network where only Prometheus can ask."""

    host: str = setting("127.0.0.1", "Address on which the embedded engine and the dispatch job show their metrics.")
    port: int = setting(
        0,
        "Port on which the embedded engine shows the metrics of all its parts; 0 takes a free one, which "
        "`arborcast status` names.",
        minimum=0,
        maximum=65_535,
    )
    job_port: int = setting(
        0,
        "Port on which the dispatch job shows its own; 0 takes a free one, which its log names.",
        minimum=0,
        maximum=65_535,
    )
    sample_s: float = setting(
        5.0, "How often the embedded engine looks at itself, for its history.", minimum=1, maximum=600, unit="s"
    )
    history_hours: float = setting(
        24.0,
        "At least this much history is kept in the data directory, for `arborcast report`; about 1 MB an hour.",
        minimum=0.1,
        maximum=1_000,
        unit="h",
    )


@dataclass(frozen=True)
class LoggingSettings:
    """What the log files look like."""

    format: Literal["human", "json"] = setting(
        "human",
        "human: a line for people. json: an object per line, with the keys at, level, part, message, and what it is "
        "about. Under `arborcast up` that includes what the virtual machines of Kafka and Spark write themselves.",
    )
    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "What is less important is not logged. A steady engine logs nothing at info."
    )
