"""Who may do what at the gateway, and how much of it.

    rates, connections    how many requests, bytes and connections one client may have
    visitor               who asks: an address, and a caller once it is known
    gate                  what the application asks for each request
    review                subscriptions whose owners might not make them today
    errors, settings      refusals; what can be set

All of it is off by default, and costs a request one comparison with None then. Nothing here knows an operation.
"""

from __future__ import annotations
