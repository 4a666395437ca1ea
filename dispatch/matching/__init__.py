"""What the workers match with: the routing table of the driver as a base and an overlay, what it was lately, and
filters on content.

view            the driver's side, and how a worker opens it
control_state   what the driver has folded from the control log, and who is told of changes
bases, rebasing the base: how it reaches the workers, and when there is a new one
filters         who gets a notification; content and producer filters, after the match
unmatched       where the oldest notification lies that no batch has matched yet
"""

from __future__ import annotations
