"""A whole engine under load with failing parts, receivers, disks and connections; an external record shows losses.

storm, outage, soak             the programs: kill -9; a frozen Kafka, a full disk, faults of the network; hours of load
endings                         subscriptions that end while their pushes wait, and their traces
victim                          the engine, and kills of its parts
load, receivers                 publishers and pulling clients; receivers in a separate process
disk, links                     a small disk that can be filled; connections with faults
record, delivery_states, judge  the external record, the engine's logs, and the comparison of both
"""

from __future__ import annotations
