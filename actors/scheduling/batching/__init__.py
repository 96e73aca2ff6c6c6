"""Batching: which queued requests go together, and when."""
