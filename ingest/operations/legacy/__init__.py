"""The envelope of HPwsn and its relatives: a WS-Notification text, escaped, as the string parameter of `WsnProcess`.

    text        from the text to XML: bare ampersands, and bytes encoded twice, are undone
    messages    from the XML to requests
    parts       messages in parts: joined, or given up
    operations  WsnProcess: the operations, by the code of the standard's; the replies are strings

Functions of the old system beyond the standard are here and, for pushes, in `dispatch.delivery.envelope`.
"""
