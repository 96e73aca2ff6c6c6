"""The gRPC edge: the KServe inference service, health, reflection and control services, on Trio.

Codecs without I/O: `http2` (frames and streams), `request_head`, `framing` (messages in a stream), `compression`,
`headers`, `status`, `wire`, `contents`, `parameters`, `infer_codec`, `request_templates`, `codec`. The driver on Trio:
`server` (listens), `connection`, `calls`, `outgoing` and `writer` (one peer), `incoming` (a request as it comes),
`direct_calls` and `direct_infer` (calls without a task), `call_tasks` and `stream` (those with one), `request_tasks`
and `in_order` (the requests of a stream). Plain policies that it consults: `keepalive`, `receiving`. What the calls do:
`handlers` (all of them, behind `access`), `service` with `settings_calls` and `shared_memory_calls`, `infer`,
`stream_infer`, `health`, `request_control`, `reflection`.
"""
