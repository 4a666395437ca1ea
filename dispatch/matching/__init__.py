"""What the workers match with: the routing table of the driver as a base and an overlay, and filters on content.

view            the driver's side, and how a worker opens it
control_state   what the driver has folded from the control log, and who is told of changes
bases, rebasing the base: how it reaches the workers, and when there is a new one
filters         content and producer filters, after the match
"""

from __future__ import annotations
