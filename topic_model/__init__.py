"""Who gets what: topics, expressions, subscriptions, the routing table and the control log.

    topics, topic_set, tree, tree_plans     paths; the tree, as elements and as a fold; planned changes of it
    grammar, patterns, alternatives, expressions/   topic expressions: from any dialect to one normal form
    conditions, condition_syntax        what a payload must be like
    subscriptions, suspensions, owners  who gets what, who is suspended, how many each owner has
    publishers, registrations, demand   who publishes, and who is asked to
    pull_points, pull_store, pull_log   what waits to be fetched
    routing/, snapshot/     who gets a notification; the same as bytes that can be broadcast
    documents/, directory/  the tree as documents; where it is kept for people
    admission               whether a first notification may add its topic

    records, notifications, record_versions     what the logs hold
    control_log, ordered_log            reading and writing those of one order for everybody
    kafka_client, kafka_mended, kafka_topics    Kafka: its client, its topics
    lease                   who does what must be done once
    silence                 when something that gives no sign of life hangs
    keyring, resealing, signatures, client_certificates     secrets at rest; proofs
    outbound, addresses     where may be connected to
    loose_content           what the older system's messages carry
    recent                  a memory of what was used lately, bounded in bytes and in age
    metrics, tracing, trace_context, log_form   how a process tells what it does
    printable               what strangers wrote, made fit to be looked at

A library without a server: the gateway, the Spark workers and the notebooks all use these same classes.
May live here: values, pure decisions, the records of the logs, and the two doors to where the tree and the control
log are kept (`directory/`, `control_log`). May not: SOAP, HTTP, Spark, reading of settings files; nothing here
imports `ingest`, `dispatch` or `jobs`.
"""

from __future__ import annotations
