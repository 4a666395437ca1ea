"""Publishers that register: registrations, who may publish, and subscribing at those who publish on demand.

registration   RegisterPublisher and DestroyRegistration
senders        which registration a Notify comes from, where registration is required
calls          what we say to a publisher: Subscribe, Renew, Pause, Resume, Unsubscribe
worker         keeps our subscriptions at publishers in step with what is wanted here (`ingest.demand.steps`)
"""

from __future__ import annotations
