"""Subscribing at publishers that publish on demand, for as long as somebody wants what they offer.

steps     which subscriptions there should be, and what to do to get there: pure
calls     what we say to a publisher: Subscribe, Renew, Pause, Resume, Unsubscribe
worker    does the steps
"""

from __future__ import annotations
