"""The gateway's part of a federation: membership, interest, links, and notifications of other engines.

Unused without `federation.name`. Messages between engines and forwarding rules are in `topic_model.records.peers`;
links are subscriptions, pushed by the dispatch.
"""
