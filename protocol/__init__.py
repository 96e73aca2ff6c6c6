"""The vocabulary that flows through the server, and the two edges that speak it on the wire.

Private: what other packages may import of it is in `trioton` (`docs/api.md`).
"""
