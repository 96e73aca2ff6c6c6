"""Relay: a gRPC edge in a process of its own, which has the edge of the core's process answer its calls.

    client -> connection -> stream -> [handlers] -> [upstream] -> socket -> the core's edge

Each client has a connection of its own to the core, opened in its name, with all of its calls.
"""
