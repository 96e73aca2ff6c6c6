"""Errors of the link itself."""

from __future__ import annotations

from protocol.errors import NotHere


class NotLinked(NotHere):
    """The link does not carry this; the edge process has the core's own edges answer the call."""
