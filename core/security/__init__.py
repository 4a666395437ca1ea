"""Secrets and proofs: keys for secrets at rest, signatures of pushes, client certificates, and where may be connected
to.
"""

from __future__ import annotations
