"""Demand-based publishing: subscriptions at publishers while their topics have subscribers.

steps    required subscriptions, and the steps to get there: pure
calls    requests to publishers: Subscribe, Renew, Pause, Resume, Unsubscribe
worker   carries out the steps
"""
