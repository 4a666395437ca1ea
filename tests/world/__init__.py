"""The dispatch, its gateways, logs and receivers in simulated time (docs/promises.md, The simulated world).

kernel         time, processes and threads as greenlets of one thread
installed      replacements of time, threads, processes and Kafka clients
brokers        Kafka in memory
spark          Spark's sessions, queries and Python workers
receivers      endpoints, and the transport to them
gateways       gateways on event loops in simulated time
operators      commands of operators
engine         the dispatch job
history        all parts of a history
scenario       traffic and faults from a seed
oracle         checks of the promises
known_faults   former faults, each reintroduced
run            many histories, and their outcomes
"""

from __future__ import annotations
