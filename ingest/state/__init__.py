"""What the gateway knows from the logs, and what it appends to them."""

from __future__ import annotations
