"""An operator's queries and actions over the logs, beside a running job: dead letters, replay, trace, audit."""

from __future__ import annotations
