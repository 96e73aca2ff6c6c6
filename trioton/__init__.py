"""Trioton, an inference server on Trio: the command line, and what other programs may import.

Public are `trioton.backends`, `trioton.caches`, `trioton.engines`, `trioton.errors`, `trioton.messages`,
`trioton.model_config`, `trioton.repository_agents`, `trioton.server` and `trioton.testing`, with the names in their
`__all__`; `docs/api.md` says what may be relied on. Every other module, here and in the packages beside this one, is
private.
"""
