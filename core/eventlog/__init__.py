"""Kafka and the logs in it: the only folder that imports the Kafka client.

client, client_fixes       consumers, producers and admin clients made from settings; fixes of the library
loop_producer              a producer on an event loop
topics                     names, configuration and verification of the logs
consumer, scan, follower   reading: from a position, a range of offsets, all records and new ones
writers                    writing with acknowledgement
lease                      one holder at a time, decided by the order of a log
"""

from __future__ import annotations
