"""XML in a process without free memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PARSE = """
import resource
from pathlib import Path
from arborcast.topic_model.expressions.conditions import EvaluationError, parse_document
from arborcast.wire.errors import MalformedMessage
from arborcast.wire.xml_reading import read_xml

document = b"<a>" + b"<b c='d'>e</b>" * 200_000 + b"</a>"
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
for parse in (parse_document, read_xml):
    resource.setrlimit(resource.RLIMIT_AS, (used, resource.RLIM_INFINITY))
    try:
        parse(document)
    except (MemoryError, MalformedMessage, EvaluationError) as error:
        found = type(error).__name__
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the memory of a process so")
def test_a_document_without_memory_for_it_is_not_malformed() -> None:
    """Its message would be refused, or match no condition."""
    done = subprocess.run([sys.executable, "-c", _PARSE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["MemoryError", "MemoryError"]
