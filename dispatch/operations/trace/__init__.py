"""Why did it arrive, or not: what the tables and the logs know of one notification, put in words.

evidence     what is known: gathered by whoever can read logs and tables
control      what the control log said, and when
explain, unmatched      from evidence to a story; why there is none; pure
gathering    reads the tables, and the ends of the logs that the tables do not have yet
progress     which batch took a notification
"""

from __future__ import annotations
