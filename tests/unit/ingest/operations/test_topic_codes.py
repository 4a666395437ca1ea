"""Codes from places, given beside what the gateway does else."""

from __future__ import annotations

import asyncio

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.operations import topic_codes
from arborcast.ingest.operations.topic_codes import TopicCodes
from arborcast.topic_model.records.control import TopicPlaces, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.gateway_parts import GatewayParts
from tests.support.waiting import wait_until_async


def records(*paths: str) -> list[TopicRecord]:
    return [TopicRecord(TopicPath(path)) for path in paths]


async def test_every_topic_gets_a_code(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(topic_codes, "_RETRY_S", 0.0)
    parts, codes = GatewayParts(), TopicCodes()
    parts.control.folds = [*parts.control.folds, codes]

    async def until(**expected: str) -> None:
        def known() -> dict[str, str]:
            return {each.path.replace("/", "_"): each.code for each in parts.table.topics.records()}

        await wait_until_async(lambda: known() == expected, known)

    await parts.control.commit(records("a", "a/b"))
    giving = asyncio.create_task(codes.give_forever(parts.gateway))
    await until(a="1", a_b="1.1")
    await parts.gateway.admit({TopicPath("c"): "", TopicPath("a/d"): ""})
    await until(a="1", a_b="1.1", c="2", a_d="1.2")
    (added,) = records("e")
    parts.table.apply(added)
    codes.apply(added)
    parts.control.error = InfrastructureError("away")
    await wait_until_async(lambda: "cannot be given codes now: away" in caplog.text)
    parts.control.error = None
    await until(a="1", a_b="1.1", c="2", a_d="1.2", e="3")
    giving.cancel()
    assert parts.control.records[-2:] == [
        TopicPlaces(TopicPath(""), last=3),
        TopicRecord(TopicPath("e"), "3", placed=True),
    ]
