"""The protocol layer: the server's vocabulary, and its HTTP and gRPC edges.

Private: what other packages may import of it is in `trioton` (`docs/api.md`).
"""
