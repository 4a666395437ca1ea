"""Who gets what: topics, expressions, subscriptions, and the routing table. A library without a server.

    topics, tree/           paths; the tree, and planned changes of it
    patterns/, expressions/ topic expressions and conditions: from any dialect to one normal form
    subscriptions, publishers   who gets what, who publishes
    grants                  sets of topics that a caller may use
    records/                what the logs hold
    control_log/            writing and following the control log
    projections/            parts of the control log, each for one purpose
    routing/, snapshot/     who gets a notification; the same as bytes that can be broadcast
    documents/              the tree as documents

The gateway, the Spark workers and the notebooks use the same classes. All of it is pure: no Kafka, no files, no HTTP.
"""

from __future__ import annotations
