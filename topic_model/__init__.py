"""Who gets what: topics, expressions, subscriptions and the routing table.

    topics, tree/               paths; the tree as a fold and as elements; planned changes of it
    patterns/, expressions/     topic expressions: from any dialect to one normal form; conditions over documents
    subscriptions, publishers   who gets what, who publishes
    records/                    what the logs hold
    projections/                what else follows from the control log, and what waits in pull points
    routing/, snapshot/         who gets a notification; the same as bytes that can be broadcast
    documents/                  the tree as documents
    legacy_content, namespaces  what the older system's messages carry; names of standards

A library without a server: the gateway, the Spark workers and the notebooks all use these same classes. May live here:
values and pure decisions. May not: SOAP, HTTP, Spark, reading of settings files, and Kafka, but for the door to the
control log (`records/control_log`).
"""

from __future__ import annotations
