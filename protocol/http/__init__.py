"""The HTTP edge: a pure codec for the Open Inference Protocol's JSON and binary tensors, and a thin ASGI driver.

A request's way: `connections` (hypercorn on Trio) -> `app` -> `routes` -> a handler -> `protocol.core.InferenceCore`.
Entry points: `protocol.http.server.serve_http` and `protocol.http.metrics.serve_metrics`.
"""
