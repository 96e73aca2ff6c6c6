"""Edge link: the core as processes of edges see it, over a socket and shared memory.

    edge process: edges -> [linked core] -> socket, shared memory -> core process: [link server] -> core

The two entry points are `linked_core.LinkedCore`, which implements `protocol.core.InferenceCore` where the edges run,
and `link_server.LinkServer`, which serves one such process where the core runs.
"""
