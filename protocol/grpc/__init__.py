"""The gRPC edge: bytes of HTTP/2 to calls on the core and back.

Codecs without I/O: `framing` (messages in a stream), `headers`, `status`, `wire`, `contents`, `parameters`,
`infer_codec`, `codec`. The driver on Trio: `server` (listens), `connection` and `writer` (one peer), `http2` (h2's
set-up), `stream` (one call). What the calls do: `service`, `stream_infer`, `health`.
"""
