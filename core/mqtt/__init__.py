"""The connection to an MQTT 5 broker, for the gateway with the session and for each process that pushes.

settings     the section `mqtt`
connection   a client that connects under the outbound policy. Needs the extra `mqtt`
"""

from __future__ import annotations
