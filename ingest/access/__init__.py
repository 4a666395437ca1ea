"""Who may do what at the gateway, and how much of it.

    gate                  what the application asks for each request: may it come in, and who is it
    proxies, rates        behind which proxy a client is; how many requests, bytes and connections it may have
    username_token, bearer      the kinds of proof that come with a message or its head
    users, users_file, ldap_users     whose password that is, and how many wrong ones there may be
    policy, grants        who may publish to, subscribe to and manage which topics

All of it is off by default, and costs a request one comparison with None then. Nothing here knows an operation.
"""

from __future__ import annotations
