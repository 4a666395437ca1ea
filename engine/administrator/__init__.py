"""The administrator of a federation: who is a member, who is there, who speaks for which group. One process with a
small file; while it is away engines go on as they were."""

from __future__ import annotations
