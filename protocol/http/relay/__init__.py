"""Relay: an HTTP edge in a process of its own, which has the edge of the core's process answer its requests.

    client -> connection -> [app] -> [upstream] -> socket -> the core's edge

Each client has connections of its own to the core, opened in its name: so the core knows whose request it answers by
how the connection came to it, and no header says so that a client could send.
"""
