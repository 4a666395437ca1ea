"""From the logs to the Delta tables, off the hot path.

    recording     all of it: who writes which table, how often
    held          one table, held open: what is written to it, exactly once
    rows          the columns of rows, from records
    record        the query that writes what came of each push
    log_table     what a table has of the log that the query reads; unread: the same, pure
    deliveries    one row for each delivery that has ended
    archive       every notification, payload and all
    folds, changes      tables of states, merged from a compacted log; what a stretch of it comes to
    control, waiting    what its records mean for each of them
    health, routes      the two that no log is folded into
    follower      what archive and folds have in common: steps, failures, a log that was made anew
    tail          following a log of many partitions, from where the table says it is
    recorder      the threads that keep all tables but those of the query
    upkeep        compaction and retention

All of it runs on the driver and is written through delta-rs: a commit takes 10 ms there, seconds in Spark's own sink.
"""

from __future__ import annotations
