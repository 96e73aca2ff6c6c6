"""Wires: callers for HTTP/1, gRPC and calls within the process, made for little processor time of each request.

Connections are read by the poller's callbacks (`protocol.reactor`), not by tasks. Requests are prepared bytes; of
responses only what a measurement needs is looked at.
"""
