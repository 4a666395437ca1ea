"""The ZeroMQ edges: sockets for clients that use ZeroMQ only. Needs the extra `zmq`.

    messages   the parts of a multipart message. Pure
    prefixes   the subscribed prefixes of receivers, by connection
    upstream   the connections to the framed edge of the gateway: one for each user, with reconnects
    sockets    the sockets of the settings, opened and secured
    edge       the loop between the two

The edges are a client of the framed edge (`client/framed.py`): rights, rates, logs and tables are the gateway's.
The folder can be deleted, and `engine/gateway/zmq_edge.py`, which runs it.
"""
