"""Questions and actions of an operator, for the command line and the console.

    connection      the Kafka and the gateway of an engine
    control_log     the control log's state, and changes to it
    topics          topics that an operator names, and changes of the tree
    topic_documents topic trees as documents
    directory       differences of the directory from the control log
    topic_units     units of another system's LDAP server as topics
    subscriptions   subscriptions, their recipients and states
    receiver_page   the page of one subscription for its subscriber
    triggers        triggers
    users           users, and rights that their owners lost
    audit           the balance of deliveries
    slo             the service level objective
    messages        the newest notifications of a topic, and the busiest topics
    queues          work queues, their servers and requests
    federation      members and links of a federation
    documents       values as JSON
    times           times as text, and in an operator's words
    filters         subscriptions and topics in an operator's words
    waiting         waiting deliveries
    dead_letters    given-up deliveries
    erasures        erasures of payloads
    trace           the history of a notification
    configuration   effective settings, and an example file
    keys            key files
    replay          notifications delivered again to one subscription
    operations      changes by operators: records, and their list
    doctor          checks of a machine and its settings
    kafka_safety    checks of Kafka's settings
    backup, archive the logs as an archive, and an engine filled from it
    data_directory  a copy of an embedded engine's data directory
    resealing       secrets sealed again with a new key
    bundle          the files that a Spark cluster needs

A backup has no copies of the logs: offsets cannot be restored, and records refer to offsets. It has what a new engine
needs: every topic, subscription, pull point and registration; messages in pull points; dead letters; and each
undelivered notification, in order. Settled deliveries are in the tables, which are backed up as files.
"""

from __future__ import annotations
