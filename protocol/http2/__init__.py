"""Sans-IO HTTP/2 for servers: received bytes to events, responses to bytes.

Flow in: bytes -> `frames` -> `connection` (with `request_headers`, `flow_control`) -> `events` -> the edge. Flow out:
the edge -> `sender` (with `response_headers`, `flow_control`) -> bytes. Both know the `streams`. Around that, with I/O:
`driver`, `reader`, `output`, `writer`.

It has the interface of h2's connection as far as our edges use one, and h2's names for errors and settings. What it
leaves out is what costs: an object for each frame, a state machine with a table, header blocks decoded, checked and
encoded that are the same as the last ones. Tests run it side by side with h2. Source: RFC 9113, RFC 7541.
"""
