"""From a folder of files to typed model configurations: layout, parsing, validation, completion, version policies.

Private: what other packages may import of it is in `trioton` (`docs/api.md`).
"""
