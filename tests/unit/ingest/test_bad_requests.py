from __future__ import annotations

import asyncio

import pytest

from arborcast.ingest.settings import GatewaySettings
from tests.support import oasis
from tests.support.bad_requests import CASES, LIMIT, BadRequest
from tests.support.gateway_parts import GatewayParts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_request_is_answered_precisely_and_changes_nothing(case: BadRequest) -> None:
    parts = GatewayParts(GatewaySettings(max_body_bytes=LIMIT))
    answer = asyncio.run(parts.request(case.method, case.path, case.body, case.headers))
    assert answer.status == case.status
    if case.fault:
        assert answer.fault == case.fault
        assert case.says in answer.reason
        oasis.validate(answer.body)
    else:
        assert case.says in answer.body.decode()
    assert parts.control.records == []
    assert parts.notifications.accepted == []


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
