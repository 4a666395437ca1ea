"""For notebooks and questions: `from arborcast import tables`.

    tables.attempts.pandas(since=timedelta(hours=1))     a table, or a span of time of it; no Java needed
    tables.timeline(notification_id)                     what became of a notification; .table has the steps
    tables.plot.latency(by="endpoint")                   who keeps us waiting; and other pictures, see `plots`
    tables.plot.tree("plant")                            the busiest topics below one
    tables.audit()                                       whether everything is accounted for
    spark()                                              a Spark session with every table as a view

Which engine? The one that ARBORCAST_CONFIG or ARBORCAST_HOME names, else the one below the current folder, as with the
`arborcast` command.

reader, questions, rows     rows, without pictures
plots, timeline, topic_tree what is drawn; decided in pure functions
charts, picture             how: forms, sizes, colours, and words where there is nothing to draw
"""

from __future__ import annotations

from arborcast.analysis.questions import Tables
from arborcast.analysis.reader import TableReader, spark

__all__ = ["TableReader", "Tables", "spark", "tables"]

tables = Tables()
