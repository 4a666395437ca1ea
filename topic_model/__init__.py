"""Topics, expressions, subscriptions, and the routing table. A library without a server.

    topics, tree/           paths; the tree, and planned changes of it
    patterns/, expressions/ topic expressions and conditions: from any dialect to one normal form
    subscriptions, publishers   subscriptions with their policies; publishers
    grants                  sets of topics that a caller may use
    records/                the records of the logs
    control_log/            writing and following the control log
    projections/            views of the control log, each for one purpose
    routing/, snapshot/     the recipients of a notification; the routing table as bytes for a broadcast
    documents/              the tree as documents

The gateway, the Spark workers and the notebooks use the same classes. Except for control_log/ all of it is pure: no
Kafka, no files, no HTTP.
"""

from __future__ import annotations
