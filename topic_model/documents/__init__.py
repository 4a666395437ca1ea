"""Documents of topics: wstop TopicSet (XML) and JSON, read and written, and TopicNamespace (XML), which is only read.

Reading returns TopicRecords, sorted by path, as input of a plan; it changes no tree. Properties that the standard
documents cannot express (code, policy) are attributes in a namespace of Arborcast, which other readers ignore; so a
tree survives a round trip through TopicSet and JSON. Unreadable documents raise DocumentError with the line.
"""

from __future__ import annotations
