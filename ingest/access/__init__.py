"""Who may do what at the gateway, and how much of it.

    proxies               behind which address a client is
    rates, connections    how many requests, bytes and connections one client may have
    gate                  what the application asks for each request
    authenticator         from what a request carries to an identity
    username_token, nonces, bearer      the kinds of proof
    guesses               how many wrong credentials there may be
    users, users_file, ldap_users, passwords    whose password that is
    policy, grants, rights              who may publish to, subscribe to and manage which topics
    review                subscriptions whose owners might not make them today
    tls, handshakes       the door itself
    watched               files that people edit while we run
    errors, settings      refusals; what can be set

All of it is off by default, and costs a request one comparison with None then. Nothing here knows an operation.
"""

from __future__ import annotations
