"""Records of the logs, with their encoding: control records, notifications, messages of pull points."""

from __future__ import annotations
