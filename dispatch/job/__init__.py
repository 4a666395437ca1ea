"""The streaming job as a whole: its parts started and stopped in order, and watched for hanging."""

from __future__ import annotations
