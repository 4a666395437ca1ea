"""Cameras as sources: a subscription of the engine at each ONVIF device, kept for as long as the camera is configured.

conversation   the next request to a camera, and the consequence of its answer: pure
messages       requests to a camera, and its answers
credentials    WS-UsernameToken and HTTP digest
connection     HTTP to one camera
events         a camera's events as notifications below `cameras/NAME`
publisher      stores notifications of cameras, and operator events about cameras
worker         carries out the conversations, in the gateway with the lease; takes events that cameras push
"""
