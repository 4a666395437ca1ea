"""Who gets what: topics, expressions, subscriptions, the routing table and the control log.

A library without a server: the gateway, the Spark workers and the notebooks all use these same classes.
May live here: values, pure decisions, the records of the logs, and the two doors to where the tree and the control
log are kept (`directory/`, `control_log`). May not: SOAP, HTTP, Spark, reading of settings files; nothing here
imports `ingest`, `dispatch` or `jobs`.
"""

from __future__ import annotations
