"""The whole engine as commands: up, down, status, doctor, and the check of Kafka's settings."""

from __future__ import annotations
