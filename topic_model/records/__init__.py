"""Records of the logs as values, with their encoding: control records, notifications, messages of pull points."""

from __future__ import annotations
