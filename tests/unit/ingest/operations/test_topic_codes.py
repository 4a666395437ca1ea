"""Codes from places, given beside what the gateway does else."""

from __future__ import annotations

import asyncio
import logging

import pytest

from arborcast.core.errors import InfrastructureError
from arborcast.ingest.operations import topic_codes
from arborcast.ingest.operations.topic_codes import TopicCodes
from arborcast.topic_model.records.control import TopicPlaces, TopicRecord
from arborcast.topic_model.topics import TopicPath
from tests.support.gateway_parts import GatewayParts


def records(*paths: str) -> list[TopicRecord]:
    return [TopicRecord(TopicPath(path)) for path in paths]


def test_every_topic_gets_a_code(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(topic_codes, "_RETRY_S", 0.0)
    parts, codes = GatewayParts(), TopicCodes()
    parts.control.folds = [*parts.control.folds, codes]

    def known() -> dict[str, str]:
        return {each.path: each.code for each in parts.table.topics.records()}

    async def until(expected: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while known() != expected:
                await asyncio.sleep(0)

    async def run() -> None:
        await parts.control.commit(records("a", "a/b"))
        giving = asyncio.create_task(codes.give_forever(parts.gateway))
        await until({"a": "1", "a/b": "1.1"})
        await parts.gateway.admit({TopicPath("c"): "", TopicPath("a/d"): ""})
        await until({"a": "1", "a/b": "1.1", "c": "2", "a/d": "1.2"})
        (added,) = records("e")
        parts.table.apply(added)
        codes.apply(added)
        parts.control.error = InfrastructureError("away")
        async with asyncio.timeout(60):
            while "cannot be given codes now: away" not in caplog.text:
                await asyncio.sleep(0)
        parts.control.error = None
        await until({"a": "1", "a/b": "1.1", "c": "2", "a/d": "1.2", "e": "3"})
        giving.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert parts.control.records[-2:] == [
        TopicPlaces(TopicPath(""), last=3),
        TopicRecord(TopicPath("e"), "3", placed=True),
    ]
