"""The envelope of HPwsn and its relatives: a WS-Notification text, escaped, as the string parameter of `WsnProcess`.

    messages    from the text to what is asked; bare ampersands, and bytes encoded twice, are undone
    operations  WsnProcess: carried out by the same code as the standard's operations; the replies are strings

What the old system did and the standard does not, lives here and (how pushes look) in `dispatch.delivery.envelope`.
"""

from __future__ import annotations
