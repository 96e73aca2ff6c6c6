"""Access control and header forwarding, shared by both edges: bearer keys, restricted APIs, header patterns.

An edge asks `control.AccessControl` before anything else in a call, and `forwarding.HeaderForwarding` when it makes an
inference request. Only `keys_file` does I/O: it is the actor that reads the keys again when their file changes.
"""
