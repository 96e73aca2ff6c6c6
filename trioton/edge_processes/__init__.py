"""Edges in processes of their own: TLS, HTTP, gRPC and connections off the core's loop (`--edge-processes`).

    client -> [acceptor] -> edge process: edges, relay -> the core's edges -> core

The core's process listens, accepts, and hands each connection to the edge process with the fewest. What that cannot
answer by itself it relays over sockets that it passes to the core, to the core's own edges.
"""
