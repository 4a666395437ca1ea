"""The dispatch, its gateways, logs and receivers in simulated time (docs/promises.md, The simulated world).

kernel         time, processes and threads as greenlets of one thread
installed      what production code gets in place of time, threads, processes and Kafka clients
brokers        Kafka in memory
spark          Spark's sessions, queries and Python workers
receivers      endpoints, and the transport to them
gateways       gateways on event loops in simulated time
engine         the dispatch job
history        all of these together
scenario       traffic and faults from a seed
oracle         what must hold
known_faults   faults of the past, put back one by one
run            many histories, and what they came to
"""

from __future__ import annotations
