"""Kafka, and the logs in it: the only folder that imports the Kafka client.

client, client_fixes    consumers, producers and admin clients made from settings; faults of the library mended
topics                  names of the logs, how each is made and checked
scan, tail, follower    reading: a stretch of a log, its end, all of it for ever
writers                 writing that waits for the acknowledgement
lease                   one holder at a time, decided by the order of a log
"""

from __future__ import annotations
