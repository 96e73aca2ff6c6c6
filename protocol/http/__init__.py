"""The HTTP edge: pure codecs for the Open Inference Protocol's JSON and binary tensors, and what moves their bytes.

A request's way: `connections` (listeners) -> `connection` (one client, and which version of HTTP it speaks) -> `http1`
(over llhttp), `http2_connection` (over `protocol.http2`) or, after an upgrade from one to the other, `upgraded_http2`
(hypercorn's) -> `app` -> `routes` -> a handler -> `protocol.core.InferenceCore`, and back the same way. Entry points:
`protocol.http.server.serve_http` and `protocol.http.metrics.serve_metrics`.
"""
