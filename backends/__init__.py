"""Backends: one module or folder for each framework, their common base, and their registry.

Private: what other packages may import of it is in `trioton` (`docs/api.md`).
"""
