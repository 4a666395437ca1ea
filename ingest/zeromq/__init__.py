"""The ZeroMQ edges: sockets for clients that speak ZeroMQ and nothing else. Needs the extra `zmq`.

    messages   what the parts of a multipart message say. Pure
    prefixes   what receivers have asked for, and on which connections
    upstream   the connections to the framed edge of the gateway: one for each user, made again when it is lost
    sockets    the sockets of the settings, made and secured
    edge       the loop between the two

The edges are a client of the framed edge (`client/framed.py`): rights, rates, logs and tables are the gateway's.
The folder can be deleted, and `engine/gateway/zmq_edge.py`, which runs it.
"""
