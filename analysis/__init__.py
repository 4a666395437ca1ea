"""For notebooks: `from arborcast import tables`.

    tables.attempts.pandas(since=timedelta(hours=1))     a table, or a period of it; no Java needed
    tables.timeline(notification_id)                     the history of a notification; .table has the steps
    tables.plot.latency(by="endpoint")                   response times; for other charts see `plots`
    tables.plot.tree("plant")                            the busiest topics below one
    tables.audit()                                       whether every delivery is accounted for
    spark()                                              a Spark session with every table as a view

The engine is that of ARBORCAST_CONFIG or ARBORCAST_HOME, else the one below the current folder, as for the `arborcast`
command.

    reader, questions, rows     rows, without charts
    plots, timeline, topic_tree contents of charts; decided in pure functions
    charts, picture             drawing: forms, sizes, colours, and the text of an empty chart
"""

from __future__ import annotations

from arborcast.analysis.questions import Tables
from arborcast.analysis.reader import TableReader, spark

__all__ = ["TableReader", "Tables", "spark", "tables"]

tables = Tables()
