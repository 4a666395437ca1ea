"""What a gateway does for a federation: who else is there, what they want, links to them, and what comes from them.

Nothing else needs this folder: without `federation.name` none of it runs. What engines say to each other, and the rules
by which it goes on, are in `topic_model.records.peers`; links are subscriptions, which dispatch pushes to as to any.
"""

from __future__ import annotations
