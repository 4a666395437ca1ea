"""What is heard of a process that logs, once it is configured."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SAYS = """
import logging
from arborcast.core.telemetry import log_format
{configure}
for name in ("kafka", "kafka.net.manager", "kafka.producer.sender"):
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger(name), level)("client %s", level)
logging.getLogger("dispatch").info("ours")
"""


@pytest.mark.parametrize(
    ("configure", "heard"),
    [
        ("log_format.configure_worker()", ["ours"]),
        ("log_format.configure('human', 'x')", ["ours"]),
        ("log_format.configure('human', 'x', logging.DEBUG)", ["client warning", "client error"] * 3 + ["ours"]),
    ],
)
def test_the_kafka_client_is_not_heard_unless_somebody_looks_for_it(configure: str, heard: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SAYS.format(configure=configure)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ARBORCAST_LOG_FORM": "human"},
    )
    lines = done.stderr.splitlines()
    assert len(lines) == len(heard)
    assert all(line.endswith(each) for line, each in zip(lines, heard, strict=True)), lines
