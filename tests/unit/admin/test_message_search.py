"""The search for a part of a payload, in a scripted log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from arborcast.admin import messages
from arborcast.admin.filters import TopicTest
from arborcast.admin.messages import FoundMessages, MessageSearch, search
from arborcast.admin.times import iso
from arborcast.core.settings import KafkaSettings
from arborcast.topic_model.records.control import Erasure, ErasureScope
from arborcast.topic_model.records.notifications import Notification, encode
from arborcast.topic_model.topics import TopicPath
from tests.support.console import ConsoleParts, console_parts
from tests.support.listed_logs import Listed

# The time of the first record; one second between records.
BEGIN_MS = 1_767_225_600_000

PARTITIONS = 2


class PlayedLog:
    """A scripted `LogConsumer`; two records of each partition are polled at a time."""

    def __init__(self, records: Sequence[Listed]) -> None:
        self.records = [[each for each in records if each.partition == number] for number in range(PARTITIONS)]
        self._positions: dict[int, int] = {}
        self.read = 0

    def at(self, ms: int) -> dict[int, int]:
        return {
            number: next((each.offset for each in records if each.timestamp >= ms), len(records))
            for number, records in enumerate(self.records)
        }

    def ends(self) -> dict[int, int]:
        return {number: len(records) for number, records in enumerate(self.records)}

    def seek(self, positions: Mapping[int, int]) -> None:
        self._positions = dict(positions)

    def positions(self) -> dict[int, int]:
        return self._positions

    def poll(self, _timeout_s: float) -> dict[int, list[Listed]]:
        found = {number: self.records[number][at : at + 2] for number, at in self._positions.items()}
        self._positions = {number: at + len(found[number]) for number, at in self._positions.items()}
        self.read += sum(map(len, found.values()))
        return found

    def close(self) -> None:
        pass


def made(number: int, payload: bytes, topic: str = "a/b", only: str = "") -> Notification:
    return Notification(f"n{number}", TopicPath(topic), payload, BEGIN_MS + 1_000 * number, only=only)


@pytest.fixture
def parts(tmp_path: Path) -> ConsoleParts:
    return console_parts(tmp_path)


def played(monkeypatch: pytest.MonkeyPatch, *notifications: Notification) -> PlayedLog:
    offsets = [0] * PARTITIONS
    records = []
    for number, each in enumerate(notifications):
        partition = number % PARTITIONS
        records.append(Listed(*encode(each), offsets[partition], BEGIN_MS + 1_000 * number, partition))
        offsets[partition] += 1
    log = PlayedLog(records)
    monkeypatch.setattr(messages, "LogConsumer", lambda *_, **__: log)
    return log


def ids(found: FoundMessages) -> list[str]:
    return [each.id for each in found.messages]


def sought(
    parts: ConsoleParts, text: str, *, topic: str = "", first: int = 0, last: int = 99, after: str = "", **more: int
) -> FoundMessages:
    since, until = (iso(BEGIN_MS + 1_000 * number) for number in (first, last))
    return search(KafkaSettings(), MessageSearch(text, TopicTest(topic), since, until, after), parts.control, **more)


def test_a_text_is_found_within_a_time_and_a_subtree(parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    order = b"<order>4711</order>"
    long = b"<x>" + b"y" * 9_000 + b"4711</x>"
    log = played(
        monkeypatch,
        *(made(number, order) for number in (0, 1)),
        made(2, b"<order>1</order>"),
        made(3, order, "c"),
        made(4, long),
        made(5, order, only="s1"),
        made(6, order),
    )
    found = sought(parts, "4711", topic="a//.", first=1, last=5)
    assert ids(found) == ["n1", "n4"]
    assert "4711" in found.messages[1].payload
    assert len(found.messages[1].payload) < 3_000
    assert (found.looked_at, found.next) == (5, "")
    assert log.read <= 7
    assert ids(sought(parts, "4712")) == []
    assert ids(sought(parts, "", first=2, last=3)) == ["n2", "n3"]


def test_a_clock_that_was_put_back_hides_no_newest_message(
    parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = played(monkeypatch, *(made(number, b"<a>4711</a>") for number in range(4)))
    log.records[0][0].timestamp = 2**42  # of the year 2109
    wanted = MessageSearch("4711", TopicTest(""), iso(BEGIN_MS))
    assert ids(search(KafkaSettings(), wanted, parts.control)) == ["n0", "n1", "n2", "n3"]


def test_text_of_json_is_found_but_no_erased_message(parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, made(0, b'<c>{"a": "x &lt; y"}</c>'), made(1, b'<c>{"a": "x &lt; y"}</c>'))
    assert ids(sought(parts, '"x < y"')) == ["n0", "n1"]
    parts.put(Erasure(ErasureScope("e1", BEGIN_MS + 500, "a//."), "anna", BEGIN_MS))
    assert ids(sought(parts, '"x < y"')) == ["n1"]


@pytest.mark.parametrize("bound", [{"most": 3}, {"most_bytes": 300}])
def test_a_bounded_search_continues_at_its_end(
    parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch, bound: dict[str, Any]
) -> None:
    log = played(monkeypatch, *(made(number, b"<a>4711</a>") for number in range(21)))
    found = sought(parts, "4711", **bound)
    assert log.read <= 4
    seen = ids(found)
    while found.next:
        read = log.read
        found = sought(parts, "4711", after=found.next, **bound)
        assert log.read - read <= 4
        seen += ids(found)
    assert sorted(seen) == sorted(f"n{number}" for number in range(21)), "each once"


def test_a_search_without_time_left_reads_nothing(parts: ConsoleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    log = played(monkeypatch, made(0, b"<a>4711</a>"))
    found = sought(parts, "4711", patience_s=0)
    assert (found.next, log.read) == ("0.0", 0)
    assert ids(sought(parts, "4711", after=found.next)) == ["n0"]
    assert ids(sought(parts, "4711", after="x.-1.99")) == ["n0"], "an invalid place starts at the time"
