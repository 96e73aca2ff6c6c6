"""The HTTP edge: pure codecs for the Open Inference Protocol's JSON and binary tensors, and a thin ASGI driver.

A request's way: `connections` (listeners) -> `connection` (one client) -> `http1` or `http2` (hypercorn's protocols) ->
`app` -> `routes` -> a handler -> `protocol.core.InferenceCore`, and back the same way.
Entry points: `protocol.http.server.serve_http` and `protocol.http.metrics.serve_metrics`.
"""
