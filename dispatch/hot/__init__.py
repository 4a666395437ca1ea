"""The hot path: a batch from the `notifications` log to the receivers that answer.

    stream          on the driver: the query, what a batch is told and what it reports (reports)
    sink            in a worker: match, filter, hand over; sink_journal is where it writes
    lanes, pump, stragglers     who is pushed to next, and whom a batch does not wait for (pure, over any transport)
    settlement      what becomes of a delivery once its push has an outcome
    rounds          how much of a long batch is done at once (pure)
    recall          what an earlier run of a batch came to
    pull_points     delivery into pull points
    warmup          paying for what is slow the first time; touch keeps the workers that it has warmed

What does not fit into a batch goes to `dispatch.redelivery`.
"""

from __future__ import annotations
