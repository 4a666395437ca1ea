from __future__ import annotations

import pytest

from dispatch.outcomes import classify
from dispatch.transport.contract import PushResult


@pytest.mark.parametrize(
    ("status", "failure", "state", "error", "away"),
    [
        (200, "", "delivered", "", False),
        (202, "", "delivered", "", False),
        (204, "", "delivered", "", False),
        (299, "", "delivered", "", False),
        # The receiver has taken it; what became of the rest of its answer does not matter.
        (200, "timeout", "delivered", "", False),
        (202, "disconnected", "delivered", "", False),
        (301, "", "failed", "redirect", False),
        (307, "", "failed", "redirect", False),
        (400, "", "failed", "client-error", False),
        (410, "", "failed", "client-error", False),
        (429, "", "failed", "client-error", False),
        (500, "", "failed", "server-error", False),
        (503, "timeout", "failed", "server-error", False),
        (0, "timeout", "failed", "timeout", True),
        (0, "connect", "failed", "connect", True),
        (0, "dns", "failed", "dns", True),
        (0, "tls", "failed", "tls", True),
        (0, "address", "failed", "address", True),
        (0, "disconnected", "failed", "disconnected", False),
        (0, "protocol", "failed", "protocol", False),
        (0, "internal", "failed", "internal", False),
        (0, "", "failed", "protocol", False),
        (101, "", "failed", "protocol", False),
        (999, "", "failed", "protocol", False),
    ],
)
def test_what_a_result_means(status: int, failure: str, state: str, error: str, away: bool) -> None:
    outcome = classify(PushResult(status, failure))  # type: ignore[arg-type]

    assert (outcome.state, outcome.error, outcome.endpoint_away) == (state, error, away)
    assert bool(outcome.detail) or outcome.state == "delivered" or bool(failure)
