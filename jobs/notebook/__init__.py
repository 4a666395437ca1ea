"""For notebooks and questions: `from jobs.notebook import tables`.

    tables.attempts.pandas(since=timedelta(hours=1))     a table, or a span of time of it; no Java needed
    tables.trace(notification_id)                        what became of a notification, step by step
    tables.audit()                                       whether everything is accounted for
    tables.slowest_endpoints()                           who keeps us waiting
    spark()                                              a Spark session with every table as a view

Which engine? The one that ARBORCAST_CONFIG or ARBORCAST_HOME names, else the one below the current folder, as with the
`arborcast` command.
"""

from __future__ import annotations

from jobs.notebook.questions import Tables
from jobs.notebook.reader import TableReader, spark

__all__ = ["TableReader", "Tables", "spark", "tables"]

tables = Tables()
