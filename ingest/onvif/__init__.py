"""ONVIF: enough of its device and event services for its clients to take us for a source of events."""

from __future__ import annotations
