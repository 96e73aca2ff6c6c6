"""Sockets and the event loop: the poller, listeners, TLS, transports, and replies that leave in one burst."""
