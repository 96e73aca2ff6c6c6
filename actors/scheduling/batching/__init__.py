"""Batching policies: which queued requests form a batch, and when."""
