"""The file of counters of a Java virtual machine."""

from __future__ import annotations

import os
import pwd
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from arborcast.engine.monitoring.perf_counters import counters, figures_of, read_jvm

# As OpenJDK 17 with -XX:+UseSerialGC has them.
SERIAL: Mapping[str, int | str] = {
    "java.cls.loadedClasses": 1_474,
    "java.cls.sharedLoadedClasses": 805,
    "java.cls.unloadedClasses": 4,
    "java.cls.sharedUnloadedClasses": 5,
    "java.threads.live": 6,
    "sun.gc.collector.0.invocations": 45,
    "sun.gc.collector.0.name": "Serial young collection pauses",
    "sun.gc.collector.0.time": 250_000_000,
    "sun.gc.collector.1.invocations": 21,
    "sun.gc.collector.1.name": "Serial full collection pauses",
    "sun.gc.collector.1.time": 1_500_000_000,
    "sun.gc.generation.0.capacity": 11_000_000,
    "sun.gc.generation.0.maxCapacity": 89_000_000,
    "sun.gc.generation.0.space.0.capacity": 9_000_000,
    "sun.gc.generation.0.space.0.used": 2_600_000,
    "sun.gc.generation.0.space.1.capacity": 1_000_000,
    "sun.gc.generation.0.space.1.used": 400_000,
    "sun.gc.generation.1.capacity": 22_000_000,
    "sun.gc.generation.1.maxCapacity": 179_000_000,
    "sun.gc.generation.1.space.0.capacity": 22_000_000,
    "sun.gc.generation.1.space.0.used": 12_000_000,
    "sun.gc.metaspace.used": 8_000_000,
    "sun.gc.policy.collectors": 2,
    "sun.os.hrt.frequency": 1_000_000_000,
}


def file_with(values: Mapping[str, int | str], order: str = "<", accessible: int = 1) -> bytes:
    """Such a file as HotSpot writes it, for machines of either byte order."""
    entries = b""
    for name, value in values.items():
        names = name.encode() + b"\0"
        names += bytes(-len(names) % 8)
        content = struct.pack(order + "q", value) if isinstance(value, int) else value.encode() + b"\0\0\0"
        content += bytes(-len(content) % 8)
        size, kind = (0, b"J") if isinstance(value, int) else (len(value) + 3, b"B")
        length = 20 + len(names) + len(content) + 4
        entries += struct.pack(order + "iiicBBBi", length, 24, size, kind, 0, 1, 2, 24 + len(names))
        entries += bytes(4) + names + content
    head = struct.pack(order + "BBBBiiqii", int(order == "<"), 2, 0, accessible, 0, 0, 0, 32, len(values))
    return b"\xca\xfe\xc0\xc0" + head + entries


def test_a_file_of_either_byte_order_is_read_once_it_is_filled() -> None:
    for order in "<>":
        assert counters(file_with(SERIAL, order)) == SERIAL
    with pytest.raises(ValueError, match="not readable yet"):
        counters(file_with(SERIAL, accessible=0))


@given(st.integers(min_value=0, max_value=len(file_with(SERIAL)) - 1), st.integers(min_value=1, max_value=255))
@example(at=1_548, flipped=1)  # the number of collectors is beyond 2**40
def test_a_cut_or_damaged_file_is_refused_or_read(at: int, flipped: int) -> None:
    whole = file_with(SERIAL)
    for content in (whole[:at], whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :]):
        try:
            figures_of(counters(content))
        except ValueError:
            continue


def test_the_file_of_a_process(tmp_path: Path) -> None:
    folder = tmp_path / f"hsperfdata_{pwd.getpwuid(os.getuid()).pw_name}"
    folder.mkdir()
    file = folder / str(os.getpid())
    assert read_jvm(os.getpid(), tmp_path) is None
    file.write_bytes(file_with(SERIAL))
    found = read_jvm(os.getpid(), tmp_path)
    assert found is not None
    assert found.classes == 2_270
    file.write_bytes(b"something else")
    assert read_jvm(os.getpid(), tmp_path) is None
    assert read_jvm(2**22, tmp_path) is None
