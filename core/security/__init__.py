"""Secrets at rest, signatures of pushes, client certificates, and the outbound policy."""

from __future__ import annotations
