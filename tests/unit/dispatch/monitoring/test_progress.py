from __future__ import annotations

import json

from arborcast.dispatch.monitoring.sources import QueryProgress, progress_of, read_progress


def test_what_spark_says() -> None:
    text = json.dumps(
        {
            "batchId": 7,
            "numInputRows": 12,
            "durationMs": {"addBatch": 250, "queryPlanning": 4},
            "sources": [{"endOffset": {"p.notifications": {"0": 5, "1": 9}}}],
        }
    )
    assert read_progress(text) == QueryProgress(7, 12, {0: 5, 1: 9}, {"addBatch": 0.25, "queryPlanning": 0.004})


def test_a_query_that_has_not_begun_has_none() -> None:
    assert progress_of(None) is None
