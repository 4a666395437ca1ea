"""The envelope of HPwsn and its relatives: a WS-Notification text, escaped, as the string parameter of `WsnProcess`.

    text        from the text to XML: bare ampersands, and bytes encoded twice, are undone
    messages    from the XML to requests
    parts       messages that come in parts, put together or given up
    operations  WsnProcess: carried out by the same code as the standard's operations; the replies are strings

What the old system did and the standard does not, lives here and (how pushes look) in `dispatch.delivery.envelope`.
"""
