"""The policy that tests push with: their receivers are on this machine, which nobody reaches by default."""

from __future__ import annotations

from arborcast.core.security.outbound import AddressPolicy, OutboundSettings

THIS_MACHINE = AddressPolicy(OutboundSettings(scope="loopback"))
"""Loopback and what is public; the test machine's other addresses are refused."""
