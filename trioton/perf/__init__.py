"""Load generator of `trioton perf`: what loads a model, what is measured meanwhile, and how sure that is.

Flow: `flags` → `target` (a server, or models in this process) → `session` → `loops` (closed or open) → `callers` → the
server → `Result` → `recorder` → slices of `figures` → `measurement` (ends by confidence) → `table`, JSON, CSV, report.

For other tools: `trioton.perf.session.measure` and `open_session`.
"""
