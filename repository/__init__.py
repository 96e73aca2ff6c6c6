"""Model repositories: from model directories and `config.pbtxt` to validated, typed model configurations.

Private: what other packages may import of it is in `trioton` (`docs/api.md`).
"""
