"""What the workers match with: the routing table of the driver as a base and an overlay, what it was lately, and
filters on content.
"""

from __future__ import annotations
