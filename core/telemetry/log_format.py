"""The format of log lines of all processes: time, level, part, message, and the related objects.

A message about one notification, subscription or endpoint names it in `extra`, so that all lines about it can be found:

    logger.error("no envelope could be made", extra={"subscription": subscription.id})

Levels: debug for developers; info at start, stop, and lasting changes; warning for a problem that is being handled;
error for a loss or an abandoned operation; critical for a failure that ends the process.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from arborcast.core.log_limit import LogLimit
from arborcast.core.printable import as_json, printable

Form = Literal["human", "json"]

FACTS = ("notification", "subscription", "endpoint")

INHERITED = "ARBORCAST_LOG_FORM"
"""The environment variable with the format for Spark's Python workers, which have no settings file."""

# Characters of a message, which may have text of a request, and of a stack trace.
_MOST_TEXT, _MOST_TRACE = 8_000, 32_000

_HUMAN = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z +[a-z]+ +\S+: (.*)", re.DOTALL)


def write(form: Form, at: float, level: str, part: str, message: str, facts: Mapping[str, str] | None = None) -> str:
    """A line, without its end. `at` in seconds of the epoch. In the human format the first line starts with our prefix
    and further lines (a stack trace) are indented. Both formats escape terminal control characters in names and
    messages from outside."""
    moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if form == "json":
        document = {"at": moment, "level": level, "part": part, "message": message, **(facts or {})}
        return as_json(document, ensure_ascii=False)
    about = "".join(f" {name}={value}" for name, value in (facts or {}).items())
    return printable(f"{moment} {level:7} {part}: {message}{about}").replace("\n", "\n    ")


def message_of(line: str) -> str | None:
    """The message of a log line; None if the line has another format."""
    if line.startswith("{"):
        try:
            document = json.loads(line)
            return str(document["message"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    match = _HUMAN.fullmatch(line)
    return match[1] if match else None


class LineFormatter(logging.Formatter):
    """Formats log records. JSON lines also have the logger's name."""

    def __init__(self, form: Form, part: str) -> None:
        super().__init__()
        self._form: Form = form
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        """One line; in the human format followed by the stack trace, if any."""
        message = _cut(record.getMessage(), _MOST_TEXT)
        if omitted := getattr(record, "omitted", 0):
            message += f" (and {omitted} more lines like it since the last)"
        facts = {name: str(value) for name in FACTS if (value := getattr(record, name, ""))}
        if record.exc_info:
            trace = _cut(self.formatException(record.exc_info), _MOST_TRACE)
            if self._form == "json":
                facts["trace"] = trace
            else:
                # The facts belong to the first line.
                message += "".join(f" {name}={value}" for name, value in facts.items()) + "\n" + trace
                facts = {}
        if self._form == "json":
            facts["logger"] = record.name
        return write(self._form, record.created, record.levelname.lower(), self._part, message, facts)


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a long text."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"


def configure(form: Form, part: str, level: int = logging.INFO) -> None:
    """Send the log of this process to standard error in this format, with a limit of repeated lines.

    Messages of the Kafka client are dropped: while a broker is down it logs each connection attempt several times, as
    errors, many per second. Its users log such a failure once. With `level` debug its warnings appear; those of a quota
    of Kafka, which delays requests and fails none, always do.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form, part))
    handler.addFilter(LogLimit())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("kafka").setLevel(logging.WARNING if level <= logging.DEBUG else logging.CRITICAL)
    connections = logging.getLogger("kafka.net.connection")
    connections.setLevel(logging.WARNING)
    connections.filters = [lambda record: level <= logging.DEBUG or "throttled by broker" in str(record.msg)]


def configure_worker() -> None:
    """As `configure`, for a process started by Spark."""
    configure("json" if os.environ.get(INHERITED) == "json" else "human", "dispatch")
