"""A push: the envelope, its credentials, the outcome of an answer, the decision after it, retries, limits, endpoint
health.

`transport/` sends it. `dispatch.hot` pushes new notifications, `dispatch.redelivery` parked deliveries, and
`dispatch.queues` requests.
"""

from __future__ import annotations
