"""The streaming job as a whole: one at a time on its logs, its parts started and stopped in order, and watched for
hanging."""

from __future__ import annotations
