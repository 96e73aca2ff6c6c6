"""The actors, the messages between them, and the policies that they consult.

Private: what other packages may import of it is in `trioton` (`docs/api.md`).
"""
