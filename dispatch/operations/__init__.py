"""What an operator does and asks, over the logs, beside a running job: dead letters, replay, trace, audit."""

from __future__ import annotations
