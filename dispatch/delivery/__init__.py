"""A push, whoever makes it: the envelope, its credentials, what an answer means and what follows from it, retries,
limits, endpoint health.

`transport/` sends it. Two drivers use this: `dispatch.hot` for batches, `dispatch.redelivery` for what waits.
"""

from __future__ import annotations
