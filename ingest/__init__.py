"""SOAP in, log out: the gateway's ASGI app, one module per port type, faults, and the client library.

May live here: everything that speaks WS-Notification to the outside. May not: pushing (that is `dispatch`), process
management and settings files (that is `jobs`). Nothing here imports `dispatch` or `jobs`.
"""

from __future__ import annotations
