"""The connection to an MQTT 5 broker, of the gateway that holds the session and of each process that pushes.

settings     the section `mqtt`
connection   a client that connects under the outbound policy. Needs the extra `mqtt`
"""

from __future__ import annotations
