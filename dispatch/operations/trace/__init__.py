"""Why did it arrive, or not: what the tables and the logs know of one notification (`gathering`), put in words
(`explain`)."""

from __future__ import annotations
