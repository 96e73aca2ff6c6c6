"""The backends of frameworks, one module or folder for each, what they have in common, and their registry.

Private: what other packages may import of it is in `trioton` (`docs/api.md`).
"""
