"""SOAP in, log out: the gateway, and the client library.

    http/           from a connection to a request; bounds for hostile clients
    access/         who may do what, and how much of it
    soap/, elements/    reading and writing messages
    operations/     what a request does, one module for each port type
    state/          what the gateway knows from the logs, and appends to them
    consumers/      calls to consumers when they subscribe
    demand/         subscribing at publishers while somebody here wants their topics
    client/         for publishers and subscribers written in Python

May live here: everything that speaks WS-Notification to the outside. May not: pushing (that is `dispatch`), process
management and settings files (that is `jobs`).
"""

from __future__ import annotations
