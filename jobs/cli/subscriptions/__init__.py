"""`arborcast subscriptions` and `arborcast triggers`: who gets what, and what is published because of something else.

showing     subscriptions: who is there, who is suspended, and how a suspension is ended
triggers    triggers: made, shown, removed
"""

from __future__ import annotations
