"""Batches that a worker runs: encoded, begun, answered, streamed and bounded."""
