"""The trace of a notification: its data in tables and logs (`gathering`), explained as text (`explain`)."""

from __future__ import annotations
