"""What the gateway does towards consumers: asking whether they want what was subscribed for them, posting to them."""

from __future__ import annotations
