"""What the logs hold, as values: control records, notifications, messages of pull points. Encoding and decoding."""

from __future__ import annotations
