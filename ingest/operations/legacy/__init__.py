"""The envelope of HPwsn and its relatives: a WS-Notification text, escaped, as the string parameter of `WsnProcess`.

    text        what the old clients do to XML, undone: bare ampersands, bytes encoded twice
    messages    from the text to what is asked
    operations  WsnProcess: carried out by the same code as the standard's operations; the replies are strings

What the old system did and the standard does not, lives here and (how pushes look) in `dispatch.delivery.envelope`.
"""

from __future__ import annotations
