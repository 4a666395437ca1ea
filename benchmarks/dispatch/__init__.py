"""From publishers through gateway, Kafka and the job to subscribers, and the parts of that way by themselves.

throughput, latency, burst  how many a second; how long it takes; from the log alone
scaling, older_system       one quantity at a time; the older system's tests
executors, transports       task slots and executors; libcurl and requests-futures
subscribers, fairness       many of them, sick ones; lanes served in turn
fan_out, limits             one notification for many; bytes and memory with bad receivers
churn, view                 changes of subscriptions, and what they cost a batch
stages, signing             the steps of a worker, each by itself
"""

from __future__ import annotations
