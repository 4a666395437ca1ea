"""The administrator of a federation: members, their liveness, and representatives.

One process with a small file; while it is down the engines continue.
"""

from __future__ import annotations
