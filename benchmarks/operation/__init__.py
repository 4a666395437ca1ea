"""What an operator meets: starts, kills, what waits, what is written down.

engine, idle        the whole engine: starts, memory; what it takes when nothing happens
recovery, broker_loss, cluster  kills under load
redelivery, parked_elsewhere    what waits, and what that does to everybody else
reliabilities       a receiver that is away, under each reliability
federation          one link to another engine
recording, tables, audit        the tables, questions to them, and whether everything is accounted for
"""

from __future__ import annotations
