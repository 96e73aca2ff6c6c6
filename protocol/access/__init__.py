"""Who may make which call, and which headers reach the model: one place for both edges, free of any wire format.

An edge asks `control.AccessControl` before anything else in a call, and `forwarding.HeaderForwarding` when it makes an
inference request. Only `keys_file` does I/O: it is the actor that reads the keys again when their file changes.
"""
