"""Side by side: `peers` with Apache CXF and Apache Camel, which `others` fetches and starts; `prototype` with a bare
dispatch job. `floor` is a bare gateway, for `benchmarks.gateway floor`."""

from __future__ import annotations
