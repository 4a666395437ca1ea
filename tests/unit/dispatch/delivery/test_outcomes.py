from __future__ import annotations

import pytest

from arborcast.dispatch.delivery.outcomes import classify
from arborcast.dispatch.delivery.transport.contract import PushResult


@pytest.mark.parametrize(
    ("status", "failure", "error", "away"),
    [
        (200, "", "", False),
        (202, "", "", False),
        (204, "", "", False),
        (299, "", "", False),
        # The receiver has taken it; what became of the rest of its answer does not matter.
        (200, "timeout", "", False),
        (202, "disconnected", "", False),
        (301, "", "redirect", False),
        (307, "", "redirect", False),
        (400, "", "client-error", False),
        (410, "", "client-error", False),
        (429, "", "client-error", True),
        (500, "", "server-error", False),
        (502, "", "server-error", True),
        (503, "timeout", "server-error", True),
        (504, "", "server-error", True),
        (0, "timeout", "timeout", True),
        (0, "connect", "connect", True),
        (0, "dns", "dns", True),
        (0, "tls", "tls", True),
        (0, "address", "address", False),
        (0, "disconnected", "disconnected", False),
        (0, "protocol", "protocol", False),
        (0, "internal", "internal", False),
        (0, "", "protocol", False),
        (101, "", "protocol", False),
        (999, "", "protocol", False),
    ],
)
def test_what_a_result_means(status: int, failure: str, error: str, away: bool) -> None:
    outcome = classify(PushResult(status, failure))  # type: ignore[arg-type]

    assert (outcome.delivered, outcome.error, outcome.endpoint_unreachable) == (not error, error, away)
    # A failure of the transport comes with a detail of its own.
    assert bool(outcome.detail) is (not outcome.delivered and outcome.error != failure)
