"""Bounds on what clients may cost: memory of requests and responses, floods, and counters of what was refused."""
