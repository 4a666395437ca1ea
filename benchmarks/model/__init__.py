"""Topics and subscriptions, in one process and without Spark.

topics          memory, reading and selecting, documents
routing         all of routing_match, routing_apply and routing_snapshot, each in a process of its own
routing_data    the topics and subscriptions of these
control_replay  reading the control log from Kafka
ldap_directory  a topic tree from a real slapd
"""

from __future__ import annotations
