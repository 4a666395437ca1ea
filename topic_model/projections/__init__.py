"""Parts of what the control log says, each for one purpose: owners, registrations, pull points, suspensions."""

from __future__ import annotations
