"""The HTTP edge: REST (KServe v2 with Triton's extensions) over HTTP/1.1 and HTTP/2, and the metrics endpoint.

The path of a request: `connections` (listeners) → `connection` (one client, and which version of HTTP it speaks) →
`http1` (over llhttp), `http2` (over `protocol.http2`) or, after an upgrade from the one to the other, `http2.upgraded`
(over hypercorn) → `app` → `routes` → a handler → `protocol.core.InferenceCore`, and back the same way. Entry points:
`protocol.http.server.serve_http` and `protocol.http.metrics.serve_metrics`.
"""
