"""The embedded engine: a real Kafka broker, the gateway and the streaming job, started and watched by one supervisor.

    engine, supervisor, daemon  its parts; the loop that keeps them running; the process that it runs in
    parts, backoff, leash       one part: what it is, when it is started again, how it dies with us
    questions, watch            whether a part lives, and that it hangs when it does not say so
    commands, state, home       up, down and status; what they read; what lies where on the disk
    kafka_broker, kafka_safety  the broker; what in any cluster's configuration would break a promise
    doctor, java, ports         what has to be there
    disk_watch                  that the disk is filling up, said in time
    jars, ivy, pin_jars         what is fetched, once
    class_archive               what is made of it, once, so that the job's JVM starts in half the time
    keys                        the key file of an engine that has no other
    logfiles, json_lines        what parts print
    processes, signals, deadline    helpers without a notion of any of this

Lives here: finding Java, fetching jars, starting and stopping processes, and saying how they are. Does not live here:
anything that knows what a notification is. A production installation runs the same gateway and the same job without
this package.
"""

from __future__ import annotations
