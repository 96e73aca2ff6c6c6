"""Handlers of the HTTP routes, one module for each extension of the protocol."""
