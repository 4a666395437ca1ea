"""Side by side: `peers` with Apache CXF and Apache Camel, which `others` fetches and starts; `floor` and `prototype`
with the least that does the work of the gateway and of the dispatch job."""

from __future__ import annotations
