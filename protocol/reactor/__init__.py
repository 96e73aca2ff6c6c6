"""Sockets and the event loop: poller, listeners, TLS, transports, and batched replies."""
