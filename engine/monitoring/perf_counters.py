"""Internal figures of a Java virtual machine on this host, from its counter file for `jstat`.

`jcmd PID PerfCounter.print` prints the same file. Each jcmd starts a virtual machine (70 ms of CPU, and only with a
JDK); reading the file takes a fraction of a millisecond. The layout is that of HotSpot's jvmstat, version 2.0,
unchanged since Java 5.
"""

from __future__ import annotations

import os
import pwd
import re
import struct
from collections.abc import Mapping
from pathlib import Path

from arborcast.core.telemetry.jvm import Collections, JvmFigures

_MAGIC = bytes.fromhex("cafec0c0")
# Byte order, version 2.0, accessible; used bytes, overflow, time of change, position and number of the entries.
_HEAD = "BBBBiiqii"
# Length; position of the name; vector length; type, flags, unit, variability; position of the value.
_ENTRY = "iiiBBBBi"

# HotSpot's default is 32 KiB.
_MOST_BYTES = 2**20

_SPACE = re.compile(r"sun\.gc\.generation\.\d+\.space\.\d+\.(used|capacity)")
_GENERATION_MAX = re.compile(r"sun\.gc\.generation\.\d+\.maxCapacity")


def read_jvm(pid: int, folder: Path = Path("/tmp")) -> JvmFigures | None:  # noqa: S108  # HotSpot uses no other place
    """The figures of a process; None without a counter file (-XX:-UsePerfData), or after its end."""
    try:
        user = Path(f"/proc/{pid}").stat().st_uid
        file = folder / f"hsperfdata_{pwd.getpwuid(user).pw_name}" / str(pid)
        # The folder is writable by everyone: only files of the process's own user are trusted, and opening a pipe of
        # another user must not wait.
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if os.fstat(stream.fileno()).st_uid != user:
                return None
            return figures_of(counters(stream.read(_MOST_BYTES)))
    except (OSError, KeyError, ValueError):
        return None


def counters(content: bytes) -> Mapping[str, int | str]:
    """All counters by their names. Raises ValueError for another file."""
    if content[:4] != _MAGIC:
        raise ValueError("this is not a file of performance counters")
    found: dict[str, int | str] = {}
    try:
        order = "<" if content[4:5] == b"\1" else ">"
        entry = struct.Struct(order + _ENTRY)
        _, major, _, accessible, _, _, _, at, entries = struct.unpack_from(order + _HEAD, content, 4)
        if major != 2 or not accessible:
            raise ValueError("the counters have another version, or are not readable yet")
        for _ in range(entries):
            length, name_at, size, kind, _, _, _, value_at = entry.unpack_from(content, at)
            end = content.index(b"\0", at + name_at)
            name = content[at + name_at : end].decode("ascii")
            if kind == ord("J") and not size:
                found[name] = struct.unpack_from(order + "q", content, at + value_at)[0]
            elif kind == ord("B"):
                text = content[at + value_at : at + value_at + size]
                found[name] = text.partition(b"\0")[0].decode("utf-8", "replace")
            # An entry without length would be read for ever.
            at += max(length, entry.size)
    except struct.error as error:
        raise ValueError("the file of performance counters is cut off") from error
    return found


def figures_of(known: Mapping[str, int | str]) -> JvmFigures:
    """The relevant counters. Raises ValueError if one is missing."""
    numbers = {name: value for name, value in known.items() if isinstance(value, int)}
    spaces = {"used": 0, "capacity": 0}
    for name, value in numbers.items():
        if match := _SPACE.fullmatch(name):
            spaces[match[1]] += value
    try:
        ticks = numbers["sun.os.hrt.frequency"]
        collectors = {}
        # A damaged number may have any value.
        for number in range(min(numbers["sun.gc.policy.collectors"], len(numbers))):
            kind = f"sun.gc.collector.{number}"
            if f"{kind}.invocations" in numbers:
                name = str(known.get(f"{kind}.name", number))
                collectors[name] = Collections(numbers[f"{kind}.invocations"], numbers[f"{kind}.time"] / ticks)
        classes = (
            numbers["java.cls.loadedClasses"]
            + numbers["java.cls.sharedLoadedClasses"]
            - numbers["java.cls.unloadedClasses"]
            - numbers["java.cls.sharedUnloadedClasses"]
        )
        return JvmFigures(
            heap_used=spaces["used"],
            heap_committed=spaces["capacity"],
            heap_max=sum(value for name, value in numbers.items() if _GENERATION_MAX.fullmatch(name)),
            collectors=collectors,
            classes=classes,
            threads=numbers["java.threads.live"],
        )
    except (KeyError, ZeroDivisionError) as error:
        raise ValueError(f"the counters lack {error}") from error
